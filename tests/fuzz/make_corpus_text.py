"""Writes the first inputs of fuzz_tokenizer, fuzz_dsv4 and fuzz_reply: python3 tests/fuzz/make_corpus_text.py. Small tokenizers of each
family, the components and mistakes that the loader must tell apart, requests and replies."""
import json
import pathlib

HERE = pathlib.Path(__file__).parent / "corpus"
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
CASELESS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = CASELESS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CASELESS
         + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
KIMI = r"[\p{Han}]+|[\p{Lu}\p{M}&&[^\p{Han}]]*"


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(*parts):
    return {"type": "Sequence", "pretokenizers": [*parts, BYTES]}


def added(content, **flags):
    return {"id": 0, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True, **flags}


def tokenizer(pre=BYTES, tokens=("a", "b", "c", "Ġ", "1", "2", "ab", "abc", "Ġa", "12", "ä", "½", "ł"), merges=("a b", "ab c", "Ġ a", "1 2"), **parts):
    model = {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": list(merges), **parts.pop("model", {})}
    return {"version": "1.0", "added_tokens": [added("<s>")], "normalizer": None, "pre_tokenizer": pre, "post_processor": None,
            "decoder": BYTES, "model": model, **parts}


TEMPLATE = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [13], "tokens": ["<s>"]}}}

TOKENIZERS = {
    "gpt2": tokenizer({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, {**BYTES, "use_regex": True}]}),
    "llama3": tokenizer(sequence(split(LLAMA3)), model={"ignore_merges": True},
                        post_processor={"type": "Sequence", "processors": [BYTES, TEMPLATE]}),
    "qwen": tokenizer(sequence(split(LLAMA3.replace("{1,3}", ""))), normalizer={"type": "NFC"},
                      added_tokens=[added("cá", normalized=True), added("á", normalized=True), added("<s>", lstrip=True, rstrip=True)]),
    "deepseek": tokenizer(sequence(*map(split, DEEPSEEK)), normalizer={"type": "Sequence", "normalizers": []},
                          added_tokens=[added("<｜User｜>"), added("<｜Assistant｜>"), added("ab", single_word=True)]),
    "o200k": tokenizer(sequence(split(O200K)), merges=[["a", "b"], ["ab", "c"]]),
    "unk": tokenizer(tokens=("a", "b", "<unk>"), merges=(), model={"unk_token": "<unk>", "fuse_unk": True}),
    "removed": tokenizer(sequence(split("[a-z]+", "Removed", True), split("x*"), split(" ", kind="String"))),
    "kimi": tokenizer(sequence(split(KIMI))),
    "escapes": tokenizer(sequence(split(r"(?<=a)\d|[^\s\p{^Han}]{2,}|(?>\S)++|^.$"))),
    "metaspace": tokenizer({"type": "Metaspace", "replacement": "▁"}),
    "spm": tokenizer(model={"byte_fallback": True}),
    "fuse": tokenizer(decoder={"type": "Sequence", "decoders": [BYTES, {"type": "Fuse"}]}),
    "gap": tokenizer(tokens=("a", "b")) | {"model": {"type": "BPE", "vocab": {"a": 0, "b": 300}, "merges": []}},
    "twice": tokenizer() | {"model": {"vocab": {"a": 0, "b": 0}, "merges": ["a b", "a", ["a"], 3]}},
}

CALL = '<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="true">x</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
DSV4 = {
    "reply": "cHello<｜end▁of▁sentence｜>",
    "thought": "twhy</think>so",
    "calls": f"tr</think>c\n\n<｜DSML｜tool_calls>\n{CALL}{CALL}</｜DSML｜tool_calls><｜end▁of▁sentence｜>",
    "request": "r" + json.dumps({
        "tools": [{"function": {"name": "f", "x": [1.5, 1e300, None]}}],
        "messages": [{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}, {"role": "user", "content": [{"type": "text", "text": "u"}]},
                     {"role": "assistant", "content": "c", "reasoning": "r", "tool_calls": [{"id": "i", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
                     {"role": "tool", "tool_call_id": "i", "content": "t"}, {"role": "latest_reminder", "content": "l"},
                     {"role": "user", "content": "u", "task": "action"}],
        "response_format": {"type": "json_schema", "json_schema": {"schema": {}}},
        "chat_template_kwargs": {"thinking": {"type": "enabled"}, "reasoning_effort": "max", "drop_thinking": False}}, ensure_ascii=False),
}

# reasoning parser (NULL is 8), tool parser and thinking in the first byte, the cuts in the second
HERMES = '<tool_call>\n{"name": "f", "arguments": {"a": [1, {"b": "}\\""}]}}\n</tool_call>\n'
BLOCK = f"\n\n<｜DSML｜tool_calls>\n{CALL}{CALL}</｜DSML｜tool_calls>"
REPLY = {
    "r1": (0 << 1 | 1, "<think>why</think>so"),
    "identity": (1 << 1, "<think>why</think>so"),
    "v4": (2 << 1 | 1, f"why</think>so{BLOCK}"),
    "v4_cut": (2 << 1 | 1, f"why{BLOCK[:-40]}"),
    "v4_json": (8 << 1, '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="false">[1</｜DSML｜parameter>\n</｜DSML｜invoke>\n'),
    "qwen": (1 << 5 | 7 << 1 | 1, f"why</think>\n\n{HERMES}{HERMES}"),
    "hermes_bad": (1 << 5 | 8 << 1, f"a{HERMES[:50]}x{HERMES}"),
    "hermes_order": (1 << 5 | 8 << 1, '<tool_call>{"arguments": -1.5e3, "x": [true, null], "name": "g"}</tool_call> and'),
}

for name, value in TOKENIZERS.items():
    path = HERE / "tokenizer" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, ensure_ascii=False).encode()
    path.write_bytes(text + (b"\xff abc 12 <s>\xe4\xbd\xa0" if name == "llama3" else b""))
for name, value in DSV4.items():
    path = HERE / "dsv4" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(value.encode())
for name, (choice, text) in REPLY.items():
    path = HERE / "reply" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes([choice, 7]) + text.encode())
