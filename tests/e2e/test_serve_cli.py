"""The command line of `nibble serve`: vLLM's flags, the plan, and starts that fail in one line."""
import json
import os
import re
import socket

import nb
import pytest

from serving import Server


def refused(*args, status=64, **kw):
    """A start that fails: one line on stderr, nothing on stdout."""
    done = nb.run("serve", *args, timeout=60, **kw)
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    lines = [l for l in done.stderr.splitlines() if not re.search(r"Z INFO|^note: ", l)]
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_help_teaches_every_flag():
    text = nb.ok("serve", "--help").stdout
    for flag in ("--max-model-len", "--api-key", "--shutdown-timeout", "--memory", "--enable-prefix-caching", "--tensor-parallel-size",
                 "--speculative-config", "--trust-remote-code"):
        assert flag in text


# vllm serve's flags (specs/http_api.md, section 4): none of them is unknown here.
VLLM = """host port uds api-key served-model-name tokenizer tokenizer-mode trust-remote-code dtype quantization kv-cache-dtype max-model-len
gpu-memory-utilization kv-cache-memory-bytes block-size enable-prefix-caching prefix-caching-hash-algo max-num-seqs max-num-batched-tokens
long-prefill-token-threshold enable-chunked-prefill scheduling-policy num-gpu-blocks-override tensor-parallel-size pipeline-parallel-size
data-parallel-size enable-expert-parallel seed max-logprobs logprobs-mode generation-config override-generation-config enforce-eager
load-format hf-overrides revision chat-template chat-template-content-format trust-request-chat-template default-chat-template-kwargs
response-role enable-auto-tool-choice tool-call-parser reasoning-parser enable-prompt-tokens-details enable-force-include-usage
return-tokens-as-token-ids enable-server-load-tracking enable-request-id-headers enable-log-requests max-log-len disable-log-stats
disable-uvicorn-access-log uvicorn-log-level root-path ssl-keyfile ssl-certfile ssl-ca-certs allowed-origins allowed-methods
allowed-headers shutdown-timeout scheduler-reserve-full-isl watermark stream-interval async-scheduling structured-outputs-config
speculative-config enable-lora lora-modules max-num-queued-reqs max-num-queued-tokens config exclude-tools-when-tool-choice-none
disable-cascade-attn disable-custom-all-reduce disable-fastapi-docs disable-frontend-multiprocessing max-parallel-loading-workers
otlp-traces-endpoint log-config-file reasoning-parser-plugin""".split()


@pytest.mark.parametrize("flag", VLLM)
def test_no_flag_of_vllm_is_unknown(flag):
    """Each works, is accepted with a note, or is refused by name; with a folder that is not there the start ends soon."""
    for args in ([f"--{flag}"], [f"--{flag}", "1"]):
        done = nb.run("serve", "/nowhere", *args, "--max-model-len", "16")
        assert done.returncode in (1, 64) and "there is no option" not in done.stderr, done.stderr


@pytest.mark.parametrize("args,words", [
    (["--nonsense"], ["--nonsense"]),
    (["--no-port"], ["--no-port"]),
    (["-port", "1"], ["-port"]),
    (["-x"], ["-x"]),
    (["-host", "x"], ["-host"]),
    (["--port"], ["--port", "takes a value"]),
    (["--port", "x"], ["--port", "'x'"]),
    (["--port", "70000"], ["--port", "65535"]),
    (["--slow-client-rate", "0"], ["--slow-client-rate", "more than 0"]),
    (["--quiet=1"], ["--quiet", "takes no value"]),
    (["--ssl-keyfile", "x"], ["--ssl-keyfile", "reverse proxy"]),
    (["--tensor-parallel-size", "2"], ["--tensor-parallel-size 2", "load balancer"]),
    (["-tp", "4"], ["--tp 4"]),
    (["--speculative-config", "{}"], ["--speculative-config"]),
    (["--enable-lora"], ["--enable-lora", "merge"]),
    (["--revision", "main"], ["@REVISION"]),
    (["--hf-overrides", "{}"], ["config.json"]),
    (["--max-model-len", "0"], ["--max-model-len"]),
    (["--max-model-len", "lots"], ["--max-model-len"]),
    (["--max-num-batched-tokens", "4", "--max-num-seqs", "8"], ["--max-num-batched-tokens 4", "--max-num-seqs 8"]),
    (["--tool-call-parser", "martian"], ["martian", "hermes"]),
    (["--enable-auto-tool-choice"], ["--tool-call-parser"]),
    (["--nnodes", "2"], ["--nnodes 2", "load balancer"]),
    (["--logits-processors", "x:y"], ["--logits-processors"]),
    (["--override-generation-config", "{\"top_z\": 1}"], ["top_z"]),
    (["--default-chat-template-kwargs", "[]"], ["--default-chat-template-kwargs"]),
    (["--default-chat-template-kwargs.x", "1"], ["JSON"]),
    (["--allowed-origins", "x"], ["--allowed-origins", "JSON"]),
    (["--scheduling-policy", "lifo"], ["fcfs"]),
    (["--log-format", "xml"], ["--log-format"]),
    (["--arith", "fp64"], ["--arith"]),
    (["--api-key", ""], ["--api-key"]),
    (["second"], ["second"]),
])
def test_refused_by_name(args, words):
    line = refused(nb.DEMO, *args)
    for word in words:
        assert word in line
    assert "serve --help" in line


