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

# The same over HTTP: serve takes a free port and says which; curl is not needed.
need python3
printf '\n'
say "the same over HTTP: build/nibble serve $DEMO, asked as OpenAI's clients ask"
"$PYTHON" tools/dev/ask_server.py build/nibble "$DEMO" '282 - 247 =' 35 'What is the capital of Croatia?' Zagreb ||
    fail "the server should have answered 35 and Zagreb"

# The fault that nibble began with, from symptom to mended folder, in the arithmetic of GPUs with FP4 tensor cores.
STORY=build/demo-story
rm -rf "$STORY"
mkdir -p "$STORY"
"$PYTHON" tools/break_attention.py "$DEMO" "$STORY/broken"
BROKEN_Q='Write as JSON: Jack, 5, Brussels.'

# w4a4 FOLDER: the answer to BROKEN_Q as W4A4 kernels would give it.
w4a4() { build/nibble run "$1" --arith w4a4 -q -n 40 -p "$BROKEN_Q" 2>/dev/null; }

printf '\n'
say "a copy whose attention input scales are 11.84 times too small, run as W4A4 kernels run it"
printf 'question: %s\n' "$BROKEN_Q"
printf 'answer:   %s\n' "$(w4a4 "$STORY/broken")"
say "the file alone looks sound: nibble check broken"
build/nibble check "$STORY/broken" -q
say "which operator goes wrong first, and why: nibble trace broken --as vllm-cutlass -p ..."
build/nibble trace "$STORY/broken" --as vllm-cutlass -q -p "$BROKEN_Q" | sed -n 1,6p
say "what the inputs really are: nibble calibrate broken -o ranges"
build/nibble calibrate "$STORY/broken" -o "$STORY/ranges.safetensors" -q | sed -n 1,7p
say "a mended copy: nibble repair broken -o mended --scales ranges"
build/nibble repair "$STORY/broken" -o "$STORY/mended" --scales "$STORY/ranges.safetensors" -q | tail -n 2
say "and it answers again"
answer=$(w4a4 "$STORY/mended")
printf 'answer:   %s\n' "$answer"
[ "$answer" = '{"name": "Jack", "age": 5, "city": "Brussels"}' ] || fail "the mended folder answers: $answer"

cat <<EOF

Every answer is right. What to try next:
  build/nibble run $DEMO                                      a chat (try: Tell me a story.)
  build/nibble run $DEMO -p '12 + 30 =' --print-prompt        what the model really reads
  build/nibble check $DEMO --format json                      the health report, for scripts
  build/nibble serve $DEMO                                    then http://localhost:8000 in a browser
  build/nibble bench $DEMO                                    how fast, and how near the memory's roof
  build/nibble check YOUR_MODEL_FOLDER                        any NVFP4 folder, also one still without a forward pass here
  build/nibble trace $STORY/broken -p '12 + 30 =' --format html > trace.html
  ./dev test                                                  every test
EOF
if [ -t 0 ] && [ -t 1 ]; then
    printf '\n'
    say "a chat: an empty line or Ctrl-D ends it"
    build/nibble run "$DEMO"
fi
