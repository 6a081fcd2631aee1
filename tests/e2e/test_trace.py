"""`nibble trace`: each fault put into a healthy folder is named right, by cause, tensor and byte, for each stack that has it; healthy
folders are not accused; the numbers of a row are those that a hand computation gives."""
import json
import math
import shutil
import struct

import nb
import pytest
import st
from defects import break_py

IDS = [[1, 5, 9, 2, 7, 11, 3, 8, 20, 31, 44, 6, 13, 17, 19, 23]]
STACKS = ("vllm-cutlass", "vllm-flashinfer", "vllm-marlin", "vllm-emulation", "llama.cpp")
QUANTISING = ("vllm-cutlass", "vllm-flashinfer", "vllm-emulation")
KEYS = {"layer", "module", "operator", "in_amax", "out_amax", "nonfinite", "clipped", "flushed", "saturated", "cos_local", "snr_local_db",
        "cos_total", "snr_total_db"}
# A llama and a DeepSeek-V4 whose attention and experts are NVFP4: a dense linear of the first layer, an expert, a norm, a sink.
BASES = {
    "llama_ct": ("model.layers.0.self_attn.o_proj", None, "model.layers.0.input_layernorm.weight"),
    "llama_modelopt": ("model.layers.0.self_attn.o_proj", None, "model.layers.1.post_attention_layernorm.weight"),
    "deepseek_v4_ct_nvfp4_attn": ("model.layers.0.self_attn.q_b_proj", "model.layers.0.mlp.experts.0.down_proj",
                                  "model.layers.0.self_attn.kv_norm.weight"),
}


@pytest.fixture
def ids(tmp_path):
    path = tmp_path / "ids.json"
    path.write_text(json.dumps(IDS))
    return path


class Folder:
    """A copy of a fixture whose tensors can be overwritten in place, or renamed away."""

    def __init__(self, base, tmp_path):
        self.path = tmp_path / base
        shutil.copytree(nb.MODELS[base], self.path)
        self.where = {}
        for file in self.path.glob("*.safetensors"):
            head, start = st.header(file)
            for name, entry in head.items():
                self.where[name] = (file, entry, start)

    def first(self, module, *members):
        return next(f"{module}.{m}" for m in members if f"{module}.{m}" in self.where)

    def offset(self, name):
        file, entry, start = self.where[name]
        return start + entry["data_offsets"][0]

    def put(self, name, data, at=0):
        file = self.where[name][0]
        with open(file, "r+b") as f:
            f.seek(self.offset(name) + at)
            f.write(data)

    def put_float(self, name, value, at=0):
        kind = self.where[name][1]["dtype"]
        bits = struct.pack("<f", value)
        self.put(name, bits if kind == "F32" else bits[2:], at * (4 if kind == "F32" else 2))

    def hide(self, name):
        """Another name of the same length: the tensor is gone."""
        for file in self.path.glob("*"):
            if file.suffix in (".safetensors", ".json"):
                data = file.read_bytes()
                other = name[:-1] + "X"
                if f'"{name}"'.encode() in data:
                    file.write_bytes(data.replace(f'"{name}"'.encode(), f'"{other}"'.encode()))


def trace(folder, *args):
    report = nb.ok_json("trace", folder, *args)
    assert {"arith", "act_dtype", "as", "first_bad", "verdict", "rows", "findings"} <= report.keys()
    assert report["verdict"] and "\n" not in report["verdict"]
    for row in report["rows"]:
        assert KEYS <= row.keys()
        for share in ("clipped", "flushed", "saturated"):
            assert 0 <= row[share] <= 1
    return report


def number(v):
    return float(v)


def bad(report, cause, tensor=None, offset=None):
    found = report["first_bad"]
    assert found, report["verdict"]
    assert (found["cause"], found["tensor"]) == (cause, tensor if tensor else found["tensor"]), report["verdict"]
    if offset is not None:
        assert found["offset"] == offset
    return found


