# The Debian packages that each verb needs. Sourced by ./dev.

PACKAGES_BUILD=(build-essential cmake ninja-build pkg-config libjansson-dev libpcre2-dev libutf8proc-dev libxxhash-dev libevent-dev)
PACKAGES_TEST=("${PACKAGES_BUILD[@]}" libcmocka-dev python3 python3-numpy python3-pytest xz-utils clang libclang-rt-dev)
PACKAGES_LINT=("${PACKAGES_TEST[@]}" clang-format clang-tidy cppcheck)
PACKAGES_COVERAGE=("${PACKAGES_TEST[@]}" gcovr)
PACKAGES_ORACLES=("${PACKAGES_TEST[@]}" python3-venv)

# need PACKAGE...: installs those that are absent. Quick and silent when none is.
need() {
    local package missing=()
    if ! command -v apt-get >/dev/null; then
        say "no apt-get here: these must be installed under your system's names for them: $*"
        return 0
    fi
    for package; do
        [[ " ${missing[*]} " == *" $package "* ]] && continue
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    local root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || fail "these packages are missing, and neither root nor sudo is at hand to install them:
    apt-get install --no-install-recommends ${missing[*]}"
        root=(sudo)
    fi
    say "installing ${missing[*]}"
    local log
    log=$(mktemp)
    quietly "$log" "${root[@]}" apt-get update || fail "apt-get update failed"
    quietly "$log" "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "${missing[@]}" || fail "apt-get could not install ${missing[*]}"
    rm -f "$log"
}

setup() {
    need "${PACKAGES_LINT[@]}" "${PACKAGES_COVERAGE[@]}" "${PACKAGES_ORACLES[@]}"
    say "every package that ./dev needs is installed"
}
