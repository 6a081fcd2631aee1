#!/usr/bin/env python3
"""Writes the seeds of fuzz_safetensors, fuzz_index and fuzz_config: small good files and one of each bad kind that
docs/formats.md names. Run from anywhere; python3 alone."""
import json
import os
import struct

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus")


def put(folder, name, data):
    os.makedirs(os.path.join(HERE, folder), exist_ok=True)
    with open(os.path.join(HERE, folder, name), "wb") as f:
        f.write(data if isinstance(data, bytes) else data.encode())


def st(name, header, data=b"", size=None):
    header = header.encode() if isinstance(header, str) else header
    put("safetensors", name, struct.pack("<Q", len(header) if size is None else size) + header + data)


def entry(dtype="U8", shape="[4]", offsets="[0,4]"):
    return '{"dtype":"%s","shape":%s,"data_offsets":%s}' % (dtype, shape, offsets)


def safetensors():
    st("good", '{"__metadata__":{"format":"pt"},"a":%s,"b\\u0041":%s}' % (entry(), entry("BF16", "[1,2]", "[4,8]")), bytes(8))
    st("good_empty", "{}")
    st("good_scalar_and_zero_size", '{"s":%s,"z":%s}' % (entry("F32", "[]"), entry("I32", "[2,0]", "[0,0]")), bytes(4))
    st("good_space", ' \t\r\n{"a":%s} \n' % entry(), bytes(4))
    st("good_f4", '{"a":%s}' % entry("F4", "[1,2]", "[0,1]"), bytes(1))
    put("safetensors", "empty", b"")
    put("safetensors", "seven_bytes", bytes(7))
    put("safetensors", "lfs_pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4976698672\n")
    st("length_60_of_none", "", size=60)
    st("length_1000_of_2", "{}", size=1000)
    st("length_wraps", "{}", size=2**64 - 1)
    st("length_ffffff000000003c", "{}", size=0xFFFFFF000000003C)
    st("length_over_limit", "{}", size=100_000_001)
    st("not_utf8", b"\xff")
    st("brace", "{")
    st("array", "[]")
    st("deep", '{"a":{"x":' + "[" * 300)
    st("overlap", "{%s}" % ",".join('"t%d":%s' % (i, entry()) for i in range(10)), bytes(4))
    st("hole", '{"a":%s,"b":%s}' % (entry(), entry(offsets="[8,12]")), bytes(12))
    st("starts_late", '{"a":%s}' % entry(offsets="[8,12]"), bytes(12))
    st("end_before_begin", '{"a":%s}' % entry(offsets="[4,0]"), bytes(4))
    st("begin_wraps", '{"a":%s}' % entry(offsets="[18446744073709551612,0]"), bytes(4))
    st("two_missing", '{"a":%s}' % entry(), bytes(2))
    st("trailing", '{"a":%s}' % entry(), bytes(4) + b"PK\x03\x04")
    st("product_overflows", '{"a":%s}' % entry("F32", "[2,18446744073709551614]"), bytes(4))
    st("bits_overflow", '{"a":%s}' % entry("F32", "[2,9223372036854775807]"), bytes(4))
    st("count_2_63", '{"a":%s}' % entry(shape="[9223372036854775808]"), bytes(4))
    st("size_disagrees", '{"a":%s}' % entry("I32", "[2,2]"), bytes(4))
    st("f4_misaligned", '{"a":%s}' % entry("F4", "[1,3]", "[0,2]"), bytes(2))
    st("shape_negative", '{"a":%s}' % entry(shape="[-1]"), bytes(4))
    st("shape_float", '{"a":%s}' % entry(shape="[4.0]"), bytes(4))
    st("dtype_unknown", '{"a":%s}' % entry("F8_E4M3X"), bytes(4))
    st("no_offsets", '{"a":{"dtype":"U8","shape":[4]}}', bytes(4))
    st("name_twice", '{"a":%s,"\\u0061":%s}' % (entry(shape="[0]", offsets="[0,0]"), entry(shape="[0]", offsets="[0,0]")))
    st("name_nul", '{"a\\u0000":%s}' % entry(), bytes(4))
    st("metadata_number", '{"__metadata__":{"n":1}}')
    st("metadata_twice", '{"__metadata__":{"n":"1","n":"2"}}')


