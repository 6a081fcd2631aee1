"""calibrate against other code's maxima, and the three ways out of bad input scales: --scales, --dequant."""
import json
import subprocess
import sys

import nb
import numpy as np
import pytest
import st

MODELS = nb.OWN / "models"
DEMO = nb.OWN / "demo"


def calibrate(folder, out, *args):
    """The JSON's entries and the file's tensors, by module; they must agree."""
    report = nb.ok_json("calibrate", folder, "-o", out, *args)
    tensors = st.load(out)
    got = {}
    for m in report["modules"]:
        name = m["module"]
        assert tensors[f"{name}.input_amax"].shape == () and tensors[f"{name}.tokens"].dtype == np.int64
        assert tensors[f"{name}.input_amax"] == np.float32(m["amax"])
        assert tensors[f"{name}.input_p9999"] == np.float32(m["p9999"])
        assert tensors[f"{name}.tokens"] == m["tokens"]
        got[name] = m
    assert len(tensors) == 3 * len(got) == 3 * len(report["modules"])
    return got


class Llama:
    """The forward pass in numpy, float64, keeping every linear's input."""

    def __init__(self, folder):
        self.c = json.loads((folder / "config.json").read_text())
        self.w = {k: v.astype(np.float64) for k, v in st.load(folder / "model.safetensors").items()}
        self.seen = {}

    def linear(self, name, x):
        self.seen.setdefault(name, []).append(x)
        return x @ self.w[name + ".weight"].T

    def norm(self, name, x):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.c["rms_norm_eps"]) * self.w[name + ".weight"]

    def frequencies(self):
        d, s = self.c["head_dim"], self.c["rope_scaling"]
        f = 1 / self.c["rope_theta"] ** (np.arange(0, d, 2) / d)
        assert s["rope_type"] == "llama3"
        turns = s["original_max_position_embeddings"] * f / (2 * np.pi)
        smooth = np.clip((turns - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"]), 0, 1)
        return (1 - smooth) * f / s["factor"] + smooth * f

    def rotate(self, x, angle):
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)

    def run(self, ids):
        c, T, d = self.c, len(ids), self.c["head_dim"]
        angle = np.outer(np.arange(T), self.frequencies())[:, None]
        x = self.w["model.embed_tokens.weight"][ids]
        for l in range(c["num_hidden_layers"]):
            p = f"model.layers.{l}."
            h = self.norm(p + "input_layernorm", x)
            q, k, v = (self.linear(f"{p}self_attn.{n}_proj", h).reshape(T, -1, d) for n in "qkv")
            q, k = self.rotate(q, angle), self.rotate(k, angle)
            k, v = (np.repeat(t, c["num_attention_heads"] // c["num_key_value_heads"], 1) for t in (k, v))
            score = np.einsum("thd,shd->hts", q, k) / np.sqrt(d) + np.triu(np.full((T, T), -np.inf), 1)
            score = np.exp(score - score.max(-1, keepdims=True))
            o = np.einsum("hts,shd->thd", score / score.sum(-1, keepdims=True), v).reshape(T, -1)
            x = x + self.linear(p + "self_attn.o_proj", o)
            h = self.norm(p + "post_attention_layernorm", x)
            gate, up = self.linear(p + "mlp.gate_proj", h), self.linear(p + "mlp.up_proj", h)
            x = x + self.linear(p + "mlp.down_proj", gate / (1 + np.exp(-gate)) * up)
        self.linear("lm_head", self.norm("model.norm", x))


TEXTS = ["The clerk wrote 748 - 76 = 672 twice.", "one", "Harbour, lighthouse; three boats and 12 nets.\n" * 6]


def test_ranges_of_a_dense_model(tmp_path):
    """Every linear of a llama: maximum within 1e-5, percentile within a bin, rows exactly those of a forward pass in numpy."""
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in TEXTS))
    ids = [json.loads(l) for l in nb.ok("tokenize", MODELS / "llama_bf16", stdin="".join(json.dumps(t) + "\n" for t in TEXTS)).stdout.splitlines()]
    model = Llama(MODELS / "llama_bf16")
    for i in ids:
        model.run(i)
    got = calibrate(MODELS / "llama_bf16", tmp_path / "o.safetensors", "--data", tmp_path / "t.jsonl", "--rows", "64")
    assert set(got) == set(model.seen)
    for name, rows in model.seen.items():
        x = np.abs(np.concatenate(rows))
        m = got[name]
        assert m["amax"] == pytest.approx(x.max(), rel=1e-5), name
        assert m["tokens"] == len(x) == sum(map(len, ids))
        # the smallest value that a share 0.9999 of all are at most
        exact = np.sort(x, None)[int(np.ceil(0.9999 * x.size)) - 1]
        assert m["p9999"] == pytest.approx(exact, rel=1 / 64), name
        assert m["stored_amax"] is None and m["ratio"] is None and m["filled_by"] is None


def spell(name):
    """transformers' names of the demo in the release's own."""
    for a, b in [("model.", ""), ("self_attn", "attn"), ("mlp.", "ffn."), ("compressor.indexer", "indexer"), ("q_a_proj", "wq_a"), ("q_b_proj", "wq_b"),
                 ("kv_proj", "wkv"), ("o_a_proj", "wo_a"), ("o_b_proj", "wo_b"), ("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")]:
        name = name.replace(a, b)
    return name


def reference(flavour):
    """transformers' float32 maxima of the BF16 model: {our name: (maximum, rows)}; of an expert those routed to it."""
    linears = json.loads((DEMO / flavour / "activations.json").read_text())["linears"]
    return {spell(k): (v.get("amax_routed", v["amax"]), v["tokens"] if flavour == "modelopt" or "amax_routed" not in v else None)
            for k, v in linears.items()}


@pytest.mark.parametrize("flavour", sorted(nb.DEMOS))
def test_first_layer_of_the_demo(flavour, tmp_path):
    """Inputs that no quantised weight has touched are transformers' of the BF16 model; all rows of the first layer, too (its
    experts are chosen by token)."""
    got = {spell(k): m for k, m in calibrate(DEMO / flavour, tmp_path / "o", "--data", DEMO / flavour / "calibration.jsonl").items()}
    want = reference(flavour)
    assert set(want) <= set(got)
    for name in ("layers.0.attn.wq_a", "layers.0.attn.wkv"):
        assert got[name]["amax"] == pytest.approx(want[name][0], rel=1e-5)
    for name, (amax, rows) in want.items():
        if rows is not None and name.startswith("layers.0."):
            assert got[name]["tokens"] == rows, name
        if ".attn." in name:  # weights in four bits move what follows, but little
            assert got[name]["amax"] == pytest.approx(amax, rel=0.2), name
        # a healthy file's scales are these maxima
        if ".attn." in name:
            assert got[name]["ratio"] == pytest.approx(1, rel=0.2), name


@pytest.mark.parametrize("flavour", sorted(nb.DEMOS))
def test_all_ranges_of_the_bf16_demo(flavour, tmp_path):
    """Every linear and expert of the BF16 model that the fixtures were made from: within 1e-3 of transformers."""
    folders = [d.parent / "demo-model" / "bf16" for d in nb.DATA if (d.parent / "demo-model" / "bf16").is_dir()]
    if not folders:
        pytest.skip("the BF16 demo model is not in the repository (NB_FIXTURES names test data with demo-model beside it)")
    got = {spell(k): m for k, m in calibrate(folders[0], tmp_path / "o", "--data", DEMO / flavour / "calibration.jsonl").items()}
    for name, (amax, rows) in reference(flavour).items():
        assert got[name]["amax"] == pytest.approx(amax, rel=1e-3), name
        assert rows is None or got[name]["tokens"] == rows, name


def test_steps_change_no_byte(tmp_path):
    for rows in ("37", "600"):
        nb.ok("calibrate", MODELS / "deepseek_v4_ct", "-o", tmp_path / rows, "--rows", rows)
    assert (tmp_path / "37").read_bytes() == (tmp_path / "600").read_bytes()


def test_unseen_experts(tmp_path):
    """One token reaches two experts of a layer; the others take the largest maximum of their projection, and say so."""
    (tmp_path / "t.jsonl").write_text('{"text": "a"}\n')
    done = nb.ok("calibrate", MODELS / "deepseek_v4_bf16", "-o", tmp_path / "o", "--data", tmp_path / "t.jsonl")
    assert "saw no token" in done.stdout
    got = calibrate(MODELS / "deepseek_v4_bf16", tmp_path / "o", "--data", tmp_path / "t.jsonl")
    experts = {k: m for k, m in got.items() if ".experts." in k}
    filled = {k: m for k, m in experts.items() if m["filled_by"]}
    assert filled and all(m["tokens"] == 0 for m in filled.values())
    assert all(m["tokens"] > 0 for k, m in got.items() if k not in filled)
    for name, m in filled.items():
        head, _, tail = name.partition(".experts.")
        projection = tail.split(".", 1)[1]
        assert m["amax"] == max(o["amax"] for k, o in experts.items() if k.startswith(head + ".experts.") and k.endswith("." + projection) and o["tokens"])


def broken(base, out, defect):
    subprocess.run([sys.executable, nb.OWN / "tools" / "break.py", base, out, defect], check=True, capture_output=True)
    return out


def test_refusals(tmp_path):
    out = tmp_path / "o"
    for args, text in [(("-o", out, "--data", tmp_path / "none"), "none"), (("-o", tmp_path / "no" / "o"), "does not exist"),
                       (("-o", out, "--data", nb.DEMO / "config.json"), "line 1")]:
        done = nb.run("calibrate", nb.DEMO, *args)
        assert done.returncode == 1 and text in done.stderr
    assert nb.run("calibrate", nb.DEMO).returncode == 64
    assert nb.run("calibrate", nb.DEMO, "-o", out, "--arith", "w4a4").returncode == 64
    # a NaN on the way is named, never written down
    done = nb.run("calibrate", broken(nb.DEMO, tmp_path / "nan", "nan_norm"), "-o", out)
    assert done.returncode == 1 and "NaN" in done.stderr and "layers." in done.stderr
    assert not out.exists() and not list(tmp_path.glob("o.*"))
    done = nb.run("eval", nb.DEMO, "--samples", DEMO / "samples.jsonl", "--dequant", "*no_such*")
    assert done.returncode == 1 and "*no_such*" in done.stderr


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """Every 50th question: 20, two of each task."""
    path = tmp_path_factory.mktemp("samples") / "s.jsonl"
    path.write_text("\n".join((DEMO / "samples.jsonl").read_text("utf-8").splitlines()[::50]) + "\n", "utf-8")
    return path


def exact_match(folder, samples, *args):
    return nb.ok_json("eval", folder, "--samples", samples, "--arith", "w4a4", *args)["exact_match"]


@pytest.mark.parametrize("flavour", sorted(nb.DEMOS))
@pytest.mark.parametrize("defect", ["seed_attention_clip", "seed_attention_wrong_way"])
def test_the_three_ways_out(flavour, defect, samples, tmp_path):
    """The bring-up note's case: attention input scales 11.84 times too small, or stored the wrong way round."""
    folder = broken(nb.DEMOS[flavour], tmp_path / "bad", defect)
    got = calibrate(folder, tmp_path / "ranges", "--data", DEMO / flavour / "calibration.jsonl")
    attention = [m for k, m in got.items() if m["stored_amax"] and any(k.endswith(e) for e in ("wq_a", "wkv", "wo_a", "wo_b", "q_a_proj", "o_a_proj", "o_b_proj"))]
    assert len(attention) >= 18
    if defect == "seed_attention_clip":
        assert all(9 < m["ratio"] < 14 for m in attention)
    else:
        assert all(m["ratio"] < 1e-5 for m in attention)
    assert exact_match(nb.DEMOS[flavour], samples) >= 0.95
    assert exact_match(folder, samples) <= 0.3
    for way in (("--scales", "warmup"), ("--scales", tmp_path / "ranges"), ("--scales", "dynamic"), ("--dequant", "*attn*")):
        assert exact_match(folder, samples, *way) >= 0.95, way


def test_costs_are_told(samples):
    done = nb.ok("eval", nb.DEMO, "--samples", samples, "--arith", "w4a4", "--scales", "warmup", "--dequant", "*attn*")
    assert "linears to BF16" in done.stderr and "MB more memory" in done.stderr
    assert "--scales warmup: input scales of" in done.stderr and done.stderr.split("tokens, ")[1].split()[1] == "s"


def test_ranges_serve_another_flavour(tmp_path):
    """Measured on one spelling of the model, used with another."""
    nb.ok("calibrate", nb.DEMOS["compressed-tensors"], "-o", tmp_path / "o")
    done = nb.ok("run", nb.DEMOS["modelopt"], "-p", "282 - 247 =", "--arith", "w4a4", "--scales", tmp_path / "o")
    assert done.stdout.strip() == "35"


def test_the_output_is_judged_before_the_work(tmp_path):
    """A folder, a model's own file, a place that is not there: said at once. Older ranges are replaced, and that is said."""
    model = tmp_path / "model.safetensors"
    model.write_bytes((nb.DEMO / "model.safetensors").read_bytes())
    before = model.read_bytes()
    (tmp_path / "notes.txt").write_text("mine")
    for out in (tmp_path, model, tmp_path / "notes.txt", tmp_path / "no" / "where"):
        done = nb.run("calibrate", nb.DEMO, "-o", out)
        assert done.returncode == 1 and str(out) in done.stderr and "measur" not in done.stderr and len(done.stderr.splitlines()) == 1
    assert model.read_bytes() == before and (tmp_path / "notes.txt").read_text() == "mine"
    (tmp_path / "t.jsonl").write_text('{"text": "a few words"}\n')
    args = ["calibrate", nb.DEMO, "--data", tmp_path / "t.jsonl", "-o", tmp_path / "r"]
    assert "will be replaced" not in nb.ok(*args).stderr
    assert "will be replaced" in nb.ok(*args).stderr


def test_what_rounding_hides_is_not_called_clipped(tmp_path):
    """A maximum 5 % above what the scale stands for is rounded to the largest code like any other; 30 % above is clipped."""
    import shutil
    import struct
    import st
    model, ranges = tmp_path / "m", tmp_path / "r.safetensors"
    shutil.copytree(nb.DEMO, model)
    (tmp_path / "t.jsonl").write_text(json.dumps({"text": "a few words, and some more of them"}) + "\n")
    nb.ok("calibrate", model, "--data", tmp_path / "t.jsonl", "-o", ranges)
    measured = st.load(ranges)
    head, start = st.header(model / "model.safetensors")
    linears = [n for n in head if n.endswith("self_attn.o_b_proj.input_global_scale")]
    with open(model / "model.safetensors", "r+b") as f:
        for n, factor in zip(linears, (1.05, 1.3)):
            f.seek(start + head[n]["data_offsets"][0])
            f.write(struct.pack("<f", 2688 * factor / float(measured[n.replace("input_global_scale", "input_amax")])))
    text = nb.ok("calibrate", model, "--data", tmp_path / "t.jsonl", "-o", ranges).stdout
    told = [line for line in text.splitlines() if "clipped" in line and "o_b_proj" in line]
    assert len(told) == 1 and linears[1].rpartition(".")[0] in told[0]
