"""`nibble check`: what break.py breaks is found by the right rule on the right tensors with the right consequence, and nothing
else is cried. defects.py does the same by hand over more bases."""
import json

import defects
import nb
import pytest
from defects import break_py, check, complaints

# A folder of each layout that holds NVFP4 linears. Each defect is made of two that can show it; which two depends on its place in
# the list, so that together all bases see all kinds of defects.
BASES = [nb.OWN / "demo" / "modelopt", nb.OWN / "demo" / "compressed-tensors"] + [
    nb.MODELS[name] for name in ("llama_modelopt", "llama_ct", "llama_mixed", "deepseek_v4_modelopt", "deepseek_v4_ct_nvfp4_attn")]
# As the tools left it: scales of fused linears differ, and the config names other modules.
UNHEALTHY = "deepseek_v4_llmcompressor"


@pytest.mark.parametrize("defect", list(break_py.DEFECTS))
def test_defect(defect, tmp_path):
    """On two bases that can show it."""
    wrong, shown, first = [], 0, list(break_py.DEFECTS).index(defect)
    for i in range(len(BASES)):
        base = BASES[(first + i) % len(BASES)]
        found = defects.judge(base, tmp_path / base.name, defect)
        if found is None:
            continue
        shown += 1
        wrong += [f"{base.name}: {text}" for text in found]
        if shown == 2:
            break
    assert shown > 0, "no base can show it"
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", [pytest.param(p, id=n) for n, p in {**nb.ALL_MODELS, **nb.DEMOS, "models/demo": nb.DEMO}.items()
                                    if n != UNHEALTHY])
def test_healthy_folder_is_clean(folder):
    status, findings = check(folder)
    assert status == 0 and not [f for f in findings if f["severity"] != "note"]


def test_untouched_and_not_healthy():
    _, findings = check(nb.MODELS[UNHEALTHY])
    assert {f["rule"] for f in findings if f["severity"] != "note"} == {"NB107", "NB202"}
    unequal = {t for f in findings if f["rule"] == "NB107" for t in f["tensors"]}
    assert unequal and all(t.endswith(("attn.wq_a.weight_global_scale", "attn.wkv.weight_global_scale")) for t in unequal)


def test_unknown_architecture_is_one_note(tmp_path):
    """All other rules still run: here, a block scale is gone too."""
    break_py.write(str(nb.MODELS["llama_ct"]), str(tmp_path), "set_no_block")
    expected = json.loads((tmp_path / "expected.json").read_text())
    config = json.loads((tmp_path / "config.json").read_text())
    config["model_type"], config["architectures"] = "nosuchmodel", ["NoSuchModelForCausalLM"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    _, findings = check(tmp_path)
    assert len([f for f in findings if f["severity"] == "note"]) == 1
    assert not list(complaints({**expected, "findings": [f for f in expected["findings"] if f["rule"] == "NB003"]}, findings))


@pytest.mark.parametrize("make", ["absent", "empty", "file"])
def test_unreadable_folder(make, tmp_path):
    folder = tmp_path / "model"
    if make == "empty":
        folder.mkdir()
    elif make == "file":
        folder.write_text("not a folder")
    done = nb.run("check", folder)
    assert done.returncode == 2 and done.stderr + done.stdout


def test_text_report_names_rule_tensor_and_remedy(tmp_path):
    break_py.write(str(nb.MODELS["llama_ct"]), str(tmp_path), "set_no_block")
    missing = json.loads((tmp_path / "expected.json").read_text())["findings"][0]["tensors"][0]
    done = nb.ok("check", tmp_path, status=(2,))
    assert "NB003" in done.stdout and missing in done.stdout
