"""The clients that people have, against a running `nibble serve`: openai-python, LangChain, litellm, Schemathesis, lm-eval."""
import asyncio
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import nb
import openai
import pytest

USER = [{"role": "user", "content": "Compute: reverse abc"}]
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}


@contextlib.contextmanager
def serve(folder, *flags):
    """The base URL of a server that is ready; it must end with status 0 when it is told to."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with tempfile.TemporaryFile() as log:  # not a pipe, which would fill and stop the server
        p = subprocess.Popen([nb.BIN, "serve", str(folder), "--host", "127.0.0.1", "--port", str(port), *flags], stdout=subprocess.DEVNULL, stderr=log)

        def said():
            log.seek(0)
            return log.read().decode("utf-8", "replace")[-3000:]
        url = f"http://127.0.0.1:{port}"
        try:
            for _ in range(1200):
                assert p.poll() is None, said()
                try:
                    urllib.request.urlopen(url + "/health", timeout=5).close()
                    break
                except OSError:
                    time.sleep(0.1)
            else:
                raise AssertionError("the server is not ready after two minutes: " + said())
            yield url
            assert p.poll() is None, said()
            p.send_signal(signal.SIGTERM)
            assert p.wait(60) == 0, said()
        finally:
            p.kill()
            p.wait()


@pytest.fixture(scope="module")
def demo():
    with serve(nb.DEMO, "--served-model-name", "demo", "other", "--max-model-len", "1024", "--enable-auto-tool-choice",
               "--tool-call-parser", "deepseek_v4", "--reasoning-parser", "deepseek_v4", "--enable-prompt-tokens-details") as url:
        yield url


@pytest.fixture(scope="module")
def client(demo):
    # strict: an answer that the SDK's types do not describe is an error
    return openai.OpenAI(base_url=demo + "/v1", api_key="none", max_retries=0, _strict_response_validation=True)


SAMPLING = dict(temperature=0.8, top_p=0.9, presence_penalty=0.5, frequency_penalty=-0.5, seed=7, stop=["zzz"], n=2, max_tokens=12, user="u",
                logit_bias={"5": -100})
EXTRA = dict(top_k=20, min_p=0.01, repetition_penalty=1.1, min_tokens=2, stop_token_ids=[3], ignore_eos=True, bad_words=["x"], truncate_prompt_tokens=500,
             cache_salt="s", include_stop_str_in_output=True, skip_special_tokens=False, spaces_between_special_tokens=True, priority=0)


def test_chat(client):
    r = client.chat.completions.create(model="demo", messages=USER, logprobs=True, top_logprobs=3, extra_body=EXTRA, **SAMPLING)
    assert r.object == "chat.completion" and r.model == "demo" and r.id.startswith("chatcmpl-")
    assert [c.index for c in r.choices] == [0, 1]
    assert r.usage.completion_tokens == 24 and r.usage.total_tokens == r.usage.prompt_tokens + 24
    for c in r.choices:
        assert c.message.role == "assistant" and c.finish_reason == "length"
        assert len(c.logprobs.content) == 12
        for t in c.logprobs.content:
            assert len(t.top_logprobs) == 3 and t.logprob <= 0
            assert [x.logprob for x in t.top_logprobs] == sorted((x.logprob for x in t.top_logprobs), reverse=True)
    again = client.chat.completions.create(model="demo", messages=USER, extra_body=EXTRA, **SAMPLING)
    assert [c.message.content for c in again.choices] == [c.message.content for c in r.choices]


def test_chat_stream_is_the_whole_answer(client):
    args = dict(model="demo", messages=USER, temperature=0, max_tokens=24)
    whole = client.chat.completions.create(**args)
    chunks = list(client.chat.completions.create(**args, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == (whole.choices[0].message.content or "")
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    with client.chat.completions.stream(**args) as s:  # the SDK's own accumulation
        final = s.get_final_completion()
    assert final.choices[0].message.content == whole.choices[0].message.content


@pytest.fixture(scope="module")
def lenient(demo):
    """For what OpenAI and vLLM send and the SDK's types lack: null as finish_reason of a chunk, and as log-probability of a prompt's first token."""
    return openai.OpenAI(base_url=demo + "/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("echo", [False, True])
def test_completions(client, lenient, echo):
    r = (lenient if echo else client).completions.create(model="demo", prompt=["Copy: ab", "Copy: cd"], logprobs=2, echo=echo, extra_body=EXTRA, **SAMPLING)
    assert [c.index for c in r.choices] == [0, 1, 2, 3] and r.object == "text_completion"
    for c in r.choices:
        assert c.text.startswith("Copy: ") == echo and c.finish_reason == "length"
        lp = c.logprobs
        assert len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs) == len(lp.text_offset)
        assert not echo or (lp.token_logprobs[0] is None and lp.top_logprobs[0] is None)
        assert lp.text_offset == sorted(lp.text_offset)


def test_completion_stream_is_the_whole_answer(client, lenient):
    args = dict(model="demo", prompt="Copy: hello", temperature=0, max_tokens=16)
    whole = client.completions.create(**args)
    chunks = list(lenient.completions.create(**args, stream=True, logprobs=1))
    assert "".join(c.choices[0].text for c in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert sum(len(c.choices[0].logprobs.tokens) for c in chunks if c.choices[0].logprobs) == whole.usage.completion_tokens
    ids = client.completions.create(**args, extra_body={"return_token_ids": True}).choices[0]
    assert len(ids.token_ids) == whole.usage.completion_tokens
    assert client.completions.create(model="demo", prompt=ids.prompt_token_ids, temperature=0, max_tokens=16).choices[0].text == whole.choices[0].text


def test_tools(client):
    r = client.chat.completions.create(model="demo", messages=USER, tools=[TOOL], tool_choice="auto", temperature=0, max_tokens=8)
    assert r.choices[0].finish_reason in ("length", "stop", "tool_calls")
    told = [*USER, {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "done"}]
    client.chat.completions.create(model="demo", messages=told, tools=[TOOL], max_tokens=4)


def test_models(client):
    assert [m.id for m in client.models.list()] == ["demo", "other"]
    assert client.models.retrieve("other").id == "other"


@pytest.mark.parametrize("error,args", [
    (openai.BadRequestError, dict(messages=USER, temperature=3)),
    (openai.BadRequestError, dict(messages=USER, max_tokens=5000)),
    (openai.BadRequestError, dict(messages=USER, response_format={"type": "json_object"})),
    (openai.BadRequestError, dict(messages=USER, stream=True, extra_body={"top_k": -7})),
    (openai.NotFoundError, dict(messages=USER, model="none")),
])
def test_errors(client, error, args):
    with pytest.raises(error) as e:
        client.chat.completions.create(**{"model": "demo", **args})
    assert set(e.value.body) == {"message", "type", "param", "code"} and e.value.body["code"] == e.value.status_code


def test_async(demo):
    async def ask(c, i):
        parts = []
        async for chunk in await c.chat.completions.create(model="demo", messages=USER, temperature=0, max_tokens=16, stream=True, seed=i):
            parts += [x.delta.content or "" for x in chunk.choices]
        return "".join(parts)

    async def many():
        async with openai.AsyncOpenAI(base_url=demo + "/v1", api_key="none") as c:
            return await asyncio.gather(*(ask(c, i) for i in range(8)))
    answers = asyncio.run(many())
    assert len(set(answers)) == 1  # greedy: the batch changes nothing


def test_langchain(demo):
    from langchain_openai import ChatOpenAI
    chat = ChatOpenAI(base_url=demo + "/v1", api_key="none", model="demo", temperature=0, max_tokens=16)
    whole = chat.invoke("Copy: ab")
    assert whole.response_metadata["finish_reason"] in ("stop", "length") and whole.usage_metadata["output_tokens"] <= 16
    assert "".join(c.content for c in chat.stream("Copy: ab")) == whole.content
    chat.bind_tools([TOOL]).invoke("Copy: ab")


def test_litellm(demo):
    import litellm
    args = dict(model="hosted_vllm/demo", api_base=demo + "/v1", api_key="none", messages=USER, temperature=0, max_tokens=16)
    whole = litellm.completion(**args)
    assert whole.choices[0].finish_reason in ("stop", "length")
    parts = [c.choices[0].delta.content or "" for c in litellm.completion(**args, stream=True)]
    assert "".join(parts) == (whole.choices[0].message.content or "")


OURS = ["--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"]
# Of OpenAI's paths those that there are here; most of their fields are refused or ignored, but nothing may be a 5xx.
THEIRS = ["--checks", "not_a_server_error", "--include-path-regex", "^/(completions|chat/completions|models|embeddings)$"]


@pytest.mark.parametrize("theirs", [False, True])
def test_schemathesis(tmp_path, theirs):
    """No 5xx, and no status, type or answer that /openapi.json does not describe. NB_CASES: examples for each operation. NB_OPENAI_SPEC: OpenAI's openapi.yaml
    (github.com/openai/openai-openapi). The context is small: cases ask for hundreds of choices."""
    program, spec = pathlib.Path(sys.executable).with_name("schemathesis"), os.environ.get("NB_OPENAI_SPEC")
    if theirs and not spec:
        pytest.skip("NB_OPENAI_SPEC names no file")
    with serve(nb.DEMO, "--served-model-name", "demo", "--max-model-len", "48", "--max-num-queued-reqs", "32") as url:
        what = [spec, "--url", url + "/v1", *THEIRS] if theirs else [url + "/openapi.json", *OURS]
        done = subprocess.run([program, "run", *what, "--max-examples", os.environ.get("NB_CASES", "100"), "--mode", "all", "--phases", "coverage,fuzzing",
                               "--suppress-health-check", "all", "--no-color", "--request-timeout", "60"], cwd=tmp_path, capture_output=True, text=True)
    print(done.stdout[-1500:])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_lm_eval(tmp_path):
    """lm-eval's local-completions: log-likelihoods equal to transformers' on the dequantised weights."""
    import numpy as np
    import test_transformers as oracle
    import torch
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    rng = np.random.default_rng(1)
    pairs = [(rng.integers(5, 300, n).tolist(), rng.integers(5, 300, m).tolist()) for n, m in ((3, 1), (20, 7), (60, 30))]
    state = oracle.stack_experts(oracle.dequantised(nb.MODELS["llama_ct"], oracle.by_fp4))
    config = oracle.transformers.AutoConfig.from_pretrained(nb.MODELS["llama_ct"])
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = oracle.transformers.AutoModelForCausalLM.from_config(config).float().eval()
    model.load_state_dict(state, strict=False)
    with serve(nb.MODELS["llama_ct"], "--served-model-name", "m", "--arith", "exact") as url:
        lm = LocalCompletionsAPI(base_url=url + "/v1/completions", model="m", tokenizer=str(nb.MODELS["llama_ct"]), tokenizer_backend="huggingface", tokenized_requests=True, batch_size=2, max_length=512)
        got = lm._loglikelihood_tokens([(("", ""), c, d) for c, d in pairs], disable_tqdm=True)
    for (context, rest), (logprob, greedy) in zip(pairs, got, strict=True):
        with torch.no_grad():
            rows = torch.log_softmax(model(input_ids=torch.tensor([context + rest])).logits[0], -1)
        at = range(len(context) - 1, len(context) + len(rest) - 1)
        assert abs(sum(float(rows[i, t]) for i, t in zip(at, rest, strict=True)) - logprob) <= 1e-3
        assert greedy == all(int(rows[i].argmax()) == t for i, t in zip(at, rest, strict=True))
