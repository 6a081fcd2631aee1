"""tools/torch_taps.py on transformers sees what `nibble trace` sees: the same inputs of every linear, the same finite outputs."""
import json
import pathlib
import sys

import nb
import pytest
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import torch_taps

IDS = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89]


def test_the_same_rows(tmp_path):
    folder = nb.ROOT / "tests" / "fixtures" / "models" / "llama_bf16"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad(), torch_taps.Taps(model) as taps:
        model(torch.tensor([IDS]))
    taps.write(tmp_path / "theirs.json")
    (tmp_path / "ids.json").write_text(json.dumps([IDS]))
    ours = {r["module"]: r for r in nb.ok_json("trace", folder, "--ids", tmp_path / "ids.json", "--arith", "exact")["rows"]}
    theirs = json.loads((tmp_path / "theirs.json").read_text())
    linears = [r for r in theirs["rows"] if r["operator"] == "linear"]
    assert len(linears) == 3 * 7 + 1 and theirs["first_bad"] is None
    for row in linears:
        mine = ours[row["module"]]
        assert mine["layer"] == row["layer"] or row["module"] == "lm_head"
        assert mine["in_amax"] == pytest.approx(row["in_amax"], rel=1e-4)
        assert mine["out_amax"] == pytest.approx(row["out_amax"], rel=1e-4)


def test_names_the_first_module_that_is_not_finite():
    folder = nb.ROOT / "tests" / "fixtures" / "models" / "llama_bf16"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = float("nan")
        with torch_taps.Taps(model) as taps:
            model(torch.tensor([IDS]))
    assert taps.report()["first_bad"]["module"] == "model.layers.1.mlp.up_proj"
