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
    nb.MODELS[name] for name in ("llama_modelopt", "llama_ct", "llama_mixed", "deepseek_v4_modelopt", "deepseek_v4_ct_nvfp4_attn", "gemma4_moe_ct",
                                "glm4_moe_ct", "minimax_m2_modelopt", "phi3_ct")]
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


# Where the bases above do not show it: experts that share their scales on purpose, a drafting layer behind the last.
@pytest.mark.parametrize("base, defect", [("qwen3_moe_modelopt_export", "config_two_flavours"), ("deepseek_v3_modelopt", "arch_layer_gone")])
def test_defect_beside_an_oddity(base, defect, tmp_path):
    assert defects.judge(nb.MODELS[base], tmp_path / "m", defect) == []


@pytest.mark.parametrize("defect", ["nibbles_swapped", "shape_scale_swizzled_same"])
@pytest.mark.parametrize("base", nb.DEMOS.values(), ids=nb.DEMOS.keys())
def test_order_of_a_trained_models_bytes(base, defect, tmp_path):
    """Each block is sound; what the columns and rows of trained weights have in common tells. trace shows it, too."""
    expected = defects.broken(base, tmp_path / "m", defect)
    _, findings = check(tmp_path / "m")
    wanted = [{**f, "by": "file"} for f in expected["findings"]]
    assert not list(complaints({**expected, "findings": wanted}, findings))
    report = nb.ok_json("trace", tmp_path / "m", "-p", "Hello", "-q")
    assert not list(complaints({**expected, "findings": wanted}, report["findings"]))


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


# ---- with texts (NB111)

def of_inputs(findings):
    return [f for f in findings if f["rule"] == "NB111"]


@pytest.mark.parametrize("name", ["llama_ct", "llama_modelopt", "llama_nvfp4a16", "deepseek_v4_ct_nvfp4_attn", "deepseek_v4_modelopt"])
def test_healthy_scales_fit(name):
    status, findings = check(nb.MODELS[name], "--warmup")
    assert status == 0 and not [f for f in of_inputs(findings) if f["severity"] != "note"]


def test_scales_that_data_mended_fit_it(tmp_path):
    """The seed case, its way out, and the same rule over both: clipped before, fits after. Without texts nothing is said."""
    base, src, out = nb.OWN / "demo" / "modelopt", tmp_path / "src", tmp_path / "out"
    defects.broken(base, src, "seed_attention_clip")
    data = src.parent / "data.jsonl"
    data.write_text("".join(open(base / "calibration.jsonl").readlines()[:40]))
    assert not of_inputs(check(src)[1])
    status, findings = check(src, "--data", data)
    bad = [f for f in of_inputs(findings) if f["severity"] == "error"]
    assert status == 2 and bad and {f["consequences"]["w4a4"]["class"] for f in bad} == {"clipped"}
    assert {f["consequences"]["marlin"]["class"] for f in bad} == {"fine"}
    nb.ok("repair", src, "-o", out, "--data", data, "-q")
    assert not [f for f in of_inputs(check(out, "--data", data)[1]) if f["severity"] == "error"]


def test_experts_without_a_token_are_named(tmp_path):
    """One short text reaches few experts: what it says nothing about is said."""
    (tmp_path / "one.jsonl").write_text('{"text": "a"}\n')
    status, findings = check(nb.MODELS["deepseek_v4_modelopt"], "--data", tmp_path / "one.jsonl")
    notes = of_inputs(findings)
    assert status == 0 and [f["severity"] for f in notes] == ["note"]
    assert notes[0]["tensors"] and all(".experts." in t for t in notes[0]["tensors"])


def test_a_model_that_cannot_run_is_a_warning(tmp_path):
    break_py.write(str(nb.MODELS["llama_ct"]), str(tmp_path / "m"), "set_no_block")
    (tmp_path / "m" / "expected.json").unlink()
    told = of_inputs(check(tmp_path / "m", "--warmup")[1])
    assert len(told) == 1 and told[0]["severity"] == "warning" and told[0]["measured"] and told[0]["remedy"]


