#!/bin/sh
# High availability on one host: a server that is killed is back with its weights at once.
#
#   examples/ha.sh MODEL [VLLM ARGUMENTS...]
#
# Starts the daemon, and vLLM's server in a loop that restarts it, as a service manager would; kills the server with SIGKILL
# while it answers, and prints how long it took until the next answer, and that the answer is the same. Needs curl.
set -eu

[ $# -ge 1 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }
model=$1
shift
python=${PYTHON:-python3}
port=${PORT:-8000}
work=$(mktemp -d)

"$python" -m ipc_cache.daemon --model "$model" --skip-tokenizer-init "$@" >"$work/daemon" &
daemon=$!
touch "$work/serve"
(
    while [ -e "$work/serve" ]; do
        setsid "$python" -c 'from ipc_cache.vllm.serve import main; main()' "$model" --skip-tokenizer-init --port "$port" \
            --host 127.0.0.1 --model-loader-extra-config '{"wait": 600}' "$@" >>"$work/log" 2>&1 &
        echo $! >"$work/pid"
        wait $! || true
    done
) 2>/dev/null &
loop=$!
stop() {
    rm -f "$work/serve"
    kill -s KILL -- "-$(cat "$work/pid")" 2>/dev/null || true
    wait $loop 2>/dev/null || true
    kill $daemon
    wait $daemon || true
    rm -rf "$work"
}
trap stop EXIT

ask() {
    curl -sf "http://127.0.0.1:$port/v1/completions" -H 'Content-Type: application/json' -d \
        "{\"model\": \"$model\", \"prompt\": [1, 5, 9], \"max_tokens\": $1, \"temperature\": 0, \"return_token_ids\": true}"
}
tokens() { ask 8 | grep -o '"token_ids":\[[^]]*\]'; }
until_answered() {
    until ask 1 >/dev/null; do
        kill -0 $daemon || { cat "$work/log" >&2; exit 1; }
        sleep 0.2
    done
}

until_answered
cat "$work/daemon"
first=$(tokens)
echo "first answer: $first"
ask 200 >/dev/null &
kill -s KILL -- "-$(cat "$work/pid")"
begin=$(date +%s)
until_answered
echo "killed, and answering again after $(($(date +%s) - begin)) s"
second=$(tokens)
echo "then:         $second"
grep -ho 'ipc_cache: attached.*' "$work/log" | tail -1
[ "$first" = "$second" ]
