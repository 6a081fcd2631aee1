"""Latent attention under w4a4. nibble multiplies queries and results by the two halves of kv_b_proj and keeps its quantised input in the
cache; the model's own form makes every head's keys and values. Here is that form, in numpy, with each NVFP4 linear's input quantised
as specified; it must give transformers' logits without quantisation and nibble's with it."""
import json

import nb
import numpy as np
import pytest
import st
from defects import TOOLS  # noqa: F401  (puts fp4 on the path)
import fp4

F = np.float32


class Model:
    def __init__(self, folder, w4a4):
        self.t = st.load(folder / "model.safetensors")
        self.c = json.loads((folder / "config.json").read_text())
        self.w4a4 = w4a4
        self.heads, self.nope, self.rope, self.v, self.rank = (
            self.c[k] for k in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"))

    def linear(self, name, x):
        """x W^T; the input quantised where the weight is NVFP4 and the model runs in w4a4. Both flavours."""
        t, name = self.t, f"model.{name}"
        ct = f"{name}.weight_packed" in t
        packed = t.get(f"{name}.weight_packed", t[f"{name}.weight"] if not ct else None)
        if packed.dtype != np.uint8:
            return x @ packed.T
        scales = fp4.E4M3_ALL[t[f"{name}.weight_scale"]]
        w = fp4.E2M1_ALL[fp4.unpack(packed)] * np.repeat(scales, 16, 1)
        w = w * (1 / t[f"{name}.weight_global_scale"][0] if ct else t[f"{name}.weight_scale_2"].reshape(()))
        if self.w4a4:
            gs = t[f"{name}.input_global_scale"][0] if ct else F(1) / t[f"{name}.input_scale"].reshape(())
            x = quantised(x, F(gs))
        return x @ w.T

    def norm(self, name, x, eps):
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + F(eps)) * self.t[f"model.{name}.weight"]

    def angles(self, n):
        """cos and sin [n, pairs] and the scale of q . k: plain frequencies, or YaRN (arXiv 2309.00071)."""
        p = {**self.c, **(self.c.get("rope_scaling") or {}), **(self.c.get("rope_parameters") or {})}
        theta, dims = p["rope_theta"], self.rope
        freq = theta ** -(np.arange(0, dims, 2) / dims)
        scale = (self.nope + self.rope) ** -.5
        if p.get("type", p.get("rope_type")) == "yarn":
            def turn(r):
                return dims * np.log(p["original_max_position_embeddings"] / (r * 2 * np.pi)) / (2 * np.log(theta))
            low, high = max(np.floor(turn(p["beta_fast"])), 0), min(np.ceil(turn(p["beta_slow"])), dims - 1)
            ramp = np.clip((np.arange(dims // 2) - low) / (high - low), 0, 1)
            freq = freq / p["factor"] * ramp + freq * (1 - ramp)
            scale *= (0.1 * p["mscale_all_dim"] * np.log(p["factor"]) + 1) ** 2
        a = np.arange(n)[:, None] * freq.astype(F)
        return np.cos(a).astype(F), np.sin(a).astype(F), F(scale)

    def attention(self, at, h):
        n, (cos, sin, scale) = len(h), self.angles(len(h))
        qr = self.norm(f"{at}.q_a_layernorm", self.linear(f"{at}.q_a_proj", h), 1e-6)
        q = self.linear(f"{at}.q_b_proj", qr).reshape(n, self.heads, -1)
        kv = self.linear(f"{at}.kv_a_proj_with_mqa", h)
        c = self.norm(f"{at}.kv_a_layernorm", kv[:, :self.rank], 1e-6)
        k_rope = rotate(kv[:, None, self.rank:], cos, sin)
        expanded = self.linear(f"{at}.kv_b_proj", c).reshape(n, self.heads, -1)
        k = np.concatenate([expanded[..., :self.nope], np.repeat(k_rope, self.heads, 1)], -1)
        q = np.concatenate([q[..., :self.nope], rotate(q[..., self.nope:], cos, sin)], -1)
        s = np.einsum("qhd,khd->hqk", q, k) * scale
        s = np.where(np.tri(n, dtype=bool), s, -np.inf)
        p = np.exp(s - s.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        return self.linear(f"{at}.o_proj", np.einsum("hqk,khd->qhd", p, expanded[..., self.nope:]).reshape(n, -1))

    def mlp(self, at, h):
        g = self.linear(f"{at}.gate_proj", h)
        return self.linear(f"{at}.down_proj", g / (1 + np.exp(-g)) * self.linear(f"{at}.up_proj", h))

    def moe(self, at, h):
        c = self.c
        score = 1 / (1 + np.exp(-(h @ self.t[f"model.{at}.gate.weight"].T)))
        choice = score + self.t[f"model.{at}.gate.e_score_correction_bias"]
        group = np.sort(choice.reshape(len(h), c["n_group"], -1), -1)[..., -2:].sum(-1)
        kept = np.zeros_like(group, bool)
        np.put_along_axis(kept, np.argsort(-group, -1, "stable")[:, :c["topk_group"]], True, -1)
        choice = np.where(np.repeat(kept, choice.shape[1] // c["n_group"], 1), choice, -np.inf)
        ids = np.argsort(-choice, -1, "stable")[:, :c["num_experts_per_tok"]]
        weight = np.take_along_axis(score, ids, 1)
        weight = weight / weight.sum(-1, keepdims=True) * F(c["routed_scaling_factor"])
        out = self.mlp(f"{at}.shared_experts", h)
        for e in range(c["n_routed_experts"]):
            rows, slot = np.nonzero(ids == e)
            if len(rows):
                out[rows] += weight[rows, slot, None] * self.mlp(f"{at}.experts.{e}", h[rows])
        return out

    def logits(self, ids):
        x, eps = self.t["model.embed_tokens.weight"][ids], self.c["rms_norm_eps"]
        for layer in range(self.c["num_hidden_layers"]):
            at = f"layers.{layer}"
            x = x + self.attention(f"{at}.self_attn", self.norm(f"{at}.input_layernorm", x, eps))
            h = self.norm(f"{at}.post_attention_layernorm", x, eps)
            x = x + (self.moe if f"model.{at}.mlp.gate.weight" in self.t else self.mlp)(f"{at}.mlp", h)
        return self.norm("norm", x, eps) @ self.t["lm_head.weight"].T


def rotate(x, cos, sin):
    """Neighbouring pairs of x [n, heads, dims]."""
    out, a, b = np.empty_like(x), x[..., ::2], x[..., 1::2]
    out[..., ::2], out[..., 1::2] = a * cos[:, None] - b * sin[:, None], b * cos[:, None] + a * sin[:, None]
    return out


def quantised(x, gs):
    """Each block of 16 as an E4M3 scale times E2M1 codes, times 1/gs: the GPU's steps, of which the reciprocals are exact here."""
    b = x.reshape(len(x), -1, 16)
    sf = fp4.E4M3_ALL[fp4.e4m3_encode(gs * (np.abs(b).max(-1, keepdims=True) * (F(1) / F(6))))]
    with np.errstate(divide="ignore"):
        factor = np.where(sf == 0, F(0), F(1) / (sf * (F(1) / gs)))
    return (fp4.E2M1_ALL[fp4.e2m1_encode(b * factor)] * sf * (F(1) / gs)).reshape(x.shape).astype(F)


def run(model, tmp_path, ids, arith):
    (tmp_path / "ids.json").write_text(json.dumps([ids]))
    nb.ok("eval", model, "--ids", tmp_path / "ids.json", "--logits", tmp_path / "logits.st", "--arith", arith)
    return st.load(tmp_path / "logits.st")["logits.0"]


@pytest.mark.parametrize("name", ["deepseek_v3_ct", "deepseek_v3_modelopt", "glm4_moe_lite_modelopt"])
def test_quantised_as_the_expanded_form(name, tmp_path):
    model = nb.MODELS[name]
    expected = st.load(model / "expected.safetensors")
    for i in (0, 2):
        ids = expected[f"p{i}.input_ids"].tolist()
        assert np.abs(Model(model, False).logits(ids) - expected[f"p{i}.logits"]).max() <= 1e-3, "the form here is not the model's"
        want, got = Model(model, True).logits(ids), run(model, tmp_path, ids, "w4a4")
        near = np.abs(want - got).max(1) <= 1e-2
        cosine = (want * got).sum() / np.sqrt((want * want).sum() * (got * got).sum())
        print(i, near.mean(), cosine)
        assert near.mean() >= 0.90 and cosine >= 0.99