def test_no_model():
    assert "which model" in refused()


def test_accepted_with_a_note():
    done = nb.run("serve", "/nowhere", "--dtype", "bfloat16", "--enforce_eager", "--no-async-scheduling", "--block-size=16")
    assert done.returncode == 1
    for flag in ("--dtype", "--enforce-eager", "--no-async-scheduling", "--block-size"):
        assert re.search(f"note: {flag} has no effect here: ", done.stderr)


@pytest.mark.parametrize("args", [["-O3"], ["-O", "3"], ["-O.mode=3"], ["-O={}"]])
def test_levels_of_compilation_are_accepted(args):
    done = nb.run("serve", "/nowhere", *args)
    assert done.returncode == 1 and "note: --compilation-config has no effect here: " in done.stderr


def test_unreadable_model(tmp_path):
    assert "/nowhere" in refused("/nowhere", status=1)
    (tmp_path / "config.json").write_text("{}")
    assert refused(tmp_path, status=1)


def test_port_in_use():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        line = refused(nb.DEMO, "--host", "127.0.0.1", "--port", s.getsockname()[1], status=1)
    assert "in use" in line and "--port" in line


def test_no_such_address():
    """A name that no resolver is asked about: a part of it is too long."""
    assert "--host" in refused(nb.DEMO, "--host", "x" * 64 + ".invalid", status=1)


def test_too_little_memory():
    line = refused(nb.DEMO, "--memory", "1M", status=1)
    assert "weights" in line and "--memory" in line
    line = refused(nb.DEMO, "--kv-cache-memory-bytes", "5m", "--max-num-seqs", "1", status=1)
    longest = int(re.search(r"--max-model-len (\d+)", line)[1])
    assert "cannot hold one request of 4096 tokens" in line and 0 < longest < 4096
    # What the line says is true: that length starts, one more does not.
    with Server("--kv-cache-memory-bytes", "5m", "--max-num-seqs", "1", "--max-model-len", longest) as s:
        assert json.loads(s.get("/v1/models")[2])["data"][0]["max_model_len"] == longest
    refused(nb.DEMO, "--kv-cache-memory-bytes", "5m", "--max-num-seqs", "1", "--max-model-len", longest + 1, status=1)
    with Server("--kv-cache-memory-bytes", "5m", "--max-num-seqs", "1", "--max-model-len", "auto") as s:
        assert json.loads(s.get("/v1/models")[2])["data"][0]["max_model_len"] == longest
    assert "4096" in refused(nb.DEMO, "--max-model-len", "5K", status=1)


def test_the_plan_is_printed():
    with Server("--max-model-len", "1k", "--max-num-seqs", "4", "--num-gpu-blocks-override", "100") as s:
        m = s.metrics()
    assert re.search(r"weights +\d+\.\d MiB", s.text()) and "100 blocks of 16 tokens" in s.text()
    assert "longest request: 1000 tokens" in s.text() and "1 of them at once" in s.text()  # 63 blocks each
    info = next(k for k in m if k.startswith("vllm:cache_config_info{"))
    assert 'num_gpu_blocks="100"' in info and 'kv_cache_size_tokens="1600"' in info and 'kv_cache_max_concurrency="1"' in info


@pytest.mark.parametrize("args,seqs", [(["--max-num-seqs", "600"], 600), (["--max-num-batched-tokens", "64"], 64)])
def test_of_two_sizes_the_one_not_given_follows(args, seqs):
    """vLLM takes either alone: as many rows as sequences, as many sequences as rows."""
    with Server(*args, "--max-model-len", "64") as s:
        assert f"; {seqs} of them at once" in s.text()


def test_model_flag_and_underscores():
    with Server("--max_model_len", "512", "--no-enable_prefix_caching") as s:
        assert json.loads(s.get("/v1/models")[2])["data"][0]["max_model_len"] == 512
    done = nb.run("serve", "--model", "/nowhere")
    assert done.returncode == 1 and "/nowhere" in done.stderr


