# Runs suites and counts. Sourced by ./dev. Each suite is one program; its tests are counted from what it prints.

PASSED=0
FAILED=0
FUZZ_SECONDS_IN_TESTS=10
SUITE_SECONDS=3600 # against hangs alone: a slow machine takes what it takes

# count NAME PASSED FAILED STATUS LOG: adds a suite's result. A crash is a failure, and so is a suite without a test.
count() {
    local name=$1 passed=$2 failed=$3 status=$4 log=$5
    if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then
        failed=1
        printf '%s ended with status %s\n' "$name" "$status" >>"$log"
    elif [ $((passed + failed)) -eq 0 ]; then
        failed=1
        printf '%s ran no test\n' "$name" >>"$log"
    fi
    [ "$failed" -eq 0 ] || tail -n 100 "$log"
    printf '%5d passed %5d failed  %s\n' "$passed" "$failed" "$name"
    PASSED=$((PASSED + passed))
    FAILED=$((FAILED + failed))
}

# matches PATTERN FILE: the number of lines.
matches() { grep -c "$1" "$2" || [ $? -eq 1 ]; }

# cmocka FOLDER SUITE
cmocka() {
    local log=$1/$2.log status=0
    timeout "$SUITE_SECONDS" "$1/$2" >"$log" 2>"$log.err" || status=$?
    local passed failed
    passed=$(matches '^\[       OK \]' "$log")
    failed=$(matches '^\[  FAILED  \]' "$log")
    cat "$log.err" >>"$log"
    count "$2" "$passed" "$failed" "$status" "$log"
}

# cmocka_suites FOLDER
cmocka_suites() {
    local source
    for source in tests/unit/*/test_*.c; do
        cmocka "$1" "$(basename "$source" .c)"
    done
}

# ops FOLDER: every version of every operator against its reference. An operator is a test, of thousands of comparisons.
ops() {
    local log=$1/nb_ops.log passed=0 failed=0 op
    for op in $("$1/nb_ops" --help 2>&1 | sed -n 's/^ops: //p'); do
        if timeout "$SUITE_SECONDS" "$1/nb_ops" --check --op "$op" >"$log" 2>&1 && grep -qE '^[1-9][0-9]* passed, 0 failed$' "$log"; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
            cat "$log"
        fi
    done
    count nb_ops "$passed" "$failed" 0 "$log"
}

# e2e FOLDER [PYTEST-ARGUMENT...]: the built program, from outside.
e2e() {
    local folder=$1 log=$1/e2e.log xml=$1/e2e.xml status=0
    shift
    rm -f "$xml"
    NB_BIN=$PWD/$folder/nibble NB_BUILD=$PWD/$folder timeout "$SUITE_SECONDS" \
        "$PYTHON" -m pytest -p no:cacheprovider -q --tb=short --junitxml="$xml" tests/e2e "$@" >"$log" 2>&1 || status=$?
    local tests failed=0
    tests=$(attribute tests "$xml")
    failed=$(($(attribute failures "$xml") + $(attribute errors "$xml")))
    count e2e $((tests - failed - $(attribute skipped "$xml"))) "$failed" "$status" "$log"
}

# attribute NAME FILE: of the first testsuite element; 0 when there is no file (a crash, which the status tells).
attribute() {
    local value
    value=$(sed -n "s/.*<testsuite [^>]*\b$1=\"\([0-9]*\)\".*/\1/p" "$2" 2>/dev/null)
    printf '%d\n' "${value:-0}"
}

fuzz_targets() {
    local source
    for source in tests/fuzz/fuzz_*.c; do
        [ -e "$source" ] && basename "$source" .c
    done
    return 0
}

# fuzz_all SECONDS [SEED]: each target over its corpus; a finding stays in build-fuzz. With SEED the inputs are the same each time.
fuzz_all() {
    local target targets corpus log status
    targets=$(fuzz_targets)
    # shellcheck disable=SC2086
    compile fuzz $targets
    for target in $targets; do
        corpus=tests/fuzz/corpus/${target#fuzz_}
        [ -d "$corpus" ] || fail "$target has no corpus in $corpus"
        log=build-fuzz/$target.log status=0
        mkdir -p "build-fuzz/found/$target"
        "build-fuzz/$target" -max_total_time="$1" -seed="${2:-0}" -timeout=60 -rss_limit_mb=2048 -print_final_stats=1 \
            -artifact_prefix="build-fuzz/found/$target-" "build-fuzz/found/$target" "$corpus" >"$log" 2>&1 || status=$?
        count "$target ($1 s)" $((status == 0)) $((status != 0)) "$status" "$log"
    done
}

finish() {
    printf '\n%d passed, %d failed\n' "$PASSED" "$FAILED"
    [ "$FAILED" -eq 0 ]
}

# prepare PRESET TARGET...: packages, data and programs; a build that fails is a test that fails.
prepare() {
    need "${PACKAGES_TEST[@]}"
    tools/unpack_fixtures.sh
    if ! compile "$@"; then
        FAILED=1
        finish
    fi
}

run_tests() {
    prepare default
    cmocka_suites build
    ops build
    e2e build
    fuzz_all "$FUZZ_SECONDS_IN_TESTS" 1 # a change is not refused for what chance finds in code that it does not touch
    finish
}

fuzz() {
    need "${PACKAGES_TEST[@]}"
    fuzz_all "$1"
    finish
}
