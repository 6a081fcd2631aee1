"""nibble beside llama.cpp on the same weights: an NVFP4 llama (ModelOpt's flavour) is written as GGUF, once with its NVFP4 blocks as they
are and once requantised to Q4_0, and both programs run in turn, so that a busy machine slows them alike.

    python3 bench/compare_llama_cpp.py MODEL --llama-bench PATH/bin/llama-bench [--nibble build/nibble] [--prompt 512,2048]
        [--tokens 32] [--depth 0] [--arith int8,bf16] [--rounds 5] [--threads N] [--kernels avx2] [--work FOLDER]

A line for each pair, for decode (none with --tokens 0) and for every prompt length (none with --prompt ''): the median of the rounds'
ratios (nibble's tokens/s over llama.cpp's of the same round), and the smallest and the largest of them. llama.cpp takes the best of its
repetitions within a round. docs/performance.md says where llama.cpp's source is to be had and how it was built. Needs numpy."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import statistics
import struct
import subprocess
import tempfile

import numpy as np

F32, Q4_0, BF16, NVFP4 = 0, 2, 30, 40  # ggml's numbers of types
CODES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


class Checkpoint:
    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        self.tensors = {}
        for path in sorted(folder.glob("*.safetensors")):
            with open(path, "rb") as f:
                size, = struct.unpack("<Q", f.read(8))
                head = json.loads(f.read(size))
            data = np.memmap(path, np.uint8, "r", 8 + size)
            for name, t in head.items():
                if name != "__metadata__":
                    self.tensors[name] = data[slice(*t["data_offsets"])], t["shape"]

    def raw(self, name):
        data, shape = self.tensors[name]
        return data, shape

    def f32(self, name):
        """A BF16 tensor as F32."""
        data, shape = self.tensors[name]
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)

    def scalar(self, name):
        return float(self.tensors[name][0].view(np.float32)[0])


def e4m3(bytes_):
    e, m = bytes_ >> 3 & 15, (bytes_ & 7).astype(np.float32)
    return np.where(e == 0, m * np.float32(2**-9), (1 + m / 8) * np.exp2(e.astype(np.float32) - 7)).astype(np.float32)


def rope_rows(rows, heads):
    """llama.cpp's rotation of this architecture pairs neighbours, so the rows of a head's halves are put in turn."""
    return rows if not heads else rows.reshape(heads, 2, -1, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def as_nvfp4(codes, scales):
    """Blocks of 64: four scale bytes, then for each 16 the codes of k and k + 8 in one byte."""
    n, blocks = scales.shape
    c = codes.reshape(n, blocks, 8)
    c = np.stack([c & 15, c >> 4], -1).reshape(n, blocks, 2, 8)
    c = (c[:, :, 0] | c[:, :, 1] << 4).reshape(n, blocks // 4, 32)
    return np.concatenate([scales.reshape(n, blocks // 4, 4) & 0x7F, c], -1)


def as_q4_0(codes, scales, multiplier):
    """Blocks of 32: a scale as F16, so that the value of largest magnitude is -8 of it, then the codes of k and k + 16 in one byte."""
    n, blocks = scales.shape
    pair = np.stack([CODES[codes & 15], CODES[codes >> 4]], -1).reshape(n, blocks, 16)
    x = (pair * (e4m3(scales) * np.float32(multiplier))[:, :, None]).reshape(n, blocks // 2, 32)
    d = np.take_along_axis(x, np.abs(x).argmax(-1)[..., None], -1) / -8
    inverse = np.divide(1, d, out=np.zeros_like(d), where=d != 0)
    q = np.clip(x * inverse + 8.5, 0, 15).astype(np.uint8)
    return np.concatenate([d.astype(np.float16).view(np.uint8), q[..., :16] | q[..., 16:] << 4], -1)


def linear(ckpt, module, name, heads, q4_0):
    """What a quantised linear becomes: [(name, type, shape, bytes)]."""
    codes, (n, _) = ckpt.raw(module + ".weight")
    scales, (_, blocks) = ckpt.raw(module + ".weight_scale")
    multiplier = ckpt.scalar(module + ".weight_scale_2")
    codes, scales = rope_rows(codes.reshape(n, -1), heads), rope_rows(scales.reshape(n, blocks), heads)
    if q4_0:
        return [(name + ".weight", Q4_0, [n, blocks * 16], as_q4_0(codes, scales, multiplier).tobytes())]
    return [(name + ".weight", NVFP4, [n, blocks * 16], as_nvfp4(codes, scales).tobytes()),
            (name + ".scale", F32, [1], np.float32(multiplier).tobytes())]


def tensor(ckpt, stored, name):
    if len(ckpt.tensors[stored][1]) == 1:  # norms
        return [(name + ".weight", F32, ckpt.tensors[stored][1], ckpt.f32(stored).tobytes())]
    data, shape = ckpt.raw(stored)
    return [(name + ".weight", BF16, shape, data.tobytes())]


def convert(ckpt, q4_0):
    """All tensors of the GGUF, several made at a time."""
    c = ckpt.config
    heads = {"attn_q": c["num_attention_heads"], "attn_k": c.get("num_key_value_heads", c["num_attention_heads"])}
    jobs = [(tensor, "model.embed_tokens.weight", "token_embd"), (tensor, "model.norm.weight", "output_norm")]
    if not c.get("tie_word_embeddings"):
        jobs.append((tensor, "lm_head.weight", "output"))
    for l in range(c["num_hidden_layers"]):
        for ours, theirs in NAMES.items():
            module, name = f"model.layers.{l}.{ours}", f"blk.{l}.{theirs}"
            if module + ".weight_scale" in ckpt.tensors:
                jobs.append((linear, module, name, heads.get(theirs), q4_0))
            else:
                jobs.append((tensor, module + ".weight", name))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for made in pool.map(lambda job: job[0](ckpt, *job[1:]), jobs):
            yield from made


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def write_gguf(ckpt, q4_0, path):
    c = ckpt.config
    hd = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    u32 = {"context_length": c["max_position_embeddings"], "embedding_length": c["hidden_size"], "block_count": c["num_hidden_layers"],
           "feed_forward_length": c["intermediate_size"], "attention.head_count": c["num_attention_heads"],
           "attention.head_count_kv": c.get("num_key_value_heads", c["num_attention_heads"]), "rope.dimension_count": hd,
           "attention.key_length": hd, "attention.value_length": hd, "vocab_size": c["vocab_size"]}
    f32 = {"attention.layer_norm_rms_epsilon": c["rms_norm_eps"], "rope.freq_base": c["rope_theta"]}
    meta = [text(k) + struct.pack("<I", 8) + text(v) for k, v in (("general.architecture", "llama"), ("tokenizer.ggml.model", "no_vocab"))]
    meta += [text("llama." + k) + struct.pack("<II", 4, v) for k, v in u32.items()]
    meta += [text("llama." + k) + struct.pack("<If", 6, v) for k, v in f32.items()]
    infos, parts, at = [], [], 0
    for name, kind, shape, data in convert(ckpt, q4_0):
        infos.append(text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, at))
        parts.append(data + bytes(-len(data) % 32))
        at += len(parts[-1])
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(infos), len(meta)) + b"".join(meta + infos)
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32))
        f.writelines(parts)


def run_nibble(a, arith, prompt):
    """tokens/s of a prefill; of decode where there is no prompt: behind `depth` tokens of context and the few that bench needs."""
    size = ["--prompt", str(prompt), "--tokens", "1"] if prompt else ["--prompt", "8", "--tokens", str(a.tokens)]
    size += ["--context", str(a.depth)] if a.depth and not prompt else []
    cmd = [a.nibble, "bench", a.model, "--arith", arith, *size, "--threads", str(a.threads), "--format", "json", "-q"]
    out = json.loads(subprocess.run(cmd + (["--kernels", a.kernels] if a.kernels else []), check=True, capture_output=True, text=True).stdout)
    return {r["name"]: r["tokens_per_s"] for r in out["results"]}["prefill" if prompt else "decode"]


def run_llama(a, gguf, prompt):
    size = ["-p", str(prompt), "-n", "0", "-ub", str(prompt), "-b", str(prompt)] if prompt else ["-p", "0", "-n", str(a.tokens), "-d", str(a.depth)]
    cmd = [a.llama_bench, "-m", gguf, *size, "-t", str(a.threads), "-r", str(a.reps), "--no-warmup", "-o", "json"]
    env = os.environ | ({"LD_PRELOAD": a.llama_preload} if a.llama_preload else {})
    out = json.loads(subprocess.run(cmd, check=True, capture_output=True, text=True, env=env).stdout)
    return max(out[0]["samples_ts"])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model", type=pathlib.Path)
    ap.add_argument("--llama-bench", required=True)
    ap.add_argument("--llama-preload", help="a libggml-cpu.so to use in place of the one built with llama-bench, for another instruction set")
    ap.add_argument("--nibble", default="build/nibble")
    ap.add_argument("--prompt", default="512")
    ap.add_argument("--tokens", type=int, default=32)
    ap.add_argument("--depth", type=int, default=0, help="tokens of context in front of those decoded")
    ap.add_argument("--arith", default="int8,bf16")
    ap.add_argument("--types", default="nvfp4,q4_0")
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--reps", type=int, default=3, help="repetitions of llama-bench in a round")
    ap.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    ap.add_argument("--kernels")
    ap.add_argument("--work", type=pathlib.Path, help="where the GGUF files are written and kept")
    a = ap.parse_args()
    lengths = [0] * (a.tokens > 0) + [int(p) for p in a.prompt.split(",") if p]  # 0: decode
    if not lengths:
        ap.error("--tokens 0 and no --prompt leave nothing to measure")
    ckpt = Checkpoint(a.model)
    with tempfile.TemporaryDirectory() as scratch:
        work = a.work or pathlib.Path(scratch)
        files = {}
        for kind in a.types.split(","):
            files[kind] = work / f"{a.model.resolve().name}-{kind}.gguf"
            if not files[kind].exists():
                write_gguf(ckpt, kind == "q4_0", files[kind])
        for prompt in lengths:
            ours, theirs = {}, {}
            for _ in range(a.rounds):
                for kind, path in files.items():
                    theirs.setdefault(kind, []).append(run_llama(a, path, prompt))
                for arith in a.arith.split(","):
                    ours.setdefault(arith, []).append(run_nibble(a, arith, prompt))
            what = f"prefill {prompt:6}" if prompt else f"decode @{a.depth:6}"
            for arith in ours:
                for kind in files:
                    ratios = [o / t for o, t in zip(ours[arith], theirs[kind])]
                    print(f"{what}  nibble {arith:5} {statistics.median(ours[arith]):9.1f} t/s   llama.cpp {kind:6}"
                          f"{statistics.median(theirs[kind]):9.1f} t/s   x {statistics.median(ratios):5.2f}  ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


if __name__ == "__main__":
    main()
