"""Folders that `nibble repair` wrote, opened by the packages that serve and make such files: compressed-tensors through transformers,
and ModelOpt. Their dequantised weights are ours bit for bit, and transformers answers with them as nibble does."""
import json

import defects
import numpy as np
import pytest
import st
import torch
import transformers
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.quantization import QuantizationScheme, preset_name_to_scheme
from modelopt.torch.quantization.qtensor import NVFP4QTensor

import folder as raw
import nb
from test_repair import scales_file
from test_transformers import stack_experts

IDS = [[1, 2, 3, 5, 8, 13, 21, 34, 55, 89], [(7 * i * i + 3) % 380 for i in range(70)]]
W4A4 = preset_name_to_scheme("NVFP4", ["Linear"])

# How the source is broken, what repair is told, the rule that must have been applied.
KINDS = {
    "nan_bytes": ("nan_byte_one", [], "NB101"),
    "signs": ("sign_one", [], "NB102"),
    "input_direction": ("inverted_input_one", [], "NB106"),
    "weight_direction": ("inverted_weight_one", [], "NB106"),
    "siblings": ("siblings_gate_up", [], "NB107"),
    "renamed": ("name_scale_suffix", [], "NB006"),
    "padded": ("shape_scale_padded", [], "NB004"),
    "config": ("scheme_strategy_group", [], "NB203"),
    "filled_expert": ("input_missing_expert", [], "NB105"),
    "zero_expert": ("input_scale_zero_expert", [], "NB104"),
    "expert_names": ("name_expert_index_last", [], "NB006"),
    "measured": (None, ["--scales"], None),
    "attention_in_bf16": (None, ["--dequant", "*attn*"], None),
}
BASES = {
    "llama_ct": ("nan_bytes", "signs", "input_direction", "weight_direction", "siblings", "renamed", "padded", "config", "measured", "attention_in_bf16"),
    "llama_modelopt": ("nan_bytes", "signs", "input_direction", "weight_direction", "siblings", "renamed", "padded", "measured", "attention_in_bf16"),
    "deepseek_v4_ct_nvfp4_attn": ("nan_bytes", "filled_expert", "zero_expert", "expert_names", "siblings", "attention_in_bf16"),
    "deepseek_v4_modelopt": ("nan_bytes", "filled_expert", "zero_expert", "siblings"),
}
CASES = [(base, kind) for base, kinds in BASES.items() for kind in kinds]


def repaired(base, kind, tmp_path):
    """The mended folder; what repair said it did is what the kind is for."""
    defect, options, rule = KINDS[kind]
    src, out = nb.MODELS[base], tmp_path / "out"
    if defect:
        src = tmp_path / "src"
        assert defects.broken(nb.MODELS[base], src, defect), f"{base} cannot show {defect}"
    if options == ["--scales"]:
        scales_file(tmp_path / "scales.safetensors", src)
        options = options + [tmp_path / "scales.safetensors"]
    report = nb.ok_json("repair", src, "-o", out, *options, "-q")
    assert report["applied"] and (rule is None or rule in {a["rule"] for a in report["applied"]})
    return out


def codes_of(f, linear):
    """Codes, block scales and the global scale as torch tensors of the file's own bytes."""
    return (torch.from_numpy(f[linear.codes].array.copy()), torch.from_numpy(f[linear.block].array.copy()).view(torch.float8_e4m3fn),
            torch.from_numpy(np.atleast_1d(f[linear.wglobal].floats()).copy()))


def by_compressed_tensors(f, linear):
    """BF16: what the package's own compressor makes of a module's tensors."""
    codes, scale, weight_global = codes_of(f, linear)
    state = {"weight_packed": codes, "weight_scale": scale, "weight_global_scale": weight_global}
    weight = NVFP4PackedCompressor.decompress(state, W4A4)["weight"]
    assert weight.dtype == torch.bfloat16
    return weight


def by_modelopt(f, linear, wide=torch.float32):
    """In F32, or with the global scale and so the products in F64, where they are exact. ModelOpt's table has no -0."""
    codes, scale, weight_global = codes_of(f, linear)
    packed = NVFP4QTensor(torch.Size((codes.shape[0], 2 * codes.shape[1])), wide, codes)
    return packed.dequantize(dtype=wide, scale=scale, double_scale=weight_global.to(wide), block_sizes={-1: 16})


def bits(t):
    return t.contiguous().view(torch.int16 if t.dtype == torch.bfloat16 else torch.int32)


def plain(out, tmp_path):
    """Every NVFP4 linear of the folder in BF16, by nibble."""
    nb.ok("repair", out, "-o", tmp_path / "plain", "--dequant", "*", "-q", status=(0, 1))
    return raw.Folder(str(tmp_path / "plain"))