@pytest.mark.parametrize("base", [n for n in nb.MODELS if n not in ("deepseek_v4_llmcompressor", "qwen3_moe_llmcompressor")])
def test_healthy_folders_are_not_accused(base, tmp_path):
    """On a prompt that the input scales were measured on, too: an expert that sees two tokens of no sense may well clip them. (Two
    genuine exports were calibrated on other texts, and clip this one.)"""
    prompt = st.load(nb.MODELS[base] / "expected.safetensors")["p0.input_ids"]
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps([prompt.tolist()]))
    for stack in STACKS:
        report = trace(nb.MODELS[base], "--ids", ids, "--as", stack)
        assert report["first_bad"] is None, report["verdict"]
        assert stack in report["verdict"] and "outside the file" in report["verdict"]
        assert report["as"] == stack and report["act_dtype"] == "bf16"
        assert all(r["nonfinite"] == 0 for r in report["rows"])


@pytest.mark.parametrize("base", nb.MODELS)
def test_exact_is_exact(base, ids):
    """Two exact runs agree in every bit, so every cosine is one and every error zero."""
    report = trace(nb.MODELS[base], "--ids", ids)
    assert report["arith"] == "exact" and report["act_dtype"] == "f32" and report["as"] is None
    for row in report["rows"]:
        assert row["snr_local_db"] == row["snr_total_db"] == "inf"
        assert number(row["cos_local"]) == pytest.approx(1, abs=1e-6)


def test_shards_that_disagree_are_named(ids):
    """The genuine llm-compressor export whose q_a and kv do not share a scale: vLLM keeps the larger divisor for both."""
    for stack in ("vllm-cutlass", "vllm-marlin"):
        found = bad(trace(nb.MODELS["deepseek_v4_llmcompressor"], "--ids", ids, "--as", stack), "bad_global")
        assert found["module"].endswith(".wq_a") and found["tensor"].endswith(".wkv.weight_global_scale")
    assert trace(nb.MODELS["deepseek_v4_llmcompressor"], "--ids", ids, "--as", "llama.cpp")["first_bad"] is None


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("where", ("dense", "expert"))
def test_nan_scale_byte(base, where, ids, tmp_path):
    module = BASES[base][0 if where == "dense" else 1]
    if not module:
        pytest.skip("no experts")
    folder = Folder(base, tmp_path)
    name = module + ".weight_scale"
    folder.put(name, b"\x7f", 3)
    for stack in STACKS:
        report = trace(folder.path, "--ids", ids, "--as", stack)
        # llama.cpp reads 0x7F as 0: finite there, and still the fault
        found = bad(report, "nan_scale", name, folder.offset(name) + 3)
        assert found["module"] == module and found["operator"] == "linear"
        assert found["file"] == folder.where[name][0].name
        row = next(r for r in report["rows"] if r["module"] == module)
        assert (row["nonfinite"] > 0) == (stack != "llama.cpp")


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("value", (math.inf, math.nan, 0.0))
def test_weight_global_scale(base, value, ids, tmp_path):
    folder = Folder(base, tmp_path)
    name = folder.first(BASES[base][0], "weight_global_scale", "weight_scale_2")
    folder.put_float(name, value)
    for stack in ("vllm-cutlass", "vllm-marlin", "llama.cpp"):
        bad(trace(folder.path, "--ids", ids, "--as", stack), "bad_global", name, folder.offset(name))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("value", (math.inf, math.nan, 0.0))
def test_input_scale(base, value, ids, tmp_path):
    folder = Folder(base, tmp_path)
    name = folder.first(BASES[base][0], "input_global_scale", "input_scale")
    folder.put_float(name, value)
    for stack in QUANTISING:
        bad(trace(folder.path, "--ids", ids, "--as", stack), "bad_input_scale", name, folder.offset(name))
    for stack in ("vllm-marlin", "llama.cpp"):  # they do not read it
        assert trace(folder.path, "--ids", ids, "--as", stack)["first_bad"] is None


@pytest.mark.parametrize("base", BASES)
def test_missing_input_scale(base, ids, tmp_path):
    folder = Folder(base, tmp_path)
    name = folder.first(BASES[base][0], "input_global_scale", "input_scale")
    folder.hide(name)
    for stack in QUANTISING:
        found = bad(trace(folder.path, "--ids", ids, "--as", stack), "missing_tensor", name)
        assert found["offset"] is None
    bad(trace(folder.path, "--ids", ids, "--arith", "w4a4"), "missing_tensor", name)
    for stack in ("vllm-marlin", "llama.cpp"):
        assert trace(folder.path, "--ids", ids, "--as", stack)["first_bad"] is None