def test_config_file(tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text(f"""# a server
model: {nb.DEMO}
port: 1            # the command line wins
served-model-name: [a, 'b c']
max_model_len: "256"
enable-prefix-caching: false
seed: null
api-key:
  - k1
  - "k2"
""")
    with Server("--config", config, model="--max-num-seqs=4") as s:
        auth = {"Authorization": "Bearer k2"}
        cards = json.loads(s.get("/v1/models", headers=auth)[2])["data"]
        assert [c["id"] for c in cards] == ["a", "b c"] and cards[0]["max_model_len"] == 256
        assert s.get("/v1/models")[0] == 401


@pytest.mark.parametrize("text,words", [
    ("a: {b: c}", ["line 1"]),
    ("\nport: &x 1", ["line 2"]),
    ("port:\n  nested: 1", ["line 2", "nested"]),
    ("- x", ["item without a name"]),
    ("port 1", ["name: value"]),
    ("port: |\n  1", ["line 1"]),
    ("nonsense: 1", ["--nonsense"]),
    ("config: x", ["no other"]),
])
def test_config_beyond_the_subset_is_refused(tmp_path, text, words):
    (tmp_path / "c.yaml").write_text(text)
    line = refused(nb.DEMO, "--config", tmp_path / "c.yaml")
    for word in words:
        assert word in line


# ---- Keys ----

@pytest.fixture(scope="module")
def guarded():
    with Server("--api-key", "k1", "k2", "--allowed-origins", '["http://a.example"]') as s:
        yield s


def test_keys(guarded):
    for path in ("/v1/models", "/v1/nothing", "/v2/x", "/inference/x", "/models", "/v1/models/x"):
        for headers in ({}, {"Authorization": "Bearer k3"}, {"Authorization": "k1"}):
            status, h, body = guarded.get(path, headers=headers)
            assert status == 401 and body == b'{"error":"Unauthorized"}' and h["content-type"] == "application/json"
    assert guarded.post("/chat/completions", {})[0] == 401  # what lacks the prefix is no way around
    for key in ("k1", "k2"):
        assert guarded.get("/v1/models", headers={"Authorization": f"bearer {key}"})[0] == 200
    for path in ("/health", "/metrics", "/version", "/", "/load"):
        assert guarded.get(path)[0] == 200
    assert guarded.post("/tokenize", {"prompt": "x"})[0] == 200
    assert guarded.ask("OPTIONS", "/v1/models")[0] == 200


def test_a_key_of_the_environment():
    with Server(env={"VLLM_API_KEY": "from-env"}) as s:
        assert s.get("/v1/models")[0] == 401
        assert s.get("/v1/models", headers={"Authorization": "Bearer from-env"})[0] == 200


def test_allowed_origins(guarded):
    ask = {"Access-Control-Request-Method": "POST"}
    status, headers, _ = guarded.ask("OPTIONS", "/v1/models", headers={"Origin": "http://a.example", **ask})
    assert status == 200 and headers["access-control-allow-origin"] == "http://a.example" and headers["vary"] == "Origin"
    status, headers, _ = guarded.ask("OPTIONS", "/v1/models", headers={"Origin": "http://b.example", **ask})
    assert status == 400 and "access-control-allow-origin" not in headers


def test_unix_socket(tmp_path):
    path = str(tmp_path / "s")
    for _ in range(2):  # the second start replaces what a killed server left behind
        with Server("--uds", path, "--log-format", "json", wait=True, port="0") as s:
            with socket.socket(socket.AF_UNIX) as c:
                c.connect(path)
                c.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                assert c.recv(100).startswith(b"HTTP/1.1 200")
            s.kill()
            s.process.returncode = 0
    assert os.path.exists(path)


def test_w4a4_without_input_scales_does_not_start():
    """Not the request that first reaches such a linear should learn of it."""
    line = refused(nb.MODELS["llama_nvfp4a16"], "--arith", "w4a4", "--port", "0", status=1)
    assert "model.layers.0.self_attn.q_proj" in line and "w4a4-dynamic" in line


def test_a_low_limit_of_the_stack_changes_nothing():
    """Neither in the threads: the engine's operators, the workers' parsers, the check that the start ends with."""
    import resource
    low = 64 * 1024
    with Server(before=lambda: resource.setrlimit(resource.RLIMIT_STACK, (low, low))) as s:
        assert s.post("/v1/completions", {"prompt": "Once upon a time " * 20, "max_tokens": 4})[0] == 200