def safetensors(path, tensors):
    """Float tensors under their names, for nibble to read."""
    kinds = {torch.float32: "F32", torch.bfloat16: "BF16"}
    head, at = {}, 0
    for name, t in tensors.items():
        size = t.numel() * t.element_size()
        head[name] = {"dtype": kinds[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for t in tensors.values():
            f.write(bits(t).numpy().tobytes())


@pytest.mark.parametrize("base,kind", CASES)
def test_dequantised_weights(base, kind, tmp_path):
    """In BF16, the type that compressed-tensors decompresses to, every bit; with ModelOpt in F32, too."""
    out = repaired(base, kind, tmp_path)
    f = raw.Folder(str(out))
    linears = f.linears()
    assert linears or kind == "attention_in_bf16"
    ours = plain(out, tmp_path) if linears else None
    theirs = {}
    for linear in linears:
        name = linear.module + ".weight"
        have = torch.from_numpy(ours[name].array.view(np.int16).copy())
        if linear.ct:
            theirs[name] = by_compressed_tensors(f, linear)
            assert torch.equal(have, bits(theirs[name])), name
        else:
            rounded = by_modelopt(f, linear).bfloat16()
            assert torch.equal(torch.where(have == -32768, 0, have), bits(rounded)), name
            theirs[name] = by_modelopt(f, linear, torch.float64).float()
    if not linears or linears[0].ct:
        return
    # nibble's own values in F32, read out by `diff` against a folder of ModelOpt's: exact products, rounded once. (ModelOpt in F32
    # rounds scale times global scale first, then the product.)
    (tmp_path / "theirs").mkdir()
    safetensors(tmp_path / "theirs" / "model.safetensors", theirs)
    (tmp_path / "theirs" / "config.json").write_text((tmp_path / "plain" / "config.json").read_text())
    rows = {t["name"]: t for t in nb.ok_json("diff", out, tmp_path / "theirs")["tensors"]}
    for linear in linears:
        assert rows[linear.codes]["max_abs"] == 0, rows[linear.codes]


@pytest.mark.parametrize("kind", [k for b, k in CASES if b == "llama_ct"])
def test_transformers_opens_compressed_tensors(kind, tmp_path):
    """from_pretrained finds every tensor where it looks for it, with our bytes; its own W4A4 forward is finite; with the weights that it
    decompresses its logits are nibble's."""
    out = repaired("llama_ct", kind, tmp_path)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.bfloat16, output_loading_info=True)
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    f, modules = raw.Folder(str(out)), dict(model.named_modules())
    assert f.linears()
    for linear in f.linears():
        m = modules[linear.module]
        assert isinstance(m.quantization_scheme, QuantizationScheme)
        codes, scale, weight_global = codes_of(f, linear)
        assert torch.equal(m.weight_packed, codes) and torch.equal(m.weight_scale.view(torch.uint8), scale.view(torch.uint8))
        assert torch.equal(m.weight_global_scale, weight_global)
        assert m.input_global_scale.item() == f[linear.iglobal].floats().reshape(-1)[0]
    with torch.no_grad():
        for ids in IDS:
            assert model(torch.tensor([ids])).logits.isfinite().all()
    ours = plain(out, tmp_path)
    state = {n: torch.from_numpy(np.array(ours[n].floats())) for n in ours.names()}
    for linear in f.linears():
        state[linear.module + ".weight"] = modules[linear.module].weight.detach().float()  # decompressed by that forward
    agree(out, state, tmp_path / "plain", tmp_path)


@pytest.mark.parametrize("base,kind", [c for c in CASES if c[0] in ("llama_modelopt", "deepseek_v4_ct_nvfp4_attn")])
def test_logits_of_transformers(base, kind, tmp_path):
    """transformers has no reader of its own for ModelOpt's NVFP4 and none for experts in it: it gets the packages' weights."""
    out = repaired(base, kind, tmp_path)
    f = raw.Folder(str(out))
    ours = plain(out, tmp_path)
    state = {n: torch.from_numpy(np.array(ours[n].array if ours[n].dtype[0] == "I" else ours[n].floats())) for n in ours.names()}
    for linear in f.linears():
        theirs = by_compressed_tensors(f, linear) if linear.ct else by_modelopt(f, linear).bfloat16()
        state[linear.module + ".weight"] = theirs.float()
    agree(out, state, tmp_path / "plain", tmp_path)


@torch.no_grad()
def agree(out, state, ours, tmp_path):
    """transformers with `state` against nibble on the folder `ours`."""
    config = transformers.AutoConfig.from_pretrained(out)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config._attn_implementation = config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    missing, unexpected = model.load_state_dict(stack_experts(state), strict=False)
    assert not unexpected and not [m for m in missing if m in dict(model.named_parameters())], (missing, unexpected)
    (tmp_path / "ids.json").write_text(json.dumps(IDS))
    nb.ok("eval", ours, "--ids", tmp_path / "ids.json", "--logits", tmp_path / "logits.st", "--arith", "exact")
    got = st.load(tmp_path / "logits.st")
    for i, ids in enumerate(IDS):
        want = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()
        assert np.abs(got[f"logits.{i}"] - want).max() <= 1e-3
