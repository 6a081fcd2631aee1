"""`nibble repair`: what break.py breaks is mended as far as the file proves how, and only that; the copy passes check and a forward
pass; --undo gives the broken folder back byte for byte; nothing half-written is ever left under the final name."""
import copy
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

import defects
import nb

break_py = defects.break_py
from folder import Folder  # noqa: E402  (break.py's folder, found through defects)
import fp4  # noqa: E402

# How often the repair is killed; the issue asks for a hundred once.
KILLS = int(os.environ.get("NB_KILLS", 20))
BASES = [nb.MODELS[n] for n in ("llama_ct", "llama_modelopt", "deepseek_v4_ct_nvfp4_attn", "deepseek_v4_modelopt")]
APART = [nb.MODELS["mixtral_ct"]]  # whose experts do not share their input scales, unlike those above

# What the weights of the mended folder must be: "equal" to the healthy ones; "ulp" of them (a reciprocal rounds twice); "broken": what
# the broken file's own numbers mean, up to the error that repair states; "nan": healthy but where the NaN bytes were.
MENDED = {
    "nan_byte_one": "nan", "nan_byte_negative": "nan", "nan_byte_expert": "nan", "sign_one": "broken",
    "inverted_weight_one": "ulp", "inverted_weight_all": "ulp", "inverted_input_one": "equal", "inverted_input_all": "equal",
    "seed_attention_wrong_way": "equal",
    "siblings_gate_up_small": "broken", "siblings_gate_up": "broken", "siblings_qkv": "broken", "siblings_qa_kv": "broken",
    "siblings_input_gate_up": "equal",
    "input_missing_expert": "equal", "input_scale_zero_expert": "equal", "input_scale_infinite_expert": "equal",
    "shape_scale_swizzled": "equal", "shape_scale_swizzled_2d": "equal", "shape_scale_padded": "equal", "dtype_scale_u8": "equal",
    "dtype_global_bf16": "broken", "name_scale_suffix": "equal", "name_expert_index_last": "equal",
    "index_misses_tensor": "equal", "index_total_size": "equal", "index_not_json": "equal",
    "config_absent": "equal", "config_method_unknown": "equal", "config_method_other_flavour": "equal", "config_algo_fp8": "equal",
    "ignore_quantised": "equal", "ignore_forgets_bf16": "equal", "ignore_no_match": "equal", "ignore_prefix": "equal",
    "scheme_strategy_group": "equal", "scheme_group_size_32": "equal", "scheme_symmetric_false": "equal", "scheme_type_int": "equal",
    "scheme_mo_group_size": "equal", "scheme_mo_algo_unknown": "equal", "scheme_format_contradicts": "equal", "groups_overlap": "equal",
    "tie_with_head": "equal", "mtp_missing": "equal", "hf_config_algo": "equal", "input_missing_everywhere": "equal",
}
# Mended where a fused sibling or another expert tells the value, or where one format is in the file; refused elsewhere.
DEPENDS = {"config_absent", "config_method_unknown", "config_method_other_flavour", "input_missing_everywhere", "hf_config_algo",
           "config_algo_fp8"}
REFUSED = ["default_one", "default_half_amax", "default_identical", "zero_scale_block", "zero_scale_rows", "subnormal_scales", "weight_zero",
           "weight_constant", "weight_random", "weights_clipped", "nan_norm", "nan_embedding", "block_max_low", "set_no_block",
           "set_no_wglobal", "expert_gone", "shape_scale_transposed", "shape_codes_half", "name_fused_underscore", "arch_final_norm_gone",
           "index_shard_missing", "file_truncated_half", "tie_without_head", "input_missing_layer"]


def broken(base, defect, folder):
    """The broken folder; None where the base cannot show the defect. expected.json is taken out."""
    try:
        break_py.write(str(base), str(folder), defect)
    except break_py.NotApplicable:
        return None
    expected = json.loads((folder / "expected.json").read_text())
    (folder / "expected.json").unlink()
    return expected


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def scalar(t):
    """A tensor of one float. (numpy 1.24 cannot view an array without dimensions as another type, so it gets one first.)"""
    one = np.atleast_1d(t.array)
    return np.float32((fp4.bf16_decode(one) if t.dtype == "BF16" else one).reshape(-1)[0])


def linears(folder):
    """{module: (weights, block scale bytes)} of the NVFP4 linears, by break.py's own reader."""
    f, out = Folder(str(folder)), {}
    for l in f.linears():
        g = scalar(f[l.wglobal])
        with np.errstate(all="ignore"):
            out[l.module] = fp4.dequantise(f[l.codes].array, f[l.block].array, 1 / g if l.ct else g), f[l.block].array
    return out


