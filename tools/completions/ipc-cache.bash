# Completion of ipc-cache for bash: verbs, their options, and the names of resident models.
# shellcheck shell=bash

# Names are other people's: they are compared as they are, never expanded, and quoted for the command line.
_ipc_cache_models() {
    local word=$1 name
    shift
    while read -r name; do
        [[ $name != "$word"* ]] || COMPREPLY+=("$(printf %q "$name")")
    done < <(ipc-cache ls --timeout 500 "$@" 2>/dev/null | awk 'NR > 1 { print $1 }')
}

_ipc_cache() {
    COMPREPLY=()
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} verb='' dir=() i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        --dir) dir=(--dir "${COMP_WORDS[i + 1]}") && ((i++)) ;;
        --timeout) ((i++)) ;;
        -*) ;;
        *) verb=${COMP_WORDS[i]} && break ;;
        esac
    done

    local options='--dir --timeout --json --help'
    case $verb in
    '') options="$options --version load ls attach dump verify copy evict inspect ping stat doctor" ;;
    load) options="$options --name --device --replace --wait --visible --threads --io --keeper --plan --include --exclude --rank --rows --columns" ;;
    attach) options="$options --repeat --hold --verify --sources --wait --private --device" ;;
    copy) options="$options --device --from --name --replace" ;;
    verify) options="$options --device" ;;
    dump) options="$options --tensors --raw --file" ;;
    evict) options="$options --device --drain --wait --force" ;;
    inspect) options="$options --tensors" ;;
    esac

    case $before in
    --dir | --file | --sources)
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
        return
        ;;
    --verify) options='stat hash none' ;;
    --visible) options='owner group: all' ;;
    --io) options='auto direct buffered mmap' ;;
    --device) options=host ;;
    --wait) options=forever ;;
    --timeout | --repeat | --threads | --name | --include | --exclude | --rank | --rows | --columns) return ;;
    *)
        case $verb in
        load | inspect) [[ $word == -* ]] || { mapfile -t COMPREPLY < <(compgen -f -- "$word") && return; } ;;
        attach | dump | verify | evict) [[ $word == -* ]] || { _ipc_cache_models "$word" "${dir[@]}" && return; } ;;
        esac
        ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
}

complete -o bashdefault -F _ipc_cache ipc-cache
