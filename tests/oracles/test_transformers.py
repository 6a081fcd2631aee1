"""Logits of transformers on the dequantised weights, for prompts that no fixture holds.

The stored references of tests/fixtures could hide a mistake that nibble and they share only if the tools that made them were
wrong; here the weights are decoded anew, in one case by the compressed-tensors package itself."""
import json

import folder as raw
import fp4
import nb
import numpy as np
import pytest
import st
import torch
import transformers

PROMPTS = [[5], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [(7 * i * i + 3) % 380 for i in range(150)]]


def by_fp4(folder, linear):
    mult = 1 / float(folder[linear.wglobal].floats().reshape(-1)[0]) if linear.ct else float(folder[linear.wglobal].floats().reshape(-1)[0])
    return torch.from_numpy(fp4.dequantise(folder[linear.codes].array, folder[linear.block].array, mult).astype(np.float32))


def by_compressed_tensors(folder, linear):
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    codes = torch.from_numpy(folder[linear.codes].array.copy())
    values = unpack_fp4_from_uint8(codes, codes.shape[0], codes.shape[1] * 2, dtype=torch.float32)
    scale = torch.from_numpy(folder[linear.block].array.copy()).view(torch.float8_e4m3fn).float()
    scale = scale / torch.from_numpy(folder[linear.wglobal].floats().copy())
    return (values.reshape(*scale.shape, 16) * scale[..., None]).reshape(values.shape)


def dequantised(path, decode):
    """{name: F32 tensor} with a `.weight` for each NVFP4 linear and nothing of its set besides."""
    folder = raw.Folder(str(path))
    out, used = {}, set()
    for linear in folder.linears():
        out[linear.module + ".weight"] = decode(folder, linear)
        used |= set(linear.set)
    for name in folder.names():
        if name not in used:
            assert folder[name].dtype in ("BF16", "F32", "F16", "I64", "I32"), f"{name} is {folder[name].dtype}: this oracle decodes NVFP4 alone"
            t = folder[name]
            out[name] = torch.from_numpy(np.array(t.array if t.dtype[0] == "I" else t.floats()))
    return out


def stack_experts(state):
    """transformers holds a layer's experts as two stacks: [E, 2 I, D] with gate above up, and [E, D, I]."""
    out, experts = {}, {}
    for name, value in state.items():
        base, sep, rest = name.partition(".experts.")
        if sep:
            e, kind, _ = rest.split(".")
            experts.setdefault(base + sep, {}).setdefault(int(e), {})[kind] = value
        else:
            out[name] = value
    for base, parts in experts.items():
        rows = [parts[e] for e in sorted(parts)]
        out[base + "gate_up_proj"] = torch.stack([torch.cat([r["gate_proj"], r["up_proj"]]) for r in rows])
        out[base + "down_proj"] = torch.stack([r["down_proj"] for r in rows])
    return out


@torch.no_grad()
def reference(path, decode):
    config = transformers.AutoConfig.from_pretrained(path)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config._attn_implementation = config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    missing, unexpected = model.load_state_dict(stack_experts(dequantised(path, decode)), strict=False)
    assert not unexpected and not [m for m in missing if m in dict(model.named_parameters())], (missing, unexpected)
    return [model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy() for ids in PROMPTS]


@pytest.mark.parametrize("name,decode", [("llama_ct", by_compressed_tensors), ("llama_modelopt", by_fp4), ("deepseek_v4_ct_nvfp4_attn", by_fp4)])
def test_logits(name, decode, tmp_path):
    folder = nb.MODELS[name]
    (tmp_path / "ids.json").write_text(json.dumps(PROMPTS))
    nb.ok("eval", folder, "--ids", tmp_path / "ids.json", "--logits", tmp_path / "out.st", "--arith", "exact")
    got = st.load(tmp_path / "out.st")
    for i, want in enumerate(reference(folder, decode)):
        assert np.abs(got[f"logits.{i}"] - want).max() <= 1e-3, f"prompt {i}"
