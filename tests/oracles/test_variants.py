"""Logits of transformers for models that no fixture holds: of each family, checkpoints with random weights whose sizes, layer patterns,
rotary kinds and router settings are drawn at random.

NB_VARIANTS is how many of each family (2), NB_SEED where drawing begins (0). A failure names its config: the folder is in tmp_path."""
import json
import os
import random

import nb
import numpy as np
import pytest
import st
import torch
import transformers

COUNT, SEED = int(os.environ.get("NB_VARIANTS", "2")), int(os.environ.get("NB_SEED", "0"))
LENGTHS = (1, 31, 33, 64, 65, 130)
SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"


def rope(r, **more):
    yarn = {"rope_type": "yarn", "factor": r.choice([0.5, 4.0, 8.0]), "original_max_position_embeddings": 64}
    kind = r.choice([
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 3.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
        yarn, dict(yarn, truncate=False, beta_fast=16, beta_slow=2), dict(yarn, mscale=0.7, mscale_all_dim=1.3), dict(yarn, attention_factor=0.8)])
    return {"rope_theta": r.choice([1e4, 1e6]), **kind, **more}


def grouped(r):
    kv, group = r.choice([1, 2, 3]), r.choice([1, 2, 3, 5, 7])
    return dict(num_attention_heads=kv * group, num_key_value_heads=kv, head_dim=r.choice([16, 32, 48]), hidden_size=kv * group * r.choice([8, 16, 24]))


def common(r, layers=3):
    return dict(vocab_size=r.choice([301, 384]), num_hidden_layers=layers, max_position_embeddings=4096, tie_word_embeddings=r.random() < 0.4,
                intermediate_size=r.choice([80, 112]), rms_norm_eps=r.choice([1e-6, 1e-5]), bos_token_id=0, eos_token_id=1, pad_token_id=None)


def dense(r):
    return dict(common(r), **grouped(r), rope_parameters=rope(r))


def windows(r, config):
    types = [r.choice([SLIDING, FULL]) for _ in range(config["num_hidden_layers"])]
    return dict(config, layer_types=types, sliding_window=r.choice([1, 9, 24, 64]), use_sliding_window=SLIDING in types)


def experts(r, number, top):
    n = r.choice([4, 5, 8])
    return {number: n, top: r.choice([1, 2, n])}


def noaux(r):
    groups, inside = r.choice([1, 2, 4]), r.choice([2, 3])
    top = r.randint(1, groups)
    return dict(num_nextn_predict_layers=0, n_routed_experts=groups * inside, n_group=groups, topk_group=top, num_experts_per_tok=r.randint(1, top * inside),
                n_shared_experts=r.choice([1, 2]), moe_intermediate_size=48, norm_topk_prob=r.random() < 0.7, routed_scaling_factor=r.choice([1.0, 2.5]))


def latent(r):
    return dict(common(r), **noaux(r), hidden_size=96, num_attention_heads=(heads := r.choice([1, 3, 4])), num_key_value_heads=heads,
                q_lora_rank=r.choice([32, 64]), kv_lora_rank=r.choice([16, 32]), qk_nope_head_dim=r.choice([16, 32]), qk_rope_head_dim=16,
                v_head_dim=r.choice([16, 48]), rope_parameters=rope(r))


def kinds_of_mlp(r):
    return {"mlp_layer_types": [r.choice(["dense", "sparse"]) for _ in range(3)]}


def deepseek_v3(r):
    return dict(latent(r), first_k_dense_replace=r.randint(0, 3), rope_interleave=r.random() < 0.7, **({"q_lora_rank": None} if r.random() < 0.3 else {}))


def glm_moe_dsa(r):
    return dict(latent(r), **kinds_of_mlp(r), index_n_heads=8, index_head_dim=32, index_topk=200, indexer_types=["full"] + [r.choice(["full", "shared"]) for _ in range(2)])