def test_one_expert_poisons_all(ids, tmp_path):
    """FlashInfer takes one input scale for a layer's experts; CUTLASS one an expert: only the expert itself is lost."""
    folder = Folder("deepseek_v4_ct_nvfp4_attn", tmp_path)
    module = BASES["deepseek_v4_ct_nvfp4_attn"][1]
    name = module + ".input_global_scale"
    folder.hide(name)
    lost = {}
    for stack in ("vllm-cutlass", "vllm-flashinfer"):
        report = trace(folder.path, "--ids", ids, "--as", stack)
        bad(report, "missing_tensor", name)
        lost[stack] = {r["module"] for r in report["rows"]
                       if r["layer"] == 0 and r["module"].endswith("down_proj") and ".experts." in r["module"] and r["nonfinite"]}
    assert lost["vllm-cutlass"] == {module}
    assert len(lost["vllm-flashinfer"]) > 1


@pytest.mark.parametrize("base", BASES)
def test_nan_norm(base, ids, tmp_path):
    folder = Folder(base, tmp_path)
    name = BASES[base][2]
    folder.put_float(name, math.nan, 5)
    size = 4 if folder.where[name][1]["dtype"] == "F32" else 2
    for stack in STACKS:
        found = bad(trace(folder.path, "--ids", ids, "--as", stack), "nan_weight", name, folder.offset(name) + 5 * size)
        assert found["operator"] == "rmsnorm" and found["module"] == name.removesuffix(".weight")


@pytest.mark.parametrize("tensor", ("model.layers.0.self_attn.sinks", "model.layers.1.attn_hc.base", "model.layers.1.ffn_hc.fn"))
def test_nan_in_other_parameters(tensor, ids, tmp_path):
    folder = Folder("deepseek_v4_ct_nvfp4_attn", tmp_path)
    folder.put_float(tensor, math.nan)
    bad(trace(folder.path, "--ids", ids, "--as", "vllm-cutlass"), "nan_weight", tensor, folder.offset(tensor))


@pytest.mark.parametrize("base", ("llama_ct", "deepseek_v4_ct_nvfp4_attn"))
def test_nan_embedding_and_head(base, ids, tmp_path):
    folder = Folder(base, tmp_path)
    embed = next(n for n in folder.where if n.endswith("embed_tokens.weight"))
    columns = folder.where[embed][1]["shape"][1]
    folder.put_float(embed, math.nan, 9 * columns + 2)  # token 9 is in the prompt
    found = bad(trace(folder.path, "--ids", ids), "nan_weight", embed)
    assert found["operator"] == "embed" and found["layer"] == -1


def test_the_head_is_judged_for_every_token(tmp_path):
    """One row of the trace for the head, over all rows of both prompts (the head runs over 32 at a time): the largest logit anywhere, and
    a NaN in a row of the head counted once a token."""
    folder = Folder("deepseek_v4_ct_nvfp4_attn", tmp_path)
    prompts = [[(5 * i * i + 3) % 380 for i in range(70)], [1, 2, 3]]
    (tmp_path / "ids.json").write_text(json.dumps(prompts))

    def head(report):
        rows = [r for r in report["rows"] if r["module"] == "lm_head"]
        assert len(rows) == 1
        return rows[0]
    row = head(trace(folder.path, "--ids", tmp_path / "ids.json"))
    nb.ok("eval", folder.path, "--ids", tmp_path / "ids.json", "--logits", tmp_path / "logits")
    assert row["out_amax"] == pytest.approx(max(float(abs(v).max()) for v in st.load(tmp_path / "logits").values()), rel=1e-6)
    name = "lm_head.weight"
    columns = folder.where[name][1]["shape"][1]
    folder.put_float(name, math.nan, 7 * columns + 2)
    report = trace(folder.path, "--ids", tmp_path / "ids.json")
    assert bad(report, "nan_weight", name)["operator"] == "linear" and head(report)["nonfinite"] == 73


