"""Logits and hidden states against transformers' on the dequantised weights (expected.safetensors), and the determinism rule.
The tolerances and where they come from: tests/fixtures/README.md."""
import json

import nb
import numpy as np
import pytest
import st

MODELS = [pytest.param(path, id=name) for name, path in nb.MODELS.items()]
W4A4_MODELS = [m for m in MODELS if (m.values[0] / "expected_w4a4.safetensors").exists()]
MARGIN = 0.05


def is_moe(model):
    return not {"n_routed_experts", "num_experts", "num_local_experts"}.isdisjoint(nb.text_config(model))


def prompts(expected):
    return [expected[f"p{i}.input_ids"].tolist() for i in range(3)]


def has_input_scales(model):
    return any(name.endswith(("input_scale", "input_global_scale")) for f in model.glob("model*.safetensors") for name in st.header(f)[0])


def evaluate(model, tmp, ids, arith, *flags):
    """(logits by array, hidden by (array, layer)) of one eval run."""
    (tmp / "ids.json").write_text(json.dumps(ids))
    nb.ok("eval", model, "--ids", tmp / "ids.json", "--logits", tmp / "logits.st", "--hidden", tmp / "hidden.st", "--arith", arith, *flags)
    logits, hidden = st.load(tmp / "logits.st"), st.load(tmp / "hidden.st")
    vocab = nb.text_config(model)["vocab_size"]
    for i, row in enumerate(ids):
        assert logits[f"logits.{i}"].shape == (len(row), vocab)
    return logits, hidden


def cosine(a, b):
    a, b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    return a @ b / np.sqrt((a @ a) * (b @ b))


def layers(expected):
    return range(sum(name.startswith("p0.hidden.") for name in expected))


def compare_hidden(expected, hidden):
    """(expected, computed) of each layer's output for prompt 0, a row a token."""
    for layer in layers(expected):
        want = expected[f"p0.hidden.{layer}"]
        yield want.reshape(len(want), -1), hidden[f"hidden.0.{layer}"].reshape(len(want), -1)


@pytest.mark.parametrize("kernels", ["generic", "auto"])
@pytest.mark.parametrize("model", MODELS)
def test_exact(model, kernels, tmp_path):
    expected = st.load(model / "expected.safetensors")
    logits, hidden = evaluate(model, tmp_path, prompts(expected), "exact", "--kernels", kernels)
    for i in range(3):
        assert np.abs(logits[f"logits.{i}"] - expected[f"p{i}.logits"]).max() <= 1e-3, f"prompt {i}"
    for layer, (want, got) in enumerate(compare_hidden(expected, hidden)):
        assert cosine(want, got) >= 0.999999, f"layer {layer}"


@pytest.mark.parametrize("kernels", ["generic", "auto"])
@pytest.mark.parametrize("model", MODELS)
def test_bf16(model, kernels, tmp_path):
    expected = st.load(model / "expected.safetensors")
    logits, hidden = evaluate(model, tmp_path, prompts(expected), "bf16", "--kernels", kernels)
    same = np.concatenate([logits[f"logits.{i}"].argmax(1) == expected[f"p{i}.logits"].argmax(1) for i in range(3)])
    assert same.mean() >= 0.85
    measured = json.loads((model / "fixture.json").read_text())["bf16_min_hidden_cosine"]
    bound = measured - 0.01 if is_moe(model) else 0.9999
    for layer, (want, got) in enumerate(compare_hidden(expected, hidden)):
        assert cosine(want, got) >= bound, f"layer {layer}"
    if not is_moe(model):
        assert max(np.abs(logits[f"logits.{i}"] - expected[f"p{i}.logits"]).max() for i in range(3)) <= 0.33


@pytest.mark.parametrize("kernels", ["generic", "auto"])
@pytest.mark.parametrize("model", W4A4_MODELS)
def test_w4a4(model, kernels, tmp_path):
    ids = prompts(st.load(model / "expected.safetensors"))
    expected = st.load(model / "expected_w4a4.safetensors")
    logits, hidden = evaluate(model, tmp_path, ids, "w4a4", "--kernels", kernels)
    near = np.concatenate([np.abs(logits[f"logits.{i}"] - expected[f"p{i}.logits"]).max(1) <= 1e-2 for i in range(3)])
    assert near.mean() >= 0.90
    for i in range(3):
        assert cosine(logits[f"logits.{i}"], expected[f"p{i}.logits"]) >= 0.99, f"prompt {i}"
    want, got = next(compare_hidden(expected, hidden))
    assert np.abs(want - got).max() <= 1e-3


@pytest.mark.parametrize("model", MODELS)
def test_greedy_continuation(model, tmp_path):
    """Fed with the reference continuation, the argmax is the reference's next token wherever that is not a near tie."""
    expected = st.load(model / "expected.safetensors")
    ids = [expected[f"p{i}.input_ids"].tolist() + expected[f"p{i}.greedy_ids"].tolist() for i in range(3)]
    logits, _ = evaluate(model, tmp_path, ids, "exact")
    compared = 0
    for i in range(3):
        greedy, margin = expected[f"p{i}.greedy_ids"], expected[f"p{i}.greedy_margin"]
        first = len(expected[f"p{i}.input_ids"]) - 1
        clear = margin >= MARGIN
        got = logits[f"logits.{i}"][first:first + len(greedy)].argmax(1)
        assert (got[clear] == greedy[clear]).all(), f"prompt {i}"
        compared += clear.sum()
    assert compared >= 40


VARIANTS = {
    "two threads": ["--threads", "2"],
    "chunks of 1": ["--threads", "1", "--chunk", "1"],
    "chunks of 7": ["--threads", "2", "--chunk", "7"],
    "chunks of 64": ["--threads", "1", "--chunk", "64"],
    "together": ["--threads", "1", "--together"],
    "together, chunks of 7, two threads": ["--threads", "2", "--together", "--chunk", "7"],
}


# w4a4 reads a static scale of each linear's input: folders without any have no such arithmetic.
ARITHMETICS = [pytest.param(path, arith, id=f"{name}-{arith}") for name, path in nb.MODELS.items()
               for arith in ("exact", "bf16", "int8", "w4a4", "w4a4-dynamic") if arith != "w4a4" or has_input_scales(path)]


@pytest.mark.parametrize("model,arith", ARITHMETICS)
def test_same_bits(model, arith, tmp_path):
    """Neither the chunking, nor the batch, nor the threads change a bit: each run against the whole prompts on one thread."""
    ids = prompts(st.load(model / "expected.safetensors"))
    logits, hidden = evaluate(model, tmp_path, ids, arith, "--threads", "1")
    whole = {**logits, **hidden}
    for name, flags in VARIANTS.items():
        logits, hidden = evaluate(model, tmp_path, ids, arith, *flags)
        other = {**logits, **hidden}
        assert other.keys() == whole.keys(), name
        different = [k for k in whole if other[k].tobytes() != whole[k].tobytes()]
        assert not different, f"{name}: {different[:3]} and {len(different)} in all"


@pytest.mark.parametrize("model", MODELS)
def test_alone_or_with_others(model, tmp_path):
    """A prompt alone gives the bits that it gives beside others."""
    ids = prompts(st.load(model / "expected.safetensors"))
    beside, _ = evaluate(model, tmp_path, ids, "exact", "--together")
    for i, row in enumerate(ids):
        alone, _ = evaluate(model, tmp_path, [row], "exact")
        assert alone["logits.0"].tobytes() == beside[f"logits.{i}"].tobytes(), f"prompt {i}"