def hybrid(r, **more):
    keys = r.choice([1, 2])
    types = [r.choice([LINEAR, LINEAR, FULL]) for _ in range(4)]
    return dict(common(r, 4), **grouped(r), layer_types=types, linear_num_key_heads=keys, linear_num_value_heads=keys * r.choice([1, 2, 3]),
                linear_key_head_dim=r.choice([16, 32]), linear_value_head_dim=r.choice([16, 32]), linear_conv_kernel_dim=r.choice([2, 4, 5]),
                rope_parameters={"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.5}, partial_rotary_factor=0.5,
                moe_intermediate_size=48, shared_expert_intermediate_size=r.choice([32, 64]), **experts(r, "num_experts", "num_experts_per_tok"), **more)


def gemma3(r):
    c = windows(r, dict(common(r, 4), **grouped(r)))
    return dict(c, query_pre_attn_scalar=r.choice([24, 100]), hidden_activation="gelu_pytorch_tanh", final_logit_softcapping=r.choice([None, 20.0]),
                rope_parameters={SLIDING: {"rope_type": "default", "rope_theta": 1e4}, FULL: rope(r)})


def gemma4(r):
    c = windows(r, dict(common(r, 4), **grouped(r)))
    same = r.random() < 0.5
    c.update(layer_types=c["layer_types"][:3] + [FULL], global_head_dim=r.choice([32, 64]), attention_k_eq_v=same, num_global_key_value_heads=1 if same else None,
             final_logit_softcapping=r.choice([None, 30.0]), hidden_activation="gelu_pytorch_tanh", hidden_size_per_layer_input=0, num_kv_shared_layers=0,
             rope_parameters={SLIDING: {"rope_type": "default", "rope_theta": 1e4},
                              FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": r.choice([0.25, 0.5, 1.0])}})
    return dict(c, enable_moe_block=True, moe_intermediate_size=48, **experts(r, "num_experts", "top_k_experts")) if r.random() < 0.5 else c


def nemotron_h(r):
    kinds = [r.choice(["linear_attention", "full_attention", "moe", "mlp"]) for _ in range(5)]
    config = dict(common(r), **grouped(r), **noaux(r), layers_block_type=kinds, mamba_num_heads=8, mamba_head_dim=16, n_groups=r.choice([1, 2, 8]),
                  ssm_state_size=r.choice([16, 32]), conv_kernel=r.choice([2, 4]), use_conv_bias=r.random() < 0.5, chunk_size=16, mlp_hidden_act="relu2",
                  moe_shared_expert_intermediate_size=64, moe_latent_size=r.choice([None, 32]), layer_norm_epsilon=1e-5, tie_word_embeddings=False)
    del config["num_hidden_layers"]
    return config


FAMILIES = {
    "Llama": dense,
    "Mistral": lambda r: dict(dense(r), sliding_window=r.choice([None, 1, 24])),
    "Qwen2": lambda r: windows(r, dense(r)),
    "Qwen2Moe": lambda r: dict(windows(r, dense(r)), **experts(r, "num_experts", "num_experts_per_tok"), moe_intermediate_size=48,
                               shared_expert_intermediate_size=r.choice([32, 64]), norm_topk_prob=r.random() < 0.5, qkv_bias=r.random() < 0.7,
                               decoder_sparse_step=r.choice([1, 2]), mlp_only_layers=r.choice([[], [0], [1]])),
    "Qwen3": lambda r: windows(r, dense(r)),
    "Qwen3Moe": lambda r: dict(dense(r), **experts(r, "num_experts", "num_experts_per_tok"), moe_intermediate_size=48, norm_topk_prob=r.random() < 0.5,
                               decoder_sparse_step=r.choice([1, 2]), mlp_only_layers=r.choice([[], [0], [1]])),
    "Mixtral": lambda r: dict(dense(r), **experts(r, "num_local_experts", "num_experts_per_tok"), sliding_window=r.choice([None, 24])),
    "MiniMaxM2": lambda r: dict(dense(r), **experts(r, "num_local_experts", "num_experts_per_tok"), rope_parameters=rope(r, partial_rotary_factor=0.5)),
    "Glm4Moe": lambda r: dict(dense(r), **noaux(r), first_k_dense_replace=r.randint(0, 3), use_qk_norm=r.random() < 0.5, attention_bias=r.random() < 0.5,
                              rope_parameters=rope(r, partial_rotary_factor=0.5)),
    "GptOss": lambda r: dict(windows(r, dense(r)), **experts(r, "num_local_experts", "num_experts_per_tok"), swiglu_limit=7.0),
    "DeepseekV3": deepseek_v3,
    "GlmMoeDsa": glm_moe_dsa,
    "Glm4MoeLite": lambda r: dict(latent(r), **kinds_of_mlp(r)),
    "Qwen3Next": lambda r: hybrid(r, norm_topk_prob=r.random() < 0.5, decoder_sparse_step=r.choice([1, 2])),
    "Qwen3_5Moe": hybrid,
    "Gemma3": gemma3,
    "Gemma4": gemma4,
    "NemotronH": nemotron_h,
}


def draw(model, seed):
    """Every parameter anew, also those that begin as 0 or 1: one that is forgotten shows. Values as BF16 holds them."""
    g = torch.Generator().manual_seed(seed)
    kept = set(model.state_dict())
    for name, p in sorted([*model.named_parameters(), *model.named_buffers()]):
        leaf, v = name.split(".")[-1], torch.randn(p.shape, generator=g)
        if leaf == "A_log":
            v = torch.log(0.5 + 5 * torch.rand(p.shape, generator=g))
        elif "bias" in leaf:
            v = 0.25 * v
        elif p.dim() < 2:
            v = 1 + 0.2 * v
        elif "embed" not in name and "conv1d" not in name:
            v = v * p.shape[-2 if "GptOss" in type(model).__name__ and "experts" in name else -1] ** -0.5
        if name in kept and p.is_floating_point():
            p.data.copy_(v.to(torch.bfloat16))


@torch.no_grad()
def logits(model, ids):
    return [model(input_ids=torch.tensor([row]), use_cache=False).logits[0].numpy() for row in ids]


def on_an_edge(model, ids, want):
    """A choice of experts or tokens that noise of the embeddings, which is what F32 leaves open, turns over."""
    embed = model.get_input_embeddings().weight.data
    embed.mul_(1 + 2e-6 * torch.randn(embed.shape, generator=torch.Generator().manual_seed(7)))
    return max(np.abs(a - b).max() for a, b in zip(logits(model, ids), want)) > 1e-3


@pytest.mark.parametrize("number", range(SEED, SEED + COUNT))
@pytest.mark.parametrize("family", FAMILIES)
def test_variant(family, number, tmp_path):
    r = random.Random(f"{family} {number}")
    settings = FAMILIES[family](r)
    kind = getattr(transformers, family + "ForCausalLM")
    config = kind.config_class(**json.loads(json.dumps(settings)))
    config._attn_implementation = config._experts_implementation = "eager"
    torch.manual_seed(number)
    model = kind(config).float().eval()
    draw(model, number)
    model.tie_weights()
    model.save_pretrained(tmp_path / "model")
    ids = [[r.randrange(3, settings["vocab_size"]) for _ in range(n)] for n in LENGTHS]
    (tmp_path / "ids.json").write_text(json.dumps(ids))
    got = []
    for flags in (), ("--chunk", "1"), ("--chunk", "7", "--together"):
        nb.ok("eval", tmp_path / "model", "--ids", tmp_path / "ids.json", "--logits", tmp_path / "out.st", "--arith", "exact", *flags)
        got.append(st.load(tmp_path / "out.st"))
    want = logits(model, ids)
    assert np.isfinite(np.concatenate(want)).all()
    for other in got[1:]:
        assert all(other[k].tobytes() == v.tobytes() for k, v in got[0].items()), settings
    worst = [np.abs(got[0][f"logits.{i}"] - w).max() / max(1, w.std() / 3) for i, w in enumerate(want)]
    if max(worst) > 1e-3 and on_an_edge(model, ids, want):
        pytest.skip("a choice of this model stands on an edge")
    assert max(worst) <= 1e-3, (worst, settings)
    nb.ok("check", tmp_path / "model", "--ignore", "NB210")  # it has no tokenizer


def short(family, *gone, **more):
    """A family's settings without the keys in gone: what they then are is the class's business."""
    def make(r):
        settings = {**FAMILIES[family](r), **more}
        return {k: v for k, v in settings.items() if k not in gone}
    return family, make


SHORT = {
    "Qwen3": short("Qwen3", "head_dim"), "MiniMaxM2": short("MiniMaxM2", "head_dim"), "GptOss": short("GptOss", "head_dim"),
    "NemotronH": short("NemotronH", "head_dim"), "Qwen3Next": short("Qwen3Next", "head_dim"), "Qwen3_5Moe": short("Qwen3_5Moe", "head_dim"),
    "Qwen3Moe": short("Qwen3Moe", "head_dim"), "Llama": short("Llama", "head_dim", "num_key_value_heads"), "Qwen2": short("Qwen2", "head_dim"),
    # as Google published the text model of the 4B
    "Gemma3": ("Gemma3", lambda r: dict(hidden_size=64, intermediate_size=96, num_hidden_layers=7, sliding_window=24,
                                        rope_scaling={"factor": 8.0, "rope_type": "linear"})),
}


@pytest.mark.parametrize("name", SHORT)
def test_short_config(name, tmp_path):
    """Keys that config.json leaves out are what transformers' class makes of that."""
    family, make = SHORT[name]
    kind = getattr(transformers, family + "ForCausalLM")
    folder = tmp_path / "model"
    folder.mkdir()
    text = json.dumps({"model_type": kind.config_class.model_type, "architectures": [kind.__name__], "torch_dtype": "bfloat16", **make(random.Random(name))})
    (folder / "config.json").write_text(text)
    config = transformers.AutoConfig.from_pretrained(folder)
    config._attn_implementation = config._experts_implementation = "eager"
    torch.manual_seed(1)
    model = kind(config).float().eval()
    draw(model, 1)
    model.tie_weights()
    model.save_pretrained(folder)
    (folder / "config.json").write_text(text)
    ids = [[(7 * i + 3) % 300 for i in range(n)] for n in (1, 33, 65)]
    (tmp_path / "ids.json").write_text(json.dumps(ids))
    nb.ok("eval", folder, "--ids", tmp_path / "ids.json", "--logits", tmp_path / "out.st", "--arith", "exact")
    got, want = st.load(tmp_path / "out.st"), logits(model, ids)
    assert max(np.abs(got[f"logits.{i}"] - w).max() / max(1, w.std() / 3) for i, w in enumerate(want)) <= 1e-3
    nb.ok("check", folder, "--ignore", "NB210")  # it has no tokenizer