@pytest.mark.parametrize("base", BASES)
def test_clip_and_its_numbers(base, ids, tmp_path):
    """An input scale 20 times too small: the row's shares and the verdict's numbers are those of the formulas."""
    folder = Folder(base, tmp_path)
    module = BASES[base][0]
    divisor = module + ".input_global_scale" in folder.where
    name = module + (".input_global_scale" if divisor else ".input_scale")
    healthy = trace(folder.path, "--ids", ids, "--arith", "w4a4")
    row = next(r for r in healthy["rows"] if r["module"] == module)
    file, _, _ = folder.where[name]
    stored = float(st.load(file)[name].reshape(-1)[0])
    folder.put_float(name, stored * 20 if divisor else stored / 20)
    gs = stored * 20 if divisor else 20 / stored
    for stack in QUANTISING:
        report = trace(folder.path, "--ids", ids, "--as", stack)
        bad(report, "clip", name, folder.offset(name))
        worse = next(r for r in report["rows"] if r["module"] == module)
        assert worse["saturated"] > 0.5 and worse["flushed"] == 0 and worse["nonfinite"] == 0
        assert number(worse["cos_local"]) < 0.98 < number(row["cos_local"])
        times = number(worse["in_amax"]) * gs / 2688
        assert f"{times:.1f} times too small" in report["verdict"] and "finite" in report["verdict"]
    nosat = trace(folder.path, "--ids", ids, "--as", "vllm-cutlass", "--cast", "nosat")
    found = nosat["first_bad"]
    assert found["cause"] == "nonsaturating_cast"
    assert next(r for r in nosat["rows"] if r["module"] == module)["nonfinite"] > 0
    assert trace(folder.path, "--ids", ids, "--as", "vllm-marlin")["first_bad"] is None


@pytest.mark.parametrize("base", BASES)
def test_the_wrong_way_round_flushes(base, ids, tmp_path):
    folder = Folder(base, tmp_path)
    module = BASES[base][0]
    name = folder.first(module, "input_global_scale", "input_scale")
    folder.put_float(name, 0.00025141 if name.endswith("global_scale") else 1 / 0.00025141)
    report = trace(folder.path, "--ids", ids, "--as", "vllm-cutlass")
    bad(report, "flush", name)
    row = next(r for r in report["rows"] if r["module"] == module)
    assert row["flushed"] > 0.9 and number(row["out_amax"]) == 0 and number(row["cos_local"]) == 0
    assert "23.31" in report["verdict"] and "exactly zero" in report["verdict"]


@pytest.mark.parametrize("base", BASES)
def test_marlin_overflows_beside_subnormal_scales(base, ids, tmp_path):
    """2^-9 needs the factor 8, and 448 * 2^7 * 8 is beyond F16."""
    folder = Folder(base, tmp_path)
    name = BASES[base][0] + ".weight_scale"
    folder.put(name, b"\x01")
    folder.put(name, b"\x7e", 1)
    bad(trace(folder.path, "--ids", ids, "--as", "vllm-marlin"), "overflow16", name)
    assert trace(folder.path, "--ids", ids, "--as", "llama.cpp")["first_bad"] is None


def test_sums_beyond_f32(ids, tmp_path):
    folder = Folder("llama_ct", tmp_path)
    name = "model.layers.0.self_attn.o_proj.weight_global_scale"
    folder.put_float(name, 1e-37)  # a multiplier of 1e37: finite, and the product is not
    found = trace(folder.path, "--ids", ids)["first_bad"]
    assert found["module"] == "model.layers.0.self_attn.o_proj" and found["cause"] == "overflow16"


@pytest.mark.parametrize("base", ("llama_ct", "llama_modelopt"))
def test_fused_shards(base, ids, tmp_path):
    """One of q, k, v with another global scale: the stack keeps the maximum, and says whose."""
    folder = Folder(base, tmp_path)
    module = "model.layers.0.self_attn.k_proj"
    name = folder.first(module, "weight_global_scale", "weight_scale_2")
    stored = float(st.load(folder.where[name][0])[name].reshape(-1)[0])
    folder.put_float(name, stored * 2)
    report = trace(folder.path, "--ids", ids, "--as", "vllm-marlin")
    found = bad(report, "bad_global", name)
    assert found["module"] == "model.layers.0.self_attn.q_proj"  # the divisor or multiplier of k is the larger
    assert trace(folder.path, "--ids", ids, "--as", "llama.cpp")["first_bad"] is None