def repair(*args, status=(0, 1)):
    return json.loads(nb.ok("repair", *args, "--format", "json", "-q", status=status).stdout)


def far(have, want):
    """The largest relative difference; exact zeros must stay zeros."""
    scale = np.maximum(np.abs(want), np.float32(1e-30))
    return float((np.abs(have - want) / scale).max(initial=0))


def compare(kind, report, src, base, out):
    healthy, mended = linears(base), linears(out)
    stated = max((a["error"] or 0 for a in report["applied"]), default=0)
    reference = linears(src) if kind == "broken" else healthy
    for module, (want, _) in reference.items():
        if module not in mended:
            continue                                       # break.py itself made it BF16
        have, scales = mended[module]
        if kind == "nan":
            was = linears(src)[module][1]
            hit = np.repeat(was & 0x7f == 0x7f, 16, axis=1)
            assert (scales[was & 0x7f == 0x7f] == 0x7e).all()
            assert np.array_equal(have[~hit], want[~hit]), module
        elif kind == "equal":
            assert np.array_equal(have, want), module
        else:
            assert far(have, want) <= (3e-7 if kind == "ulp" else stated + 3e-7), module


@pytest.mark.parametrize("defect", MENDED)
def test_mended(defect, tmp_path):
    shown = mended = 0
    for base in BASES:
        src, out, back = tmp_path / base.name / "src", tmp_path / base.name / "out", tmp_path / base.name / "back"
        src.parent.mkdir()
        expected = broken(base, defect, src)
        if not expected:
            continue
        shown += 1
        before = files(src)
        report = repair(src, "-o", out)
        assert files(src) == before, "the source was changed"
        if defect in DEPENDS and report["refused"]:
            assert report["refused"][0]["why"]
            continue
        assert not report["refused"], report["refused"]
        assert report["written"] and {a["rule"] for a in report["applied"]} & {f["rule"] for f in expected["findings"]}
        assert "finite" in report["forward"]
        assert nb.run("check", out).returncode == 0
        compare(MENDED[defect], report, src, base, out)
        nb.ok("repair", "--undo", out, "-o", back)
        assert files(back) == before
        mended += 1
    assert shown and mended, f"shown on {shown} bases"


@pytest.mark.parametrize("defect", REFUSED)
def test_refused(defect, tmp_path):
    """The reason is told; when nothing else was to be done nothing is written."""
    shown = 0
    for base in APART if defect == "default_identical" else BASES:
        src, out = tmp_path / f"{base.name}-src", tmp_path / f"{base.name}-out"
        if not broken(base, defect, src):
            continue
        shown += 1
        report = repair(src, "-o", out, status=(1,))
        assert report["refused"] and all(r["why"] for r in report["refused"])
        assert report["written"] == out.exists() == bool(report["applied"])
    assert shown


def test_global_scale_of_a_fused_linear_comes_from_its_sibling(tmp_path):
    src, out = tmp_path / "src", tmp_path / "out"
    f = Folder(str(nb.MODELS["llama_ct"]))
    up = next(l for l in f.linears() if l.kind == "up")
    f[up.wglobal].array[...] = np.float32("nan")
    f.save(str(src))
    report = repair(src, "-o", out, status=(0,))
    assert report["applied"][0]["tensors"] == [up.wglobal]
    compare("equal", report, src, nb.MODELS["llama_ct"], out)


@pytest.mark.parametrize("name", ["llama_ct", "llama_modelopt", "deepseek_v4_modelopt"])
@pytest.mark.parametrize("args", [(), ("--only", "NB101"), ("--dry-run",)])
def test_healthy_folder_needs_no_repair(name, args, tmp_path):
    """No second copy of a sound folder: it says so and writes nothing."""
    out = tmp_path / "out"
    report = repair(nb.MODELS[name], "-o", out, *args, status=(0,))
    assert not report["applied"] and not report["refused"] and not report["written"]
    done = nb.ok("repair", nb.MODELS[name], "-o", out, *args)
    assert "nothing to repair" in done.stdout and "nothing was written" in done.stdout
    assert not list(tmp_path.iterdir())


def test_a_dry_run_says_what_would_be_done(tmp_path):
    src = tmp_path / "src"
    broken(nb.MODELS["llama_ct"], "nan_byte_one", src)
    text = nb.ok("repair", src, "--dry-run", "-q").stdout
    assert "would mend NB101" in text and "mended" not in text
    broken(nb.MODELS["llama_ct"], "nan_norm", tmp_path / "norm")
    text = nb.ok("repair", tmp_path / "norm", "--dry-run", "-q", status=(1,)).stdout
    assert "would refuse NB112" in text and "\nrefused" not in text


