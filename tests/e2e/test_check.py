"""`nibble check`: what break.py breaks is found by the right rule on the right tensors, and nothing else is cried.

Judged here: the structural rules, NB001 to NB008. expected.json of a broken folder is described in tests/fixtures/tools/break.py
and README.md."""
import fnmatch
import importlib.util
import json
import pathlib
import sys

import nb
import pytest

sys.path.insert(0, str(nb.OWN / "tools"))
spec = importlib.util.spec_from_file_location("break_py", nb.OWN / "tools" / "break.py")
break_py = importlib.util.module_from_spec(spec)
spec.loader.exec_module(break_py)

RULES = [f"NB00{i}" for i in range(1, 9)]
CODES = {"error": 2, "warning": 1, "note": 0}
CLASSES = {"fine", "clipped", "zero", "wrong", "nan", "prompt", "undefined", "refused"}
GROUPS = ("file_", "index_", "set_", "shape_", "dtype_", "expert_", "name_", "arch_", "healthy_")
# A folder of each layout that holds NVFP4 linears.
BASES = [nb.OWN / "demo" / "modelopt", nb.OWN / "demo" / "compressed-tensors"] + [
    path for name, path in nb.MODELS.items()
    if name in ("llama_modelopt", "llama_ct") or name.startswith("deepseek_v4") and name not in ("deepseek_v4_bf16", "deepseek_v4_mxfp4")]


def check(folder):
    """(exit status, findings); the report is well formed and the status follows from it."""
    done = nb.ok("check", folder, "--format", "json", status=(0, 1, 2))
    report = json.loads(done.stdout)
    findings = report["findings"]
    assert isinstance(report["summary"], dict)
    for f in findings:
        assert {"rule", "severity", "tensors", "file", "bytes", "measured", "expected", "consequences", "remedy", "repairable",
                "message"} <= f.keys()
        assert isinstance(f["tensors"], list) and isinstance(f["repairable"], bool) and f["message"] and f["remedy"]
        assert f["bytes"] is None or len(f["bytes"]) == 2 and f["bytes"][0] <= f["bytes"][1]
        assert all(c["class"] in CLASSES and c["text"] for c in f["consequences"].values())
    assert done.returncode == max([CODES[f["severity"]] for f in findings], default=0)
    return done.returncode, findings


def complaints(expected, findings):
    """What is wrong with the findings, as sentences."""
    for want in expected["findings"]:
        if want["rule"] not in RULES or want["by"] != "file":
            continue
        same = [f for f in findings if f["rule"] == want["rule"]]
        if not same:
            yield f"{want['rule']} is not reported"
            continue
        named = {t for f in same for t in f["tensors"]}
        lost = [t for t in want["tensors"] if t not in named]
        if lost:
            yield f"{want['rule']} does not name {lost[0]} (of {len(lost)})"
        if "names_like" in want and not fnmatch.filter(named, "*" + want["names_like"]):
            yield f"{want['rule']} names nothing like {want['names_like']}"
        files = {pathlib.PurePath(f["file"]).name for f in same if f["file"]}
        for name in want.get("files", []):
            if pathlib.PurePath(name).name not in files:
                yield f"{want['rule']} does not say that {name} is at fault"
        if want["severity"] not in {f["severity"] for f in same if not want["tensors"] or set(f["tensors"]) & set(want["tensors"])}:
            yield f"{want['rule']} is no {want['severity']}"
    for f in findings:
        if f["rule"] in expected["must_not"] and f["severity"] != "note":
            yield f"false alarm: {f['rule']} {f['tensors'][:2]} {f['message']}"


@pytest.mark.parametrize("defect", [name for name in break_py.DEFECTS if name.startswith(GROUPS)])
def test_defect(defect, tmp_path):
    """On every base that can show it."""
    wrong, shown = [], 0
    for base in BASES:
        out = tmp_path / base.name
        try:
            break_py.write(str(base), str(out), defect)
        except break_py.NotApplicable:
            continue
        shown += 1
        expected = json.loads((out / "expected.json").read_text())
        (out / "expected.json").unlink()
        wrong += [f"{base.name}: {text}" for text in complaints(expected, check(out)[1])]
    assert shown > 0, "no base can show it"
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", [pytest.param(p, id=n) for n, p in {**nb.MODELS, **nb.DEMOS, "models/demo": nb.DEMO}.items()])
def test_healthy_folder_is_clean(folder):
    status, findings = check(folder)
    assert status == 0 and not [f for f in findings if f["severity"] != "note"]


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
