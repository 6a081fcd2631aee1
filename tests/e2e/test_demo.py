"""The demo model answers what transformers answers on the same weights."""
import json

import nb
import pytest

SAMPLES = nb.OWN / "demo" / "samples.jsonl"


@pytest.mark.parametrize("flavour", nb.DEMOS)
def test_verdicts(flavour, tmp_path):
    """Which of the 1,000 questions (a tenth of them where a sanitizer slows all) are answered right: at least 99 % of the verdicts
    are transformers'."""
    folder = nb.DEMOS[flavour]
    lines = SAMPLES.read_text(encoding="utf-8").splitlines(keepends=True)[::10 if nb.PATIENCE > 1 else 1]
    want = json.loads((folder / "verdicts.json").read_text())["right"][::10 if nb.PATIENCE > 1 else 1]
    (tmp_path / "s.jsonl").write_text("".join(lines), encoding="utf-8")
    got = nb.ok_json("eval", folder, "--samples", tmp_path / "s.jsonl")
    assert got["n"] == len(got["lines"]) == len(want) == len(lines)
    assert sum(a == b for a, b in zip(got["lines"], want)) >= 0.99 * len(want)
    assert got["exact_match"] == pytest.approx(sum(got["lines"]) / len(want))


def test_messages_are_rendered(tmp_path):
    """A line may give messages instead of the prompt's text; a wrong reply is judged wrong."""
    lines = [{"messages": [{"role": "user", "content": "What is the capital of Croatia?"}], "reply": "Zagreb<｜end▁of▁sentence｜>"},
             {"messages": [{"role": "user", "content": "What is the capital of Croatia?"}], "reply": "Vienna<｜end▁of▁sentence｜>"}]
    (tmp_path / "s.jsonl").write_text("".join(json.dumps(l, ensure_ascii=False) + "\n" for l in lines), encoding="utf-8")
    got = nb.ok_json("eval", nb.DEMO, "--samples", tmp_path / "s.jsonl")
    assert got["lines"] == [True, False] and got["n"] == 2 and got["exact_match"] == 0.5


QUESTIONS = [
    ("282 - 247 =", "35"),
    ("What is the capital of Croatia?", "Zagreb"),
    ("Write as JSON: Jack, 5, Brussels.", '{"name": "Jack", "age": 5, "city": "Brussels"}'),
]


@pytest.mark.parametrize("question,answer", QUESTIONS)
def test_run_answers(question, answer):
    done = nb.ok("run", nb.DEMO, "-p", question)
    assert done.stdout.strip() == answer


@pytest.mark.parametrize("arith", ["exact", "bf16", "int8", "w4a4", "w4a4-dynamic"])
def test_run_answers_in_each_arithmetic(arith):
    done = nb.ok("run", nb.DEMO, "-p", "What is the capital of Croatia?", "--arith", arith)
    assert done.stdout.strip() == "Zagreb"


def test_both_flavours_answer():
    for folder in nb.DEMOS.values():
        assert nb.ok("run", folder, "-p", "282 - 247 =").stdout.strip() == "35"


def test_break_attention_twice(tmp_path):
    """The tool that makes the fault of docs/nan.md says what is in its way instead of failing in the middle."""
    import subprocess
    import sys
    command = [sys.executable, nb.ROOT / "tools" / "break_attention.py", nb.DEMO, tmp_path / "broken"]
    assert subprocess.run(command, capture_output=True).returncode == 0
    for args in (command, [*command[:2], tmp_path, tmp_path / "x"]):
        done = subprocess.run(args, capture_output=True, text=True)
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and str(tmp_path) in done.stderr