def test_untouched_tensors_and_files_stay(tmp_path):
    """One byte of a shard changes; metadata, header and all other files stay as they are."""
    src, out = tmp_path / "src", tmp_path / "out"
    broken(nb.MODELS["llama_modelopt"], "nan_byte_one", src)
    (src / "extra").mkdir()
    (src / "extra" / "note.txt").write_text("mine")
    before = files(src)
    for cache in ("nibble-packed.cache", "nibble-packed.cache.tmp-12-0"):  # of the broken weights, and of no use beside others
        (src / cache).write_text("nibble packed")
    repair(src, "-o", out, status=(0,))
    after = files(out)
    assert not [n for n in after if "packed.cache" in n]
    changed = [n for n in before if before[n] != after[n]]
    assert len(changed) == 1 and changed[0].endswith(".safetensors")
    pairs = [(a, b) for a, b in zip(before[changed[0]], after[changed[0]]) if a != b]
    assert pairs == [(0x7f, 0x7e)] and len(before[changed[0]]) == len(after[changed[0]])


def test_metadata_survives_a_new_header(tmp_path):
    src, out = tmp_path / "src", tmp_path / "out"
    broken(nb.MODELS["llama_ct"], "name_scale_suffix", src)
    repair(src, "-o", out, status=(0,))
    raw = (out / "model.safetensors").read_bytes()
    assert json.loads(raw[8:8 + int.from_bytes(raw[:8], "little")])["__metadata__"] == {"format": "pt"}


def test_only_and_dry_run(tmp_path):
    src, out = tmp_path / "src", tmp_path / "out"
    base = Folder(str(nb.MODELS["llama_ct"]))
    first, second = base.linears()[0], next(l for l in base.linears() if l.kind == "down")
    base[first.block].array[0, 0] = 0x7f
    base[second.wglobal].array[...] = 1 / base[second.wglobal].array
    base.save(str(src))
    plan = repair(src, "--dry-run", status=(0,))
    assert {a["rule"] for a in plan["applied"]} == {"NB101", "NB106"} and not plan["written"] and list(tmp_path.iterdir()) == [src]
    report = repair(src, "-o", out, "--only", "NB101", status=(1,))
    assert {a["rule"] for a in report["applied"]} == {"NB101"}
    assert {r["rule"] for r in report["refused"]} == {"NB106"}
    again = repair(out, "-o", tmp_path / "both", status=(0,))
    assert {a["rule"] for a in again["applied"]} == {"NB106"}
    # Undone once and twice: the earlier log is kept in the later one.
    nb.ok("repair", "--undo", tmp_path / "both", "-o", tmp_path / "once")
    assert files(tmp_path / "once") == files(out)
    nb.ok("repair", "--undo", tmp_path / "once", "-o", tmp_path / "twice")
    assert files(tmp_path / "twice") == files(src)


