"""Chat templates through the program: where a folder's template is found, what a request becomes, what an error says."""
import json
import shutil

import pytest

import nb

TEMPLATE = """\
{%- for m in messages %}
{{- '<|' + m.role + '|>' + m.content|trim + eos_token }}
{%- for c in m.tool_calls or [] %}{{ c.function.name ~ c.function.arguments|tojson }}{% endfor %}
{%- endfor %}
{%- if tools %}[{{ tools|map(attribute='function.name')|join(',') }}]{% endif %}
{%- if add_generation_prompt %}<|assistant|>{{ '<think>' if enable_thinking }}{% endif %}
"""


@pytest.fixture
def folder(tmp_path):
    """A llama model that brings a template of its own."""
    out = tmp_path / "model"
    shutil.copytree(nb.MODELS["llama_ct"], out, ignore=shutil.ignore_patterns("expected*"))
    config = json.loads((out / "tokenizer_config.json").read_text())
    config["eos_token"] = {"content": "</s>", "lstrip": False}
    (out / "tokenizer_config.json").write_text(json.dumps(config))
    (out / "chat_template.jinja").write_text(TEMPLATE)
    return out


def chat(folder, *requests):
    out = nb.ok("tokenize", folder, "--chat", stdin="".join(json.dumps(r) + "\n" for r in requests)).stdout
    return [json.loads(line) for line in out.splitlines()]


USER = {"role": "user", "content": " Hi "}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": [1, \"\u00e9\"]}"}}]}


@pytest.mark.parametrize("request_, prompt", [
    ({"messages": [USER]}, "<|user|>Hi</s><|assistant|>"),
    ({"messages": [USER], "add_generation_prompt": False}, "<|user|>Hi</s>"),
    ({"messages": [USER], "chat_template_kwargs": {"enable_thinking": True}}, "<|user|>Hi</s><|assistant|><think>"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}, "<|user|>a\nb</s><|assistant|>"),
    ({"messages": [USER, CALL], "add_generation_prompt": False}, '<|user|>Hi</s><|assistant|></s>f{"a": [1, "\u00e9"]}'),
    ({"messages": [USER], "tools": [{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g"}}]}, "<|user|>Hi</s>[f,g]<|assistant|>"),
    ({"messages": [USER, {"role": "assistant", "content": "Well, "}], "continue_final_message": True}, "<|user|>Hi</s><|assistant|>Well,"),
])
def test_request(folder, request_, prompt):
    got = chat(folder, request_)
    assert got[0].get("prompt") == prompt, got
    assert [got[0]["ids"]] == [json.loads(nb.ok("tokenize", folder, stdin=json.dumps(prompt) + "\n").stdout)]


@pytest.mark.parametrize("config, name", [("tokenizer_config.json", "string"), ("tokenizer_config.json", "list"), ("chat_template.json", "string")])
def test_template_in_json(folder, config, name):
    (folder / "chat_template.jinja").unlink()
    path = folder / config
    data = json.loads(path.read_text()) if path.exists() else {}
    data["chat_template"] = "{{ messages[0].content }}!" if name == "string" else [{"name": "tool_use", "template": "{{ tools|length }} tools"}, {"name": "default", "template": "{{ messages[0].content }}!"}]
    path.write_text(json.dumps(data))
    assert chat(folder, {"messages": [USER]})[0]["prompt"] == " Hi !"
    assert chat(folder, {"messages": [USER], "tools": [{}]})[0]["prompt"] == ("1 tools" if name == "list" else " Hi !")


def test_the_templates_own_refusal_is_the_answer(folder):
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no ' + messages[0].role) }}")
    assert chat(folder, {"messages": [USER]}) == [{"error": "no user"}]


def test_a_template_that_does_not_parse_names_file_and_byte(folder):
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}")
    done = nb.run("tokenize", folder, "--chat", stdin="{}\n")
    assert done.returncode == 1 and "chat_template.jinja" in done.stderr and "byte 38" in done.stderr and "endfor" in done.stderr


def test_no_template(folder):
    (folder / "chat_template.jinja").unlink()
    done = nb.run("tokenize", folder, "--chat", stdin="{}\n")
    assert done.returncode == 1 and "chat template" in done.stderr
    done = nb.run("run", folder, "-p", "Hi", "-n", "1")
    assert done.returncode == 1 and "chat template" in done.stderr and "plain text" in done.stderr
    assert nb.run("run", folder, "--raw", "-p", "Hi", "-n", "1").returncode == 0


def test_run(folder):
    got = nb.ok("run", folder, "-s", "Be brief.", "-p", "Hello", "--print-prompt")
    assert got.stdout.rstrip("\n") == "<|system|>Be brief.</s><|user|>Hello</s><|assistant|>"
    assert nb.ok("run", folder, "--thinking", "-p", "Hello", "--print-prompt").stdout.rstrip("\n").endswith("<think>")
    assert nb.ok_json("run", folder, "-p", "Hello", "-n", "3")["completion_tokens"] <= 3


def test_eval_samples_of_messages(folder, tmp_path):
    (tmp_path / "s.jsonl").write_text(json.dumps({"messages": [USER], "reply": "x"}) + "\n")
    assert nb.ok_json("eval", folder, "--samples", tmp_path / "s.jsonl")["n"] == 1