def index():
    good = {"metadata": {"total_size": 8}, "weight_map": {"model.layers.0.self_attn.q_a_proj.weight_packed": "model-1.safetensors",
            "layers.1.ffn.experts.12.w2.weight_scale_2": "model-2.safetensors", "mtp.0.norm.weight": "model-1.safetensors"}}
    text = json.dumps(good)
    put("index", "good", text)
    put("index", "no_metadata", '{"weight_map":{}}')
    put("index", "cut_off", text[:len(text) // 3])
    put("index", "not_an_object", "[]")
    put("index", "no_map", "{}")
    put("index", "parent", '{"weight_map":{"a":"../model.safetensors"}}')
    put("index", "absolute", '{"weight_map":{"a":"/model.safetensors"}}')
    put("index", "folder", '{"weight_map":{"a":"sub/model.safetensors"}}')
    put("index", "nul", '{"weight_map":{"a":"model\\u0000.safetensors"}}')
    put("index", "twice", '{"weight_map":{"a":"f","\\u0061":"g"}}')
    put("index", "file_is_number", '{"weight_map":{"a":1}}')
    put("index", "total_is_text", '{"metadata":{"total_size":"8"},"weight_map":{}}')
    put("index", "total_is_huge", '{"metadata":{"total_size":1e999},"weight_map":{}}')
    put("index", "deep", '{"x":' + "[" * 300)


def config():
    llama = {"model_type": "llama", "num_hidden_layers": 2, "vocab_size": 384, "hidden_size": 96, "num_attention_heads": 6,
             "intermediate_size": 192, "tie_word_embeddings": True}
    ds4 = {"model_type": "deepseek_v4", "num_hidden_layers": 3, "vocab_size": 8, "hidden_size": 8, "num_attention_heads": 2,
           "head_dim": 8, "q_lora_rank": 8, "o_groups": 2, "o_lora_rank": 8, "sliding_window": 8, "n_routed_experts": 2,
           "n_shared_experts": 1, "num_experts_per_tok": 1, "moe_intermediate_size": 8, "hc_mult": 2, "hc_sinkhorn_iters": 1,
           "index_n_heads": 1, "index_head_dim": 8, "index_topk": 1}
    put("config", "llama", json.dumps(llama))
    put("config", "llama_nested", json.dumps({"model_type": "llava", "text_config": llama}))
    put("config", "llama_zero_heads", json.dumps({**llama, "num_attention_heads": 0}))
    put("config", "llama_huge", json.dumps({**llama, "num_hidden_layers": 2**62, "hidden_size": 2**63}))
    put("config", "deepseek_published", json.dumps({**ds4, "qk_rope_head_dim": 4, "compress_ratios": [0, 4, 128], "num_hash_layers": 1}))
    put("config", "deepseek_transformers", json.dumps({**ds4, "partial_rotary_factor": .5, "mlp_layer_types": ["hash_moe", "moe", "moe"],
        "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}}))
    put("config", "deepseek_keys_gone", json.dumps(ds4))
    put("config", "deepseek_bad_ratios", json.dumps({**ds4, "qk_rope_head_dim": 4, "compress_ratios": [0, -4, "x"], "num_hash_layers": 1}))
    put("config", "non_finite", '{"a":[Infinity,-Infinity,NaN,"NaN \\" Infinity"],"rope_theta":Infinity,"b":{"__float__":"NaN"}}')
    put("config", "not_json", '{"a":01}')
    put("config", "no_type", "{}")
    put("config", "unknown_type", '{"model_type":"mamba9"}')
    put("config", "deep", '{"a":' * 300)


safetensors()
index()
config()
