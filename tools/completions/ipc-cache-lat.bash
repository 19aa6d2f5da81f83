# Completion of ipc-cache-lat for bash: its options, files, and processes.
# shellcheck shell=bash

_ipc_cache_lat() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
    case $before in
    --trace | --folded | --file) mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
    --pid | -p) mapfile -t COMPREPLY < <(compgen -W "$(ps -eo pid=)" -- "$word") ;;
    --model | -m | --slower-than | --events | -n | --duration | -d | --interval | -i | --buffer) COMPREPLY=() ;;
    *)
        mapfile -t COMPREPLY < <(compgen -W "--pid --model --slower-than --events --duration --interval --histogram --json \
            --trace --folded --file --buffer --no-kernel --help --version" -- "$word")
        ;;
    esac
}

complete -o bashdefault -F _ipc_cache_lat ipc-cache-lat
