"""`nibble tokenize` against what the `tokenizers` library makes of the same texts, and --chat against DeepSeek-V4's own encoder."""
import gzip
import json

import nb
import pytest

# llama3 is not among the fixtures, but for its vectors (their SOURCES.md).
FAMILIES = ["syn-gpt2-digits", "syn-llama3", "syn-qwen2-nfc", "syn-qwen3.5", "syn-deepseek-v3", "syn-o200k", "syn-tekken", "demo",
            "syn-kimi-han", "syn-llama2", "syn-llama2-metaspace", "syn-gemma", "smollm2", "qwen3", "qwen3.5", "deepseek-v4",
            "o200k-harmony", "tekken", "mistral-v1-spm", "mistral-v3-spm"]
TOKENIZERS = nb.folders("tokenizers", lambda name: name in FAMILIES)


@pytest.fixture(params=TOKENIZERS, scope="module")
def tokenizer(request, tmp_path_factory):
    """(a folder with tokenizer.json, the vectors); the file may be compressed, and the demo's lies with its model."""
    folder = TOKENIZERS[request.param]
    vectors = [json.loads(line) for line in (folder / "vectors.jsonl").read_bytes().decode().split("\n") if line]
    if request.param == "demo":
        return nb.DEMO, vectors
    if (folder / "tokenizer.json").exists():
        return folder, vectors
    out = tmp_path_factory.mktemp(request.param)
    (out / "tokenizer.json").write_bytes(gzip.decompress((folder / "tokenizer.json.gz").read_bytes()))
    return out, vectors


def tokenize(folder, values, *flags):
    """One JSON value a line in, one a line out."""
    text = "".join(json.dumps(v) + "\n" for v in values)
    return [json.loads(line) for line in nb.ok("tokenize", folder, *flags, stdin=text).stdout.split("\n") if line]


def check(values, want, got):
    assert len(got) == len(want)
    wrong = [(v, w, g) for v, w, g in zip(values, want, got) if w != g]
    assert not wrong, f"{len(wrong)} lines differ, first {wrong[0]}"


def test_ids(tokenizer):
    folder, vectors = tokenizer
    texts = [v["text"] for v in vectors]
    check(texts, [v["ids"] for v in vectors], tokenize(folder, texts))


def test_ids_with_special_tokens(tokenizer):
    folder, vectors = tokenizer
    vectors = [v for v in vectors if "ids_special" in v] or vectors[:20]
    texts = [v["text"] for v in vectors]
    check(texts, [v.get("ids_special", v["ids"]) for v in vectors], tokenize(folder, texts, "--add-special"))


def test_decode(tokenizer):
    folder, vectors = tokenizer
    ids = [v["ids"] for v in vectors]
    check(ids, [v["decoded"] for v in vectors], tokenize(folder, ids, "--decode"))


def test_decode_skips_special(tokenizer):
    folder, vectors = tokenizer
    ids = [v["ids"] for v in vectors]
    check(ids, [v.get("decoded_skip_special", v["decoded"]) for v in vectors], tokenize(folder, ids, "--decode", "--skip-special"))


CASES = [pytest.param(c, id=c["name"]) for f in nb.folders("templates", lambda name: name == "deepseek_v4").values()
         for c in json.loads((f / "cases.json").read_text())["cases"]]


@pytest.mark.parametrize("case", CASES)
def test_chat(case):
    request = {k: case[k] for k in ("messages", "tools", "add_generation_prompt", "response_format") if k in case}
    if "kwargs" in case:
        request["chat_template_kwargs"] = case["kwargs"]
    got = tokenize(nb.DEMO, [request], "--chat")
    assert len(got) == 1
    if "error" in case:
        assert got[0]["error"]
        return
    assert got[0]["prompt"] == case["expected"]
    assert [got[0]["ids"]] == tokenize(nb.DEMO, [case["expected"]])


@pytest.mark.parametrize("line", ["not json", '{"a": 1}', "[1, 2", '"\\ud800"'])
def test_bad_line_is_an_error(line):
    done = nb.run("tokenize", nb.DEMO, stdin=line + "\n")
    assert done.returncode not in (0, 64) and done.stderr


@pytest.mark.parametrize("line", ["[99999999]", "[-1]", "[1.5]", '["a"]', "{}"])
def test_bad_ids_are_an_error(line):
    done = nb.run("tokenize", nb.DEMO, "--decode", stdin=line + "\n")
    assert done.returncode not in (0, 64) and done.stderr