def test_policies(ids, tmp_path):
    """A way out is a way out in trace too."""
    folder = Folder("llama_ct", tmp_path)
    module = BASES["llama_ct"][0]
    folder.put_float(module + ".input_global_scale", 1e9)
    assert trace(folder.path, "--ids", ids, "--as", "vllm-cutlass")["first_bad"]["module"] == module
    report = trace(folder.path, "--ids", ids, "--as", "vllm-cutlass", "--dequant", module)
    assert report["first_bad"] is None
    assert number(next(r for r in report["rows"] if r["module"] == module)["cos_local"]) > 0.9995


def test_probe(tmp_path):
    """No forward pass: any folder with NVFP4 linears; the same seed, the same rows."""
    folder = Folder("llama_ct", tmp_path)
    module = BASES["llama_ct"][0]
    healthy = trace(folder.path, "--module", "*o_proj", "--amax", "1", "--as", "vllm-cutlass")
    assert {r["module"] for r in healthy["rows"]} == {f"model.layers.{i}.self_attn.o_proj" for i in range(3)}
    assert all(number(r["in_amax"]) == pytest.approx(1) for r in healthy["rows"])
    assert trace(folder.path, "--module", "*o_proj", "--amax", "1", "--as", "vllm-cutlass") == healthy
    assert trace(folder.path, "--module", "*o_proj", "--amax", "1", "--as", "vllm-cutlass", "--seed", "2") != healthy
    folder.put_float(module + ".input_global_scale", 1 / 0.00025141)
    report = trace(folder.path, "--module", module, "--amax", "8", "--as", "vllm-flashinfer")
    bad(report, "clip", module + ".input_global_scale")
    for part in ("amax 8 ", "3977.6", "5303", "0.676", "11.8 times too small", "finite"):
        assert part in report["verdict"], report["verdict"]
    # another architecture: the table is not known, the linear is
    config = json.loads((folder.path / "config.json").read_text())
    config["model_type"] = "unheard_of"
    (folder.path / "config.json").write_text(json.dumps(config))
    again = trace(folder.path, "--module", module, "--amax", "8", "--as", "vllm-flashinfer")
    assert again["first_bad"]["cause"] == "clip"


def test_html(ids):
    page = nb.ok("trace", nb.MODELS["llama_ct"], "--ids", ids, "--as", "vllm-cutlass", "--format", "html").stdout
    assert page.startswith("<!doctype html>") and "prefers-color-scheme:dark" in page and page.rstrip().endswith("</html>")
    assert "http" not in page and "<script" not in page and "src=" not in page and "self_attn.k_proj" in page


def test_html_of_a_broken_folder(ids, tmp_path):
    """What check finds stands there, too; NaN is written as a word, every column has a name."""
    break_py.write(str(nb.MODELS["llama_ct"]), str(tmp_path / "m"), "nan_byte_one")
    page = nb.ok("trace", tmp_path / "m", "--ids", ids, "--format", "html").stdout
    assert "<b class=error>error NB101</b>" in page and ">NaN</td>" in page
    assert ">nan<" not in page and ">-nan<" not in page and "<span></span></th>" not in page


@pytest.mark.parametrize("args", (["--as", "sglang"], ["--module", "x"], ["--amax", "3"], ["--cast", "x", "-p", "x"],
                                  ["--as", "llama.cpp", "--arith", "exact"], ["--module", "x", "--amax", "nan"],
                                  ["-p", "x", "--ids", "y"], ["--rows", "3"]))
def test_usage(args):
    done = nb.run("trace", nb.MODELS["llama_ct"], *args)
    assert done.returncode == 64 and len(done.stderr.strip().splitlines()) == 1 and "nibble trace --help" in done.stderr


def test_nothing_matches():
    done = nb.run("trace", nb.MODELS["llama_ct"], "--module", "nothing*", "--amax", "1")
    assert done.returncode == 1 and "nothing*" in done.stderr
