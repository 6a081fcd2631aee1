"""Experts in stacks, one tensor for all experts of a layer: the same bits as experts one by one, and what check and trace say of a
stack that is wrong."""
import json
import shutil
import struct

import nb
import pytest
import st

LAYER = "model.layers.{}.mlp.experts."


def rewrite(base, out, change):
    """A copy of a one-file folder: change(tensors, config), where tensors are {name: [dtype, shape, bytes]}."""
    shutil.copytree(base, out)
    head, start = st.header(base / "model.safetensors")
    data = (base / "model.safetensors").read_bytes()[start:]
    tensors = {n: [e["dtype"], e["shape"], data[slice(*e["data_offsets"])]] for n, e in head.items()}
    config = json.loads((base / "config.json").read_text())
    change(tensors, config)
    head, at = {}, 0
    for name, (dtype, shape, raw) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(head).encode()
    (out / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))
    (out / "config.json").write_text(json.dumps(config))
    return out


def stack(tensors, config):
    """Experts one by one -> gate_up_proj [E, 2 I, D] and down_proj [E, D, I], as transformers 5 keeps them."""
    count = config["num_local_experts"]
    for layer in range(config["num_hidden_layers"]):
        at = LAYER.format(layer)
        if f"{at}0.up_proj.weight" not in tensors:
            continue
        part = {p: [tensors.pop(f"{at}{e}.{p}_proj.weight") for e in range(count)] for p in ("gate", "up", "down")}
        width, hidden = part["gate"][0][1]
        gate_up = b"".join(g[2] + u[2] for g, u in zip(part["gate"], part["up"]))
        tensors[f"{at}gate_up_proj"] = ["BF16", [count, 2 * width, hidden], gate_up]
        tensors[f"{at}down_proj"] = ["BF16", [count, hidden, width], b"".join(d[2] for d in part["down"])]


def logits(model, tmp):
    expected = st.load(model / "expected.safetensors")
    (tmp / "ids.json").write_text(json.dumps([expected[f"p{i}.input_ids"].tolist() for i in range(3)]))
    nb.ok("eval", model, "--ids", tmp / "ids.json", "--logits", tmp / "logits.st")
    return (tmp / "logits.st").read_bytes()


def test_the_same_bits(tmp_path):
    base = nb.MODELS["qwen3_moe_bf16"]
    stacked = rewrite(base, tmp_path / "m", stack)
    assert logits(stacked, tmp_path) == logits(base, tmp_path)
    report = nb.ok_json("check", stacked)
    assert not [f for f in report["findings"] if f["severity"] != "note"]


def findings(folder):
    report = json.loads(nb.ok("check", folder, "--format", "json", status=(2,)).stdout)
    return sorted((f["rule"], sorted(f["tensors"])) for f in report["findings"] if f["severity"] == "error")


def drop(*names):
    return lambda tensors, config: [tensors.pop(LAYER.format(1) + n) for n in names]


@pytest.mark.parametrize("base,names,rule", [("gpt_oss_bf16", ["gate_up_proj"], "NB007"),
                                             ("gpt_oss_mxfp4", ["gate_up_proj_blocks", "gate_up_proj_scales"], "NB007"),
                                             ("gpt_oss_mxfp4", ["down_proj_scales"], "NB003")])
def test_missing(base, names, rule, tmp_path):
    assert findings(rewrite(nb.MODELS[base], tmp_path / "m", drop(*names))) == [(rule, [LAYER.format(1) + n for n in names])]


@pytest.mark.parametrize("base,suffix", [("gpt_oss_bf16", ""), ("gpt_oss_mxfp4", "_blocks")])
def test_another_shape_than_the_config_says(base, suffix, tmp_path):
    folder = rewrite(nb.MODELS[base], tmp_path / "m", lambda tensors, config: config.update(intermediate_size=64))
    found = {t for rule, names in findings(folder) if rule == "NB007" for t in names}
    stacks = {LAYER.format(i) + p + suffix for i in range(3) for p in ("gate_up_proj", "down_proj")}
    assert found == stacks | {LAYER.format(i) + "gate_up_proj_bias" for i in range(3)}


# (stack, shape, the byte that is broken, what it becomes): an expert's odd row 5, so row 2 of its up projection.
NANS = [("gpt_oss_bf16", "gate_up_proj", lambda e: 2 * (e * 64 * 192 + 7 * 192 + 5), b"\xc0\x7f", ".T[1::2]", "nan_weight"),
        ("gpt_oss_mxfp4", "gate_up_proj_scales", lambda e: 2 * (e * 192 + 5) + 1, b"\xff", "[1::2]", "nan_scale")]


@pytest.mark.parametrize("base,name,at,raw,part,cause", NANS)
def test_trace_names_the_expert(base, name, at, raw, part, cause, tmp_path):
    """With NaN in two experts of a stack, each is blamed for its own."""
    def change(tensors, config):
        t = tensors[LAYER.format(0) + name]
        t[2] = bytearray(t[2])
        for expert in (0, 3):
            t[2][at(expert):at(expert) + len(raw)] = raw
    folder = rewrite(nb.MODELS[base], tmp_path / "m", change)
    (tmp_path / "ids.json").write_text("[[0, 257, 105, 132, 287, 328, 300, 12, 44, 99, 200]]")
    bad = nb.ok_json("trace", folder, "--ids", tmp_path / "ids.json", "-q")["first_bad"]
    stack_name = LAYER.format(0) + "gate_up_proj"
    expert = int(bad["module"][len(stack_name) + 1])
    assert expert in (0, 3) and bad["module"] == f"{stack_name}[{expert}]{part}"
    begin = st.header(folder / "model.safetensors")[0][LAYER.format(0) + name]["data_offsets"][0]
    assert (bad["cause"], bad["tensor"]) == (cause, LAYER.format(0) + name)
    assert bad["offset"] == st.header(folder / "model.safetensors")[1] + begin + at(expert)
