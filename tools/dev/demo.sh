# ./dev demo: the main job, on the model that lies in the repository. Sourced by ./dev.

DEMO=models/demo
build
say "is the checkpoint sound? build/nibble check $DEMO"
build/nibble check "$DEMO"

# ask EXPECTED QUESTION...: one conversation, a question a turn; the last answer must be the expected one.
ask() {
    local expected=$1 answers question turns=() log=build/demo.log
    shift
    printf '\n'
    for question; do
        printf 'question: %s\n' "$question"
        turns+=(-p "$question")
    done
    answers=$(build/nibble run "$DEMO" "${turns[@]}" 2>"$log") || { cat "$log" >&2; exit 1; }
    sed 's/^/answer:   /' <<<"$answers"
    sed -n 's/^\[\(.*\)\]$/rate:     \1/p' "$log"
    [ "${answers##*$'\n'}" = "$expected" ] || fail "the answer should be: $expected"
}

say "four questions: build/nibble run $DEMO -p ..."
ask 35 '282 - 247 ='
ask Zagreb 'What is the capital of Croatia?'
ask '{"name": "Jack", "age": 5, "city": "Brussels"}' 'Write as JSON: Jack, 5, Brussels.'
ask '33 76' 'Repeat 60 20 91 0.' 'Sort these numbers: 33 76'

cat <<EOF

Every answer is right. What to try next:
  build/nibble run $DEMO                                      a chat (try: Tell me a story.)
  build/nibble run $DEMO -p '12 + 30 =' --print-prompt        what the model really reads
  build/nibble check $DEMO --format json                      the health report, for scripts
  build/nibble bench $DEMO                                    how fast, and how near the memory's roof
  build/nibble run YOUR_MODEL_FOLDER                          any Llama or DeepSeek-V4 in NVFP4
  ./dev test                                                  every test
EOF
if [ -t 0 ] && [ -t 1 ]; then
    printf '\n'
    say "a chat: an empty line or Ctrl-D ends it"
    build/nibble run "$DEMO"
fi