def test_only_makes_no_new_fault(tmp_path):
    """An expert's w3 lacks its input scale and its w1 has 1.0, which nobody measured. Filling in the other experts' maximum would
    leave two scales where loaders want one (NB107): refused where NB107 may not be mended, too."""
    src = tmp_path / "src"
    f = Folder(str(nb.MODELS["deepseek_v4_modelopt"]))
    e = "layers.1.ffn.experts.2."
    f[e + "w1.input_scale"].array[...] = 1
    f.remove(e + "w3.input_scale")
    f.save(str(src))
    report = repair(src, "-o", tmp_path / "out", "--only", "NB105", status=(1,))
    assert not report["applied"] and any("NB107" in r["why"] and e + "w3.input_scale" in r["tensors"] for r in report["refused"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("base", ["llama_ct", "llama_modelopt"])
@pytest.mark.parametrize("which", ["gate", "up"])
@pytest.mark.parametrize("larger", [1.5, 0.75])
@pytest.mark.parametrize("lost", ["wglobal", "block", "codes"])
def test_a_group_of_which_one_lacks_a_part_is_left_alone(base, which, larger, lost, tmp_path):
    """gate's global scale differs from up's, and one of them has lost a tensor: neither check nor repair may trip over what is not there."""
    src = tmp_path / "src"
    f = Folder(str(nb.MODELS[base]))
    group = {l.kind: l for l in f.linears() if ".layers.0.mlp." in l.module}
    f[group["gate"].wglobal].array[...] *= np.float32(larger)
    f.remove(getattr(group[which], lost))
    f.save(str(src))
    assert {"NB003", "NB007"} & {f["rule"] for f in defects.check(src)[1]}
    report = json.loads(nb.run("repair", src, "-o", tmp_path / "out", "--format", "json").stdout)
    assert not {group["gate"].wglobal, group["up"].wglobal} & {t for done in report["applied"] for t in done["tensors"]}


def stray_spellings(f):
    """Two tensors that loaders drop, and that both would have to be called like the one that is missing."""
    name = "model.layers.0.mlp.down_proj.weight_scale"
    f.add("layers.0.mlp.down_proj.weight_scale", copy.deepcopy(f[name]))
    f.rename(name, "el.layers.0.mlp.down_proj.weight_scale")


def weight_beside_codes(f):
    f.add("model.layers.0.mlp.down_proj.weight", copy.deepcopy(f["model.layers.0.input_layernorm.weight"]))


@pytest.mark.parametrize("edit, args", [(stray_spellings, ()), (weight_beside_codes, ("--dequant", "*layers.0.mlp.down_proj"))])
def test_two_tensors_of_one_name_are_not_written(edit, args, tmp_path):
    f = Folder(str(nb.MODELS["llama_ct"]))
    edit(f)
    f.save(str(tmp_path / "src"))
    done = nb.run("repair", tmp_path / "src", "-o", tmp_path / "out", *args)
    assert done.returncode == 2 and "two tensors" in done.stderr and "model.layers.0.mlp.down_proj.weight" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_config_group_that_is_no_object_is_refused(tmp_path):
    """Not told as memory that ran out, by neither verb."""
    src = tmp_path / "src"
    shutil.copytree(nb.MODELS["llama_modelopt"], src)
    config = json.loads((src / "config.json").read_text())
    config["quantization_config"] |= {"quant_method": None, "config_groups": {"group_0": []}}
    (src / "config.json").write_text(json.dumps(config))
    found = [f for f in defects.check(src)[1] if f["rule"] == "NB201"]
    assert found and not found[0]["repairable"]
    report = repair(src, "-o", tmp_path / "out", status=(1,))
    assert any("group is no object" in r["why"] for r in report["refused"] if r["rule"] == "NB201")


def test_gate_and_up_are_filled_alike(tmp_path):
    """Both input scales of one expert are gone, and gate and up of the other experts differ: one number for both."""
    src = tmp_path / "src"
    f = Folder(str(nb.MODELS["deepseek_v4_modelopt"]))
    e = "layers.1.ffn.experts.2."
    for part in ("w1", "w3"):
        f.remove(f"{e}{part}.input_scale")
    f["layers.1.ffn.experts.0.w3.input_scale"].array[...] *= np.float32(9)
    f.save(str(src))
    repair(src, "-o", tmp_path / "out", "--only", "nb105,nb107")
    out = Folder(str(tmp_path / "out"))
    assert scalar(out[e + "w1.input_scale"]) == scalar(out[e + "w3.input_scale"])


@pytest.mark.parametrize("name", ["llama_ct", "llama_modelopt", "deepseek_v4_ct_nvfp4_attn"])
def test_dequantised_attention(name, tmp_path):
    """BF16 values of the dequantised weights, both dialects of the config name them, the model answers as before."""
    base, out, back = nb.MODELS[name], tmp_path / "out", tmp_path / "back"
    report = repair(base, "-o", out, "--dequant", "*.self_attn.*_proj", status=(0,))
    names = report["applied"][0]["tensors"]
    assert names and all(".self_attn." in n for n in names)
    healthy, f = linears(base), Folder(str(out))
    for module in names:
        assert f[module + ".weight"].dtype == "BF16" and module + ".weight_scale" not in f
        want = fp4.bf16_decode(fp4.bf16_encode(healthy[module][0]))
        assert np.array_equal(f[module + ".weight"].floats(), want)
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert set(names) <= set(config["ignore"])
    if (out / "hf_quant_config.json").exists():
        assert set(names) <= set(json.loads((out / "hf_quant_config.json").read_text())["quantization"]["exclude_modules"])
    nb.ok("repair", "--undo", out, "-o", back)
    assert files(back) == files(base)


def scales_file(path, base, factor=2.0):
    """What calibrate writes: an amax a linear, here `factor` times what the file's scale stands for."""
    import st
    f = Folder(str(base))
    amax = {}
    for l in f.linears():
        v = float(f[l.iglobal].floats().reshape(-1)[0])
        amax[l.module + ".input_amax"] = np.array(factor * 2688 * (1 / v if l.ct else v), np.float32)
    st.save(path, amax)
    return amax


@pytest.mark.parametrize("name", ["llama_ct", "llama_modelopt"])
def test_measured_scales(name, tmp_path):
    base, out = nb.MODELS[name], tmp_path / "out"
    amax = scales_file(tmp_path / "s.safetensors", base)
    repair(base, "-o", out, "--scales", tmp_path / "s.safetensors", status=(0,))
    f = Folder(str(out))
    for l in f.linears():
        v = float(f[l.iglobal].floats().reshape(-1)[0])
        # Fused siblings have one input, so the largest of theirs.
        top = max(float(a) for n, a in amax.items() if n.rpartition(".")[0].rpartition(".")[0] == l.parent
                  and (n == l.module + ".input_amax" or {l.kind, n.split(".")[-2].split("_")[0]} <= {"q", "k", "v"}
                       or {l.kind, n.split(".")[-2].split("_")[0]} <= {"gate", "up"}))
        assert 2688 * (1 / v if l.ct else v) == pytest.approx(top, rel=1e-6)


def test_measured_scales_mend_what_was_never_measured(tmp_path):
    src, out, base = tmp_path / "src", tmp_path / "out", nb.MODELS["llama_ct"]
    expected = broken(base, "default_one", src)
    scales_file(tmp_path / "s.safetensors", base, 1.0)
    report = repair(src, "-o", out, "--scales", tmp_path / "s.safetensors", "--only", "NB108", status=(0,))
    applied = [a for a in report["applied"] if a["rule"] == "NB108"]
    assert {t for a in applied for t in a["tensors"]} == set(expected["findings"][0]["tensors"])


def test_measured_scales_beside_only(tmp_path):
    """--only narrows what check found; it does not drop the scales that --scales asks for, or says so."""
    src, base = tmp_path / "src", nb.MODELS["llama_ct"]
    broken(base, "sign_one", src)
    scales = tmp_path / "s.safetensors"
    n = len(scales_file(scales, base))
    for rules in ("NB102", "NB111", "NB104,NB111"):
        report = repair(src, "-o", tmp_path / rules, "--scales", scales, "--only", rules, status=(0, 1))
        assert sum(len(a["tensors"]) for a in report["applied"] if not a["rule"]) == n, rules
        assert any(a["rule"] == "NB102" for a in report["applied"]) == (rules == "NB102")
    report = repair(src, "-o", tmp_path / "none", "--scales", scales, "--only", "NB104", status=(1,))
    assert not report["written"] and any("--only" in r["why"] for r in report["refused"]) and not (tmp_path / "none").exists()


def test_data_is_measured_on_the_way(tmp_path):
    src, out = tmp_path / "src", tmp_path / "out"
    broken(nb.MODELS["llama_ct"], "default_one", src)
    (tmp_path / "data.jsonl").write_text(json.dumps({"text": "a few words, and then some more of them"}) + "\n")
    report = repair(src, "-o", out, "--data", tmp_path / "data.jsonl", status=(0, 1))
    assert any(a["rule"] == "NB108" for a in report["applied"]) and not (out / "scales.safetensors").exists()


# ---- what check says of repair

@pytest.mark.parametrize("base", ["llama_modelopt", "deepseek_v4_modelopt"])
@pytest.mark.parametrize("defect", sorted({*MENDED, *REFUSED}))
def test_repairable_is_what_repair_does(defect, base, tmp_path):
    """A finding that `check` calls repairable is gone from the mended copy, and one that it does not stays and is refused."""
    src, out = tmp_path / "src", tmp_path / "out"
    if not broken(nb.MODELS[base], defect, src):
        pytest.skip(f"{base} cannot show {defect}")
    found = [f for f in json.loads(nb.ok("check", src, "--format", "json", "-q", status=(0, 1, 2)).stdout)["findings"]
             if f["severity"] != "note"]
    report = repair(src, "-o", out)
    after = report["check"]["findings"] if report["written"] else found
    left = {(f["rule"], t) for f in after if f["severity"] != "note" for t in f["tensors"] or [f["file"]]}
    for f in found:
        names = {(f["rule"], t) for t in f["tensors"] or [f["file"]]}
        assert f["repairable"] == (not names & left), (f["rule"], f["tensors"][:2], f["message"], f["repairable"])
    text = nb.ok("check", src, "-q", status=(0, 1, 2)).stdout
    assert (f"nibble repair {src} -o OUT" in text) == any(f["repairable"] or f["rule"] in ("NB104", "NB105", "NB108") for f in found)


def test_the_wrong_way_round_and_never_measured(tmp_path):
    """Every expert's down projection has one input scale, and all scales stand the wrong way round: that they were not measured is
    true of the reciprocals, too. The remedies go together, and the repair says how to measure, not to repair again."""
    src, out = tmp_path / "src", tmp_path / "out"
    f = Folder(str(nb.MODELS["deepseek_v4_modelopt"]))
    for l in f.linears():
        v = f[l.iglobal].array
        v[...] = 1 / (np.float32(0.001) if ".experts." in l.module and l.module.endswith("w2") else v)
    f.save(str(src))
    found = json.loads(nb.ok("check", src, "--format", "json", "-q", status=(2,)).stdout)["findings"]
    both = [f for f in found if f["rule"] == "NB108"]
    assert both and all(f["remedy"].startswith("mend NB106") and not f["repairable"] for f in both)
    refused = repair(src, "-o", out, status=(1,))["refused"]
    assert refused and all("once more" not in r["why"] and "calibrate" in r["why"] for r in refused)


@pytest.mark.parametrize("base", ["llama_ct", "deepseek_v4_modelopt"])
def test_one_cause_is_one_paragraph(base, tmp_path):
    """However many linears show it, with whatever numbers: the text shows the least and the greatest."""
    for defect in ("inverted_weight_all", "inverted_input_all"):
        src = tmp_path / defect
        broken(nb.MODELS[base], defect, src)
        text = nb.ok("check", src, "-q", status=(2,)).stdout
        assert text.count("\nerror NB106") + text.startswith("error NB106") <= 2
        assert re.search(r"remedy +store its reciprocal, [0-9.e-]+\.\.[0-9.e-]+", text), text


# ---- targets, disks and deaths

def clear(args, *words):
    done = nb.run("repair", *args)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert all(w in done.stderr for w in words), done.stderr


def test_targets_that_are_refused(tmp_path):
    src = tmp_path / "src"
    shutil.copytree(nb.MODELS["llama_ct"], src)
    (tmp_path / "there").mkdir()
    before = files(tmp_path)
    clear([src, "-o", src], "source")
    clear([src, "-o", f"{src}/../src/"], "source")
    clear([src, "-o", tmp_path / "there"], "exists")
    clear([src, "-o", src / "inside"], "inside")
    clear([src, "-o", tmp_path / "no" / "parent"], "make")
    clear([src, "-o", "/proc/nibble-repair"], "/proc/nibble-repair")
    clear([tmp_path / "nosuch", "-o", tmp_path / "out"], "nosuch")
    clear(["--undo", src, "-o", tmp_path / "back"], "log")
    assert files(tmp_path) == before and sorted(p.name for p in tmp_path.iterdir()) == ["src", "there"]


def test_disk_full_leaves_nothing(tmp_path):
    """A limit on the size of files stands for the full disk: the same write fails."""
    src = tmp_path / "src"
    broken(nb.MODELS["llama_ct"], "nan_byte_one", src)

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    done = subprocess.run([nb.BIN, "repair", src, "-o", tmp_path / "out"], capture_output=True, text=True, preexec_fn=limit,
                          restore_signals=False)
    assert done.returncode == 2 and "model.safetensors" in done.stderr and done.stderr.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["src"]


def on_a_small_disk(disk, kilobytes, command, prepare="true"):
    """Runs a command where the folder `disk` is a file system of its own of that size, which goes with the command. stdout ends with what
    is on the disk afterwards."""
    script = f'mount -t tmpfs -o size={kilobytes}k tmpfs "$1" && {prepare} || exit 99; shift; "$@"; code=$?; echo; ls -A {disk}; exit $code'
    done = subprocess.run(["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", disk, *command], capture_output=True, text=True)
    if done.returncode in (1, 99) and ("unshare" in done.stderr or "mount" in done.stderr):
        pytest.skip(f"no file system of its own can be mounted here: {done.stderr.strip()}")
    return done


def test_a_disk_that_is_really_full(tmp_path):
    """At whichever byte it fills up (shard, config, log): one line that says so, nothing left, and with room enough all is well."""
    src, disk = tmp_path / "src", tmp_path / "disk"
    broken(nb.MODELS["llama_ct"], "nan_byte_one", src)
    disk.mkdir()
    command = [nb.BIN, "repair", src, "-o", disk / "out", "-q"]
    repair(src, "-o", tmp_path / "out", status=(0,))
    pages = sum(-(-len(raw) // 4096) for raw in files(tmp_path / "out").values())
    for short in (1, 2, 3, 5, 8, pages // 4, pages // 2, pages - 1):
        kilobytes = 4 * (pages - short)
        done = on_a_small_disk(disk, kilobytes, command)
        assert done.returncode == 2 and "No space left" in done.stderr and "free space" in done.stderr and done.stderr.count("\n") == 1, done
        assert not done.stdout.strip(), f"left behind on a disk of {kilobytes} kB: {done.stdout}"
    assert on_a_small_disk(disk, 4096, command).stdout.split()[-1] == "out"
    undo = [nb.BIN, "repair", "--undo", tmp_path / "out", "-o", disk / "back", "-q"]
    done = on_a_small_disk(disk, 2 * pages, undo)
    assert done.returncode == 2 and "No space left" in done.stderr and not done.stdout.strip()


def test_a_target_that_cannot_be_written(tmp_path):
    src, disk = tmp_path / "src", tmp_path / "disk"
    broken(nb.MODELS["llama_ct"], "nan_byte_one", src)
    disk.mkdir()
    done = on_a_small_disk(disk, 4096, [nb.BIN, "repair", src, "-o", disk / "out", "-q"], 'mount -o remount,ro "$1"')
    assert done.returncode == 2 and "Read-only" in done.stderr and str(disk / "out") in done.stderr and "choose a place" in done.stderr
    assert done.stderr.count("\n") == 1 and not done.stdout.strip()


def test_usage(tmp_path):
    src = nb.MODELS["llama_ct"]
    for args in ([], [src], [src, "-o", "x", "--only", "NB999"], [src, src, "-o", "x"], ["--undo", src, "-o", "x", "--dry-run"],
                 [src, "-o", "x", "--data", "d", "--scales", "s"]):
        assert nb.run("repair", *args).returncode == 64
    assert nb.run("repair", src, "-o", tmp_path / "x", "--dequant", "nosuch*").returncode == 2
    assert not list(tmp_path.iterdir())


def test_undo_of_a_changed_copy_is_refused(tmp_path):
    src, out = tmp_path / "src", tmp_path / "out"
    broken(nb.MODELS["llama_ct"], "nan_byte_one", src)
    repair(src, "-o", out, status=(0,))
    raw = bytearray((out / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (out / "model.safetensors").write_bytes(raw)
    clear(["--undo", out, "-o", tmp_path / "back"], "changed after the repair")
    assert not (tmp_path / "back").exists()


def test_kill_at_random_moments_leaves_no_half_folder(tmp_path):
    """Under the final name there is nothing, or a folder that passes."""
    src, out = tmp_path / "src", tmp_path / "out"
    broken(nb.DEMOS["modelopt"], "nan_byte_one", src)
    command = [nb.BIN, "repair", src, "-o", out, "--dequant", "*.attn.*", "-q"]
    start = time.monotonic()
    assert subprocess.run(command, capture_output=True).returncode in (0, 1)
    whole = time.monotonic() - start
    shutil.rmtree(out)
    rng, killed, tries = random.Random(4), 0, 0
    while killed < KILLS:
        p = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait = rng.random() * whole
        time.sleep(wait)
        p.send_signal(signal.SIGKILL)
        tries += 1
        if p.wait() == -signal.SIGKILL:
            killed += 1
        else:
            whole = (whole + wait) / 2  # over before: the first run had to read the files from a disk, say
            assert tries < 20 * KILLS
        if out.exists():
            assert nb.run("check", out).returncode in (0, 1) and (out / "nibble_repair.json").exists()
            shutil.rmtree(out)
        for left in tmp_path.glob("out.tmp-*"):
            shutil.rmtree(left)


# ---- diff

def test_diff_of_folders(tmp_path):
    src, out, base = tmp_path / "src", tmp_path / "out", nb.MODELS["llama_ct"]
    broken(base, "sign_one", src)
    repair(src, "-o", out, status=(0,))
    same = nb.ok_json("diff", base, base)["tensors"]
    assert {t["name"] for t in same} == set(Folder(str(base)).names())
    assert all(t["bytes_changed"] == 0 and t["cosine"] in (1, None) for t in same)
    changed = {t["name"]: t for t in nb.ok_json("diff", src, out)["tensors"] if t["bytes_changed"]}
    codes = next(n for n in changed if n.endswith("weight_packed"))
    assert set(changed) == {codes, codes.replace("weight_packed", "weight_scale")}
    assert changed[codes]["cosine"] == pytest.approx(1, abs=1e-12) and changed[codes]["max_abs"] == 0
    assert 1 <= changed[codes]["bytes_changed"] <= 8


def test_diff_across_formats(tmp_path):
    """A linear in BF16 against the same in NVFP4: values are compared, members that are gone are named."""
    base, out = nb.MODELS["llama_ct"], tmp_path / "out"
    repair(base, "-o", out, "--dequant", "model.layers.0.self_attn.q_proj", "--dequant", "model.layers.0.self_attn.k_proj", "--dequant",
           "model.layers.0.self_attn.v_proj", status=(0,))
    rows = {t["name"]: t for t in nb.ok_json("diff", base, out)["tensors"]}
    q = rows["model.layers.0.self_attn.q_proj.weight_packed"]
    assert 0.999 < q["cosine"] <= 1 and 0 < q["max_abs"] < 0.01
    assert rows["model.layers.0.self_attn.q_proj.weight_scale"]["only"] == "a"


def test_diff_of_traces(tmp_path):
    row = {"layer": 0, "module": "layers.0.q", "operator": "linear", "in_amax": 8.0, "out_amax": 2.0, "nonfinite": 0}

    def first(*amax):
        """The first difference from three rows whose out_amax is 2, 4 and 6."""
        names = ["layers.0.q", "layers.0.o", "layers.1.q"]
        for file, values in (("a.json", (2.0, 4.0, 6.0)), ("b.json", amax)):
            (tmp_path / file).write_text(json.dumps({"rows": [{**row, "module": n, "out_amax": v} for n, v in zip(names, values)]}))
        report = nb.ok_json("diff", tmp_path / "a.json", tmp_path / "b.json")
        assert [r["module"] for r in report["rows"]] == names
        return report["first_difference"] and (report["first_difference"]["module"], report["first_difference"]["out_amax"])
    assert first(2, 4, 6) is None
    assert first(2, 5, 7) == ("layers.0.o", [4, 5])
    assert first(2.5, "nan", "nan") == ("layers.0.o", [4, "nan"])  # not the rounding, if it is that, of the row before
    (tmp_path / "c.json").write_text("{}")
    assert nb.run("diff", tmp_path / "a.json", tmp_path / "c.json").returncode == 1


def test_diff_names_config_keys(tmp_path):
    """Equal tensors under different configs are not the same model."""
    base, other = nb.MODELS["llama_modelopt"], tmp_path / "other"
    shutil.copytree(base, other)
    config = json.loads((base / "config.json").read_text())
    config["quantization_config"]["quant_algo"] = "FP8"
    config["extra"] = [1, 2]
    (other / "config.json").write_text(json.dumps(config))
    quant = json.loads((base / "hf_quant_config.json").read_text())
    del quant["quantization"]["quant_algo"]
    (other / "hf_quant_config.json").write_text(json.dumps(quant))
    report = nb.ok_json("diff", base, other)
    assert report["changed"] == 0
    assert sorted((f["file"], f["key"], f["a"], f["b"], f.get("only")) for f in report["files"]) == [
        ("config.json", "extra", None, [1, 2], "b"), ("config.json", "quantization_config.quant_algo", "NVFP4", "FP8", None),
        ("hf_quant_config.json", "quantization.quant_algo", "NVFP4", None, "a")]
    text = nb.ok("diff", base, other).stdout
    assert 'config.json  quantization_config.quant_algo: "NVFP4" / "FP8"' in text and "0 of" in text
    assert nb.ok_json("diff", base, base)["files"] == []
    (other / "hf_quant_config.json").unlink()
    assert {"file": "hf_quant_config.json", "key": None, "a": None, "b": None, "only": "a"} in nb.ok_json("diff", base, other)["files"]
    # Other white space alone is no difference.
    (tmp_path / "same").mkdir()
    for f in base.iterdir():
        shutil.copy(f, tmp_path / "same")
    (tmp_path / "same" / "config.json").write_text(json.dumps(json.loads((base / "config.json").read_text()), indent=5))
    assert nb.ok_json("diff", base, tmp_path / "same")["files"] == []


def test_diff_of_a_key_without_letters(tmp_path):
    for name, value in (("a", 1), ("b", 2)):
        shutil.copytree(nb.MODELS["llama_modelopt"], tmp_path / name)
        config = tmp_path / name / "config.json"
        config.write_text(json.dumps({"": value, **json.loads(config.read_text())}))
    assert nb.ok_json("diff", tmp_path / "a", tmp_path / "b")["files"] == [{"file": "config.json", "key": "", "a": 1, "b": 2}]


def test_diff_of_a_missing_file(tmp_path):
    (tmp_path / "a.json").write_text('{"rows": []}')
    for args in ((tmp_path / "a.json", tmp_path / "b.json"), (tmp_path / "b.json", tmp_path / "a.json"), (tmp_path / "b.json", nb.DEMO),
                 (tmp_path / "a.json", tmp_path / "b")):
        done = nb.run("diff", *args)
        assert done.returncode == 1 and str(tmp_path / "b") in done.stderr and "no such file" in done.stderr
        assert "nibble trace" in done.stderr and done.stderr.count("\n") == 1
    done = nb.run("diff", tmp_path / "a.json", nb.DEMO)
    assert done.returncode == 64 and str(tmp_path / "a.json") in done.stderr
