# Shared by the parts of ./dev; sourced, never run.

# Debian's own python: the one that python3-numpy and python3-pytest are installed for.
PYTHON=/usr/bin/python3
[ -x "$PYTHON" ] || PYTHON=python3
JOBS=${NB_JOBS:-$(nproc)}

say() { printf '== %s\n' "$*"; }

fail() {
    printf 'dev: %s\n' "$*" >&2
    exit 1
}

# quietly LOG COMMAND...: shows the output only when the command fails.
quietly() {
    local log=$1
    shift
    if ! "$@" >"$log" 2>&1; then
        cat "$log" >&2
        return 1
    fi
}
