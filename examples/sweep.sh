#!/bin/sh
# A parameter sweep: vLLM is started ten times with other flags, and reads the model once.
#
#   examples/sweep.sh MODEL [VLLM ARGUMENTS...]     what decides the bytes (--dtype, -tp ...) goes here, for all ten
#
# The daemon makes the model resident and frees it at the end. Each start prints the plugin's line and the answer.
set -eu

[ $# -ge 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2; }
model=$1
shift
here=$(dirname "$0")
python=${PYTHON:-python3}
work=$(mktemp -d)

"$python" -m ipc_cache.daemon --model "$model" --skip-tokenizer-init "$@" >"$work/daemon" &
daemon=$!
trap 'kill $daemon 2>/dev/null; wait $daemon 2>/dev/null; rm -rf "$work"' EXIT
until grep -q READY "$work/daemon"; do
    kill -0 $daemon || exit 1
    sleep 1
done
cat "$work/daemon"

while read -r flags; do
    echo "== $flags"
    # shellcheck disable=SC2086 # each line is several arguments
    "$python" "$here/vllm_once.py" --model "$model" --load-format ipc_broker "$@" $flags </dev/null 2>"$work/log" ||
        { cat "$work/log" >&2; exit 1; }
    grep -ho 'ipc_cache: attached.*' "$work/log" || true
done <<'END'
--max-num-seqs 1
--max-num-seqs 8
--max-num-seqs 32
--max-num-batched-tokens 4096
--max-num-batched-tokens 8192
--block-size 32
--block-size 64
--max-model-len 1024
--enable-prefix-caching
--enforce-eager
END
