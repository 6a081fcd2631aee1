"""Writes a folder with the shape of DeepSeek-V4, of DeepSeek-V3.2 or of a llama and any size, of random weights as a quantiser would leave them: for
measuring time and memory. Needs numpy; says nothing sensible.

    python3 tools/make_large.py OUT                                                    2.0 GB, 43 layers, 24,000 tensors
    python3 tools/make_large.py OUT --layers 65 --experts 256 --hidden 128 --inter 64  200,000 tensors
    python3 tools/make_large.py OUT --arch llama                                       1.1 GB, 9 layers of Llama-3-8B
    python3 tools/make_large.py OUT --arch deepseek_v32 --experts 16                   1.1 GB, one dense layer and one of 16 experts

Config and tokenizer of the former are the demo model's (tests/fixtures/demo/modelopt) with other sizes: ModelOpt's flavour, native
names; a llama has no tokenizer. The linears of a layer share one pool of random blocks at random places, so that making them takes no
longer than writing them."""
import argparse
import json
import pathlib
import shutil
import struct

import numpy as np

DEMO = pathlib.Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "demo" / "modelopt"
POOL = 1 << 20  # blocks of 16 weights
SHARD = 1 << 30


class Writer:
    """Shards of at most SHARD bytes and their index."""

    def __init__(self, out):
        self.out, self.head, self.parts, self.at, self.shards, self.where = out, {}, [], 0, 0, {}

    def add(self, name, dtype, shape, data):
        if self.at and self.at + len(data) > SHARD:
            self.flush()
        self.head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [self.at, self.at + len(data)]}
        self.parts.append(data)
        self.at += len(data)

    def flush(self):
        self.shards += 1
        name = f"model-{self.shards:05d}.safetensors"
        text = json.dumps(self.head).encode()
        text += b" " * (-len(text) % 8)
        with open(self.out / name, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            f.writelines(self.parts)
        self.where.update((tensor, name) for tensor in self.head)
        self.head, self.parts, self.at = {}, [], 0

    def finish(self):
        self.flush()
        total = sum((self.out / n).stat().st_size - 8 - struct.unpack("<Q", open(self.out / n, "rb").read(8))[0] for n in set(self.where.values()))
        (self.out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": self.where}))


class Model:
    def __init__(self, out, a):
        self.w, self.rng = Writer(out), np.random.default_rng(a.seed)
        codes = self.rng.integers(0, 256, (POOL, 8), np.uint8)
        codes[:, 0] |= 7                                       # each block has a 6, as quantisers leave it
        self.codes = codes.reshape(-1)
        self.scales = self.rng.integers(0x60, 0x7e, POOL, np.uint8)

    def bf16(self, name, *shape, spread=0.02):
        values = self.rng.standard_normal(shape, np.float32) * np.float32(spread) if spread else np.ones(shape, np.float32)
        self.w.add(name, "BF16", list(shape), (values.view(np.uint32) >> 16).astype(np.uint16).tobytes())

    def f32(self, name, *shape, spread=0.02):
        self.w.add(name, "F32", list(shape), (self.rng.standard_normal(shape, np.float32) * np.float32(spread)).tobytes())

    def amax(self):
        """What an input scale stands for: measured maxima are never equal."""
        return 20 + self.rng.random()

    def scalar(self, name, value):
        self.w.add(name, "F32", [], np.float32(value).tobytes())

    def linear(self, name, n, k, amax):
        blocks = n * k // 16
        codes, scales = bytearray(), bytearray()
        while len(scales) < blocks:
            first = int(self.rng.integers(0, POOL - 4096))
            some = min(blocks - len(scales), POOL - first)
            codes += self.codes[8 * first:8 * (first + some)].tobytes()
            scales += self.scales[first:first + some].tobytes()
        scales[0] = 0x7e
        self.w.add(f"{name}.weight", "U8", [n, k // 2], bytes(codes))
        self.w.add(f"{name}.weight_scale", "F8_E4M3", [n, k // 16], bytes(scales))
        self.scalar(f"{name}.weight_scale_2", 1 / (600 * k ** 0.5))  # a mean product of code and scale is some 600
        self.scalar(f"{name}.input_scale", amax / 2688)


def layer(m, c, l, ratio, hashed):
    d, q, heads, hd, groups, lora = (c[k] for k in ("hidden_size", "q_lora_rank", "num_attention_heads", "head_dim", "o_groups", "o_lora_rank"))
    name, mix = f"layers.{l}", (2 + c["hc_mult"]) * c["hc_mult"]
    for site in ("attn", "ffn"):
        m.f32(f"{name}.hc_{site}_base", mix)
        m.f32(f"{name}.hc_{site}_fn", mix, c["hc_mult"] * d)
        m.f32(f"{name}.hc_{site}_scale", 3)
        m.bf16(f"{name}.{site}_norm.weight", d, spread=0)
    m.f32(f"{name}.attn.attn_sink", heads)
    m.bf16(f"{name}.attn.q_norm.weight", q, spread=0)
    m.bf16(f"{name}.attn.kv_norm.weight", hd, spread=0)
    shared, q_amax = m.amax(), m.amax()
    m.linear(f"{name}.attn.wq_a", q, d, shared)
    m.linear(f"{name}.attn.wkv", hd, d, shared)
    m.linear(f"{name}.attn.wq_b", heads * hd, q, q_amax)
    m.linear(f"{name}.attn.wo_a", groups * lora, heads * hd // groups, m.amax())
    m.linear(f"{name}.attn.wo_b", d, groups * lora, m.amax())
    if ratio:
        compressor(m, f"{name}.attn.compressor", hd, d, ratio)
    if ratio == 4:
        ih, ihd = c["index_n_heads"], c["index_head_dim"]
        m.linear(f"{name}.attn.indexer.wq_b", ih * ihd, q, q_amax)
        m.bf16(f"{name}.attn.indexer.weights_proj.weight", ih, d)
        compressor(m, f"{name}.attn.indexer.compressor", ihd, d, ratio)
    experts, inter = c["n_routed_experts"], c["moe_intermediate_size"]
    m.bf16(f"{name}.ffn.gate.weight", experts, d)
    if hashed:
        table = np.argsort(m.rng.random((c["vocab_size"], experts)), axis=1)[:, :c["num_experts_per_tok"]].astype(np.int64)
        m.w.add(f"{name}.ffn.gate.tid2eid", "I64", list(table.shape), table.tobytes())
    else:
        m.f32(f"{name}.ffn.gate.bias", experts)
    for module in [f"{name}.ffn.experts.{e}" for e in range(experts)] + [f"{name}.ffn.shared_experts"]:
        amax = m.amax()
        m.linear(f"{module}.w1", inter, d, amax)
        m.linear(f"{module}.w3", inter, d, amax)
        m.linear(f"{module}.w2", d, inter, m.amax())


def compressor(m, name, hd, d, ratio):
    series = 2 if ratio == 4 else 1
    m.f32(f"{name}.ape", ratio, series * hd)
    m.bf16(f"{name}.norm.weight", hd, spread=0)
    m.bf16(f"{name}.wgate.weight", series * hd, d)
    m.bf16(f"{name}.wkv.weight", series * hd, d)


def deepseek(m, a):
    c = json.loads((DEMO / "config.json").read_text())
    hidden, inter = a.hidden or 1024, a.inter or 512
    layers = a.layers or 43
    ratios = [0, 0] + [4 if l % 2 == 0 else 128 for l in range(2, layers)]
    c.update(num_hidden_layers=layers, n_routed_experts=a.experts, hidden_size=hidden, moe_intermediate_size=inter,
             q_lora_rank=hidden // 2, num_attention_heads=max(4, hidden // 64), o_lora_rank=max(64, hidden // 4),
             compress_ratios=ratios[:layers], num_hash_layers=min(3, layers), max_position_embeddings=1 << 20)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "hf_quant_config.json"):
        shutil.copy(DEMO / name, a.out)
    m.bf16("embed.weight", c["vocab_size"], hidden)
    for l in range(layers):
        layer(m, c, l, c["compress_ratios"][l], l < c["num_hash_layers"])
    streams = c["hc_mult"]
    m.f32("hc_head_base", streams)
    m.f32("hc_head_fn", streams, streams * hidden)
    m.f32("hc_head_scale", 1)
    m.bf16("norm.weight", hidden, spread=0)
    m.bf16("head.weight", c["vocab_size"], hidden)
    return c


def quant_config(a, exclude):
    (a.out / "hf_quant_config.json").write_text(json.dumps(
        {"producer": {"name": "make_large", "version": "1"}, "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16, "exclude_modules": exclude}}))


def llama(m, a):
    d, inter, layers, hd = a.hidden or 4096, a.inter or 14336, a.layers or 9, 128
    heads, kv, vocab = d // hd, max(1, d // hd // 4), 4096
    m.bf16("model.embed_tokens.weight", vocab, d)
    for l in range(layers):
        p = f"model.layers.{l}."
        m.bf16(p + "input_layernorm.weight", d, spread=0)
        m.bf16(p + "post_attention_layernorm.weight", d, spread=0)
        attn, mlp = m.amax(), m.amax()
        for name, n, k, amax in (("self_attn.q_proj", heads * hd, d, attn), ("self_attn.k_proj", kv * hd, d, attn),
                                 ("self_attn.v_proj", kv * hd, d, attn), ("self_attn.o_proj", d, heads * hd, m.amax()),
                                 ("mlp.gate_proj", inter, d, mlp), ("mlp.up_proj", inter, d, mlp), ("mlp.down_proj", d, inter, m.amax())):
            m.linear(p + name, n, k, amax)
    m.bf16("model.norm.weight", d, spread=0)
    m.bf16("lm_head.weight", vocab, d)
    quant_config(a, ["lm_head"])
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": vocab, "hidden_size": d, "intermediate_size": inter,
            "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": hd, "hidden_act": "silu",
            "max_position_embeddings": 1 << 20, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2}


def deepseek_v32(m, a):
    """DeepSeek-V3.2's own widths (hidden size 7168, 128 heads, latent rows of 576, an indexer of 64 heads), fewer layers and experts."""
    c = {"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "torch_dtype": "bfloat16", "vocab_size": 4096,
         "hidden_size": a.hidden or 7168, "intermediate_size": 18432, "moe_intermediate_size": a.inter or 2048, "num_hidden_layers": a.layers or 2,
         "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
         "qk_rope_head_dim": 64, "v_head_dim": 128, "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048, "n_routed_experts": a.experts,
         "num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 1, "moe_layer_freq": 1,
         "routed_scaling_factor": 2.5, "norm_topk_prob": True, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "hidden_act": "silu",
         "max_position_embeddings": 1 << 18, "rms_norm_eps": 1e-6, "rope_theta": 10000, "tie_word_embeddings": False, "bos_token_id": 0,
         "eos_token_id": 1, "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1,
                                             "original_max_position_embeddings": 4096}}
    d, heads, q, r, inter = (c[k] for k in ("hidden_size", "num_attention_heads", "q_lora_rank", "kv_lora_rank", "moe_intermediate_size"))

    def mlp(name, width):
        amax = m.amax()
        m.linear(f"{name}.gate_proj", width, d, amax)
        m.linear(f"{name}.up_proj", width, d, amax)
        m.linear(f"{name}.down_proj", d, width, m.amax())

    m.bf16("model.embed_tokens.weight", c["vocab_size"], d)
    for l in range(c["num_hidden_layers"]):
        p, attn = f"model.layers.{l}.", m.amax()
        at, ix = p + "self_attn.", p + "self_attn.indexer."
        for name, n in ((p + "input_layernorm", d), (p + "post_attention_layernorm", d), (at + "q_a_layernorm", q), (at + "kv_a_layernorm", r), (ix + "k_norm", 128)):
            m.bf16(name + ".weight", n, spread=0)
        m.bf16(ix + "k_norm.bias", 128)
        for name, n, k, amax in (("q_a_proj", q, d, attn), ("kv_a_proj_with_mqa", r + 64, d, attn), ("q_b_proj", heads * 192, q, m.amax()),
                                 ("kv_b_proj", heads * 256, r, m.amax()), ("o_proj", d, heads * 128, m.amax())):
            m.linear(at + name, n, k, amax)
        for name, n, k in (("wq_b", 64 * 128, q), ("wk", 128, d), ("weights_proj", 64, d)):
            m.bf16(f"{ix}{name}.weight", n, k)
        if l < c["first_k_dense_replace"]:
            mlp(p + "mlp", c["intermediate_size"])
            continue
        m.bf16(p + "mlp.gate.weight", a.experts, d)
        m.f32(p + "mlp.gate.e_score_correction_bias", a.experts)
        for e in range(a.experts):
            mlp(f"{p}mlp.experts.{e}", inter)
        mlp(p + "mlp.shared_experts", inter)
    m.bf16("model.norm.weight", d, spread=0)
    m.bf16("lm_head.weight", c["vocab_size"], d)
    quant_config(a, ["lm_head", "*.mlp.gate", "*.indexer*"])
    return c


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out", type=pathlib.Path)
    ap.add_argument("--arch", choices=("deepseek_v4", "deepseek_v32", "llama"), default="deepseek_v4")
    ap.add_argument("--layers", type=int)
    ap.add_argument("--experts", type=int, default=48)
    ap.add_argument("--hidden", type=int)
    ap.add_argument("--inter", type=int, help="width of an expert, or of a llama's MLP")
    ap.add_argument("--seed", type=int, default=0)
    a = ap.parse_args()
    a.out.mkdir()
    m = Model(a.out, a)
    c = {"llama": llama, "deepseek_v32": deepseek_v32, "deepseek_v4": deepseek}[a.arch](m, a)
    (a.out / "config.json").write_text(json.dumps(c, indent=1))
    m.w.finish()
    print(f"{len(m.w.where)} tensors, {sum(p.stat().st_size for p in a.out.iterdir()) / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
