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


MARKS = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def spm(pre=None, **parts):
    """A vocabulary of SentencePiece's style."""
    tokens = ("<unk>", "▁", "a", "b", "c", "▁a", "ab", "▁▁", *(f"<0x{b:02X}>" for b in (0xE4, 0xBD, 0xA0, 0x0A)))
    model = {"unk_token": "<unk>", "byte_fallback": True, **parts.pop("model", {})}
    decoders = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, STRIP]
    return tokenizer(pre, tokens, [["▁", "▁"], ["▁", "a"], ["a", "b"]], model=model, decoder={"type": "Sequence", "decoders": decoders}, **parts)


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
    "metaspace": spm({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}),
    "spm": spm(normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, MARKS]}),
    "gemma": spm(split(" ", "MergedWithPrevious", kind="String"), normalizer=MARKS, model={"fuse_unk": True, "byte_fallback": True}),
    "classes": tokenizer(sequence(split(r"[^a[b]&&[\p{L}[^c]]]+|[[x][-b]^]"))),
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

# the tool parser (in the order of toolforms.c) and thinking in the first byte, the reasoning parser (reply.c) and schemas in the second, the
# cuts in the third
TOOLS = ["deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4", "functiongemma", "gemma4", "glm45", "glm47", "hermes", "kimi_k2",
         "llama3_json", "llama4_json", "minimax_m2", "mistral", "openai", "qwen3_coder", "qwen3_xml", "seed_oss", "step3p5", None]
REASONING = ["deepseek_r1", "deepseek_v3", "deepseek_v4", "gemma4", "glm45", "glm47", "holo2", "kimi_k2", "mimo", "minimax_m2", "mistral",
             "nemotron_v3", "openai_gptoss", "qwen3", "seed_oss", "step3p5", None]
HERMES = '<tool_call>\n{"name": "f", "arguments": {"a": [1, {"b": "}\\""}]}}\n</tool_call>\n'
BLOCK = f"\n\n<｜DSML｜tool_calls>\n{CALL}{CALL}</｜DSML｜tool_calls>"
D = "<｜tool▁"
REPLY = {
    "r1": ("deepseek_r1", None, True, "<think>why</think>so"),
    "identity": ("deepseek_v3", None, False, "<think>why</think>so"),
    "v4": ("deepseek_v4", "deepseek_v4", True, f"why</think>so{BLOCK}"),
    "v4_cut": ("deepseek_v4", "deepseek_v4", True, f"why{BLOCK[:-40]}"),
    "v4_json": (None, "deepseek_v4", False, '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="false">[1</｜DSML｜parameter>\n</｜DSML｜invoke>\n'),
    "v32": ("deepseek_v3", "deepseek_v32", False, f"so{BLOCK.replace('tool_calls', 'function_calls')}"),
    "v3": (None, "deepseek_v3", False, f'{D}calls▁begin｜>{D}call▁begin｜>function{D}sep｜>f\n```json\n{{"a": 1}}\n```{D}call▁end｜>{D}calls▁end｜>'),
    "v31": (None, "deepseek_v31", False, f'{D}calls▁begin｜>{D}call▁begin｜>f{D}sep｜>{{"a": "}}"}}{D}call▁end｜>{D}calls▁end｜>'),
    "qwen": ("qwen3", "hermes", True, f"why</think>\n\n{HERMES}{HERMES}"),
    "hermes_bad": (None, "hermes", False, f"a{HERMES[:50]}x{HERMES}"),
    "hermes_order": (None, "hermes", False, '<tool_call>{"arguments": -1.5e3, "x": [true, null], "name": "g"}</tool_call> and'),
    "qwen_xml": ("qwen3", "qwen3_xml", True, "why</think><tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx\n</parameter>\n</function>\n</tool_call>"),
    "glm": ("glm45", "glm45", True, "why<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>True</arg_value>\n</tool_call>"),
    "minimax": (None, "minimax_m2", False, '<minimax:tool_call>\n<invoke name="f">\n<parameter name="b">x</parameter>\n</invoke>\n</minimax:tool_call>'),
    "kimi": ("kimi_k2", "kimi_k2", True, 'why<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|><|tool_calls_section_end|>'),
    "mistral": ("mistral", "mistral", False, '[THINK]why[/THINK][TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g"}]'),
    "mistral_args": (None, "mistral", False, '[TOOL_CALLS]f[CALL_ID]x[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}'),
    "llama": (None, "llama3_json", False, ' {"name": "f", "parameters": {"a": 1}}; {"name": "f"}'),
    "gemma": ("gemma4", "gemma4", False, '<|channel>thought\nwhy<channel|><|tool_call>call:f{a:1,b:<|"|>x<|"|>,c:[true,{d:null}]}<tool_call|>'),
    "harmony": ("openai_gptoss", "openai", False, '<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'),
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
for name, (reasoning, tools, thinking, text) in REPLY.items():
    path = HERE / "reply" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes([TOOLS.index(tools) << 1 | thinking, REASONING.index(reasoning) << 1 | 1, 7]) + text.encode())