def test_texts_that_cannot_be_read(tmp_path):
    done = nb.run("check", nb.MODELS["llama_ct"], "--data", tmp_path / "nosuch.jsonl", "--format", "json")
    assert done.returncode == 2 and not done.stdout and "nosuch.jsonl" in done.stderr
    assert nb.run("check", nb.MODELS["llama_ct"], "--data", "x", "--warmup").returncode == 64


# ---- for code scanning and for people

def sarif(folder, *args):
    """The run of a SARIF log; it has what the standard's schema requires (checked once by hand against the schema of OASIS)."""
    log = json.loads(nb.ok("check", folder, *args, "--format", "sarif", status=(0, 1, 2)).stdout)
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-schema-2.1.0.json") and len(log["runs"]) == 1
    run = log["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    assert run["tool"]["driver"]["name"] == "nibble" and run["invocations"][0]["executionSuccessful"] is True
    assert all(r["id"] and r["shortDescription"]["text"] and r["fullDescription"]["text"] for r in rules)
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] and result["level"] in ("error", "warning", "note")
        assert result["message"]["text"]
    return run


@pytest.mark.parametrize("defect", ["nan_byte_one", "index_shard_missing", "config_absent", "siblings_gate_up", "scheme_strategy_group"])
def test_sarif_says_what_json_says(defect, tmp_path):
    folder = tmp_path / "a model, 100%"
    defects.broken(nb.OWN / "demo" / "compressed-tensors", folder, defect)
    findings, run = check(folder)[1], sarif(folder)
    assert run["originalUriBaseIds"]["MODEL"]["uri"] == folder.as_uri() + "/"
    assert len(findings) == len(run["results"]) > 0
    for f, r in zip(findings, run["results"]):
        assert (f["rule"], f["severity"]) == (r["ruleId"], r["level"])
        at = r["locations"][0] if r["locations"] else {}
        assert [t["fullyQualifiedName"] for t in at.get("logicalLocations", [])] == f["tensors"]
        place = at.get("physicalLocation", {})
        assert place.get("artifactLocation", {}).get("uri") == f["file"]
        region = place.get("region")
        assert (region and [region["byteOffset"], region["byteOffset"] + region["byteLength"]]) == f["bytes"]
        assert r["properties"]["consequences"] == f["consequences"] and r["properties"]["remedy"] == f["remedy"]


def test_sarif_of_a_healthy_folder():
    assert sarif(nb.MODELS["llama_ct"])["results"] == []


def test_html_is_one_page_that_escapes(tmp_path):
    """A name of the file is text, never markup; nothing is loaded from elsewhere; each cause is a card."""
    import shutil
    import st
    folder = tmp_path / "model"
    shutil.copytree(nb.MODELS["llama_ct"], folder)
    file = folder / "model.safetensors"
    head, start = st.header(file)
    name = "model.layers.1.mlp.up_proj.weight_scale"
    evil = "<script src=//x.yz>&amp;</script>123456"
    assert len(evil) == len(name) and name in head
    file.write_bytes(file.read_bytes().replace(name.encode(), evil.encode()))
    page = nb.ok("check", folder, "--format", "html", status=(1, 2)).stdout
    assert page.startswith("<!doctype html>") and page.endswith("</html>\n") and "prefers-color-scheme:dark" in page
    assert "<script" not in page and "&lt;script src=//x.yz&gt;&amp;amp;" in page and "http" not in page and "url(" not in page
    findings = check(folder)[1]
    assert page.count("<section") == len({(f["rule"], f["severity"], f["message"], f["remedy"]) for f in findings}) > 0
    assert all(f["rule"] in page for f in findings)


def test_formats_by_name():
    assert nb.run("check", nb.MODELS["llama_ct"], "--format", "xml").returncode == 64
    assert nb.run("check", "--rules", "--format", "sarif").returncode == 64
