"""The command line: exit codes, usage errors, help, and what stands on stdout."""
import json
import math
import os
import random
import re
import subprocess
import time

import nb
import pytest

VERBS = ["run", "eval", "tokenize", "check", "bench"]


def test_help_lists_the_verbs():
    done = nb.ok("--help")
    for verb in VERBS:
        assert f"\n  {verb} " in done.stdout or f" {verb} " in done.stdout
    assert not done.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_verb_help_teaches(verb):
    done = nb.ok(verb, "--help")
    assert f"nibble {verb}" in done.stdout and len(done.stdout.splitlines()) >= 8 and not done.stderr


@pytest.mark.parametrize("verb", ["run", "eval", "check", "bench", "trace", "calibrate", "repair", "diff", "serve"])
def test_help_names_what_the_verb_takes(verb, tmp_path):
    """Each option of the help is one that the verb knows and has a use for, and whoever takes kernels names all of them."""
    said = nb.ok(verb, "--help").stdout
    options = re.findall(r"^ +(?:-\w, )?--([a-z-]+)( \S+)?", said, re.M)
    assert len(options) >= 3
    for name, takes in options:
        done = nb.run(verb, tmp_path / "none", f"--{name}", *(["1"] if takes else []))
        assert not re.search("no use|no meaning|no option|not an option", done.stderr), (name, done.stderr)
    assert "--kernels" not in said or "avx512bf16 or amx" in said


def test_version():
    assert nb.ok("--version").stdout.startswith("nibble ")


USAGE_ERRORS = {
    "unknown verb": ["frobnicate"],
    "no folder": ["run"],
    "unknown flag": ["run", nb.DEMO, "--frobnicate"],
    "flag without its value": ["run", nb.DEMO, "-p"],
    "unknown arithmetic": ["eval", nb.DEMO, "--arith", "w3a3", "--text", "x"],
    "unknown kernels": ["eval", nb.DEMO, "--kernels", "fast", "--text", "x"],
    "unknown format": ["check", nb.DEMO, "--format", "xml"],
    "not a number": ["run", nb.DEMO, "-p", "x", "--temperature", "warm"],
    "threads zero": ["run", nb.DEMO, "-p", "x", "--threads", "0"],
    "eval with nothing to evaluate": ["eval", nb.DEMO],
    "ids without logits": ["eval", nb.DEMO, "--ids", "x.json"],
    "two folders": ["check", nb.DEMO, nb.DEMO],
}


@pytest.mark.parametrize("args", [pytest.param(a, id=n) for n, a in USAGE_ERRORS.items()])
def test_usage_error(args):
    """Exit 64, and one line on stderr that ends in the hint where help is."""
    done = nb.run(*args)
    assert done.returncode == 64 and not done.stdout
    assert len(done.stderr.strip().splitlines()) == 1
    assert (f"nibble {args[0]} --help" if args[0] in VERBS else "nibble --help") in done.stderr


def test_packed_cache(tmp_path):
    """The first start writes the file, the second reads it; a cut one is said and made anew; nothing else is written over; same logits each time."""
    ids, out, cache = tmp_path / "ids.json", tmp_path / "out.safetensors", tmp_path / "kept"
    ids.write_text("[[3, 1, 4, 1, 5]]")

    def logits(*more):
        done = nb.ok("eval", nb.DEMO, "--ids", ids, "--logits", out, *more)
        return out.read_bytes(), done.stderr

    plain, _ = logits()
    flag = ["--packed-cache", cache]
    for want in ("kept for the next start", "packed weights from"):
        got, said = logits(*flag)
        assert got == plain and want in said
    os.truncate(cache, cache.stat().st_size // 2)
    got, said = logits(*flag)
    assert got == plain and "cut short" in said
    assert "packed weights from" in logits(*flag)[1]
    ids_before = ids.read_text()
    done = nb.run("eval", nb.DEMO, "--ids", ids, "--logits", out, "--packed-cache", ids)
    assert done.returncode == 1 and "not written over" in done.stderr and ids.read_text() == ids_before
    for verb in (["trace", nb.DEMO, "-p", "x"], ["calibrate", nb.DEMO, "-o", tmp_path / "ranges"]):
        assert nb.run(*verb, *flag).returncode == 64


def test_kill_while_the_packed_cache_is_written_leaves_no_half_file(tmp_path):
    """Under the file's name there is nothing, or all of it; NB_KILLS: how often."""
    cache, kills, whole = tmp_path / "kept", int(os.environ.get("NB_KILLS", 20)), 0
    command = [nb.BIN, "run", nb.DEMO, "-p", "Copy: ab", "-n", "4", "--packed-cache", cache]
    seconds = []
    for _ in range(2):  # the first may wait for the disk, the kills below do not
        cache.unlink(missing_ok=True)
        start = time.monotonic()
        first = subprocess.run(command, capture_output=True, text=True)
        seconds.append(time.monotonic() - start)
        assert first.returncode == 0 and "kept for the next start" in first.stderr
    rng = random.Random(5)
    for _ in range(kills):
        cache.unlink(missing_ok=True)
        p = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.random() * min(seconds))
        p.kill()
        p.wait()
        if cache.exists():
            whole += 1
            again = subprocess.run(command, capture_output=True, text=True)
            assert again.stdout == first.stdout and "packed weights from" in again.stderr
    assert whole < kills  # else none of them came in time


# What getopt rejects: the message names it.
REJECTED = [(["run", nb.DEMO, "--frobnicate"], "--frobnicate"), (["eval", nb.DEMO, "--frobnicate=3"], "--frobnicate=3"),
            (["trace", nb.DEMO, "-qx"], "-x"), (["run", nb.DEMO, "-p"], "-p needs a value"),
            (["trace", nb.DEMO, "--cast"], "--cast needs a value"), (["check", "--explain"], "--explain needs a value"),
            (["run", nb.DEMO, "--raw=3"], "--raw=3 takes no value"), (["bench", nb.DEMO, "-z"], "-z"),
            (["calibrate", nb.DEMO, "--zeal"], "--zeal"), (["repair", nb.DEMO, "--zeal"], "--zeal"),
            (["diff", "a", "b", "--zeal"], "--zeal"), (["tokenize", nb.DEMO, "--zeal"], "--zeal"),
            (["run", nb.DEMO, "-p", ""], "-p is empty"), (["trace", nb.DEMO, "-p", ""], "-p is empty"),
            (["chekc", nb.DEMO], "did you mean check?"), (["help", "trcae"], "did you mean trace?")]


@pytest.mark.parametrize("args, says", REJECTED, ids=lambda x: x if isinstance(x, str) else "")
def test_what_is_rejected_is_named(args, says):
    done = nb.run(*args)
    assert done.returncode == 64 and not done.stdout and says in done.stderr


# A value that an option does not take: the message names the option, and what it takes.
BAD_VALUES = [("run -p x", "--temperature", "number"), ("run -p x", "--top-k", "number"), ("run -p x", "--top-p", "at most 1"),
              ("run -p x", "--min-p", "from 0 to 1"), ("run -p x", "--seed", "number"), ("run -p x", "--max-tokens", "tokens"),
              ("run -p x", "--threads", "1 to 1024"), ("run -p x", "--max-model-len", "tokens"), ("run -p x", "--arith", "w4a4-dynamic"),
              ("run -p x", "--act-dtype", "bf16"), ("run -p x", "--kernels", "auto, generic"), ("eval --text x", "--window", "tokens"),
              ("eval --text x", "--chunk", "tokens"), ("eval --text x", "--format", "text or json"), ("bench", "--prompt", "tokens"),
              ("bench", "--tokens", "tokens"), ("bench", "--streams", "numbers"), ("bench", "--kernels", "generic"),
              ("trace", "--format", "text, json or html"), ("trace", "--as", "vllm-marlin"), ("trace", "--cast", "nosat"),
              ("trace", "--amax", "number"), ("trace", "--rows", "number"), ("trace", "--seed", "number"), ("calibrate", "--rows", "tokens"),
              ("calibrate", "--format", "text or json"), ("check", "--format", "sarif"), ("check", "--tp", "GPUs"), ("check", "--ignore", "rule"),
              ("check", "--explain", "rule"), ("repair -o x", "--format", "text or json"), ("repair -o x", "--only", "rule"),
              ("diff", "--format", "text or json"), ("diff", "--tolerance", "number"), ("tokenize", "--format", "text or json"),
              ("serve", "--port", "number"), ("serve", "--kernels", "generic"), ("serve", "--memory", "bytes")]


@pytest.mark.parametrize("verb, option, takes", BAD_VALUES, ids=lambda x: x)
def test_a_bad_value_names_its_option(verb, option, takes):
    verb, *more = verb.split()
    done = nb.run(verb, nb.DEMO, *more, option, "hot")
    assert done.returncode == 64 and not done.stdout and len(done.stderr.splitlines()) == 1
    assert option in done.stderr and "'hot'" in done.stderr and takes in done.stderr


def test_a_verb_like_no_other_gets_no_guess():
    assert "did you mean" not in nb.run("frobnicate").stderr


@pytest.mark.parametrize("verb", VERBS + ["trace", "calibrate", "repair", "diff"])
def test_help_of_a_verb(verb):
    assert nb.ok("help", verb).stdout == nb.ok(verb, "--help").stdout


@pytest.mark.parametrize("verb", ["run", "eval", "check", "trace", "calibrate", "repair", "diff"])
def test_help_tells_the_exit_status(verb):
    assert "Exit status: 0 " in nb.ok(verb, "--help").stdout


def test_rules_are_found_in_any_case():
    assert nb.ok("check", "--explain", "nb104").stdout == nb.ok("check", "--explain", "NB104").stdout


@pytest.mark.parametrize("verb", [["run", "-p", "x"], ["trace", "-p", "x"], ["eval", "--text", nb.DEMO / "config.json"], ["check"]])
def test_an_error_under_json_leaves_stdout_empty(verb, tmp_path):
    done = nb.run(verb[0], tmp_path / "nothing-here", *verb[1:], "--format", "json")
    assert done.returncode not in (0, 64) and not done.stdout and "nothing-here" in done.stderr


def test_no_verb_shows_help():
    done = nb.run()
    assert done.returncode == 64 and not done.stdout and "run" in done.stderr


@pytest.mark.parametrize("verb", ["run", "eval", "check"])
def test_absent_folder_is_no_usage_error(verb, tmp_path):
    more = {"run": ["-p", "x"], "eval": ["--text", nb.DEMO / "config.json"], "check": []}[verb]
    done = nb.run(verb, tmp_path / "nothing-here", *more)
    assert done.returncode not in (0, 64) and "nothing-here" in done.stderr + done.stdout


def test_hub_id_that_is_not_cached(tmp_path):
    done = nb.run("run", "someone/some-model", "-p", "x", env={"HF_HUB_CACHE": str(tmp_path)})
    assert done.returncode not in (0, 64) and "hf download someone/some-model" in done.stderr


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME"])
def test_hub_id_from_the_cache(variable, tmp_path):
    """The layout that huggingface_hub writes: refs/main holds a commit, snapshots/COMMIT links to blobs."""
    hub = tmp_path if variable == "HF_HUB_CACHE" else tmp_path / "hub"
    repo = hub / "models--nibble--demo"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("0123456789abcdef0123456789abcdef01234567")
    snapshot = repo / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    snapshot.mkdir(parents=True)
    for file in nb.DEMO.iterdir():
        (snapshot / file.name).symlink_to(file)
    env = {variable: str(tmp_path), **({"HF_HUB_CACHE": ""} if variable == "HF_HOME" else {})}
    done = nb.ok("run", "nibble/demo", "-p", "What is the capital of Croatia?", env=env)
    assert done.stdout.strip() == "Zagreb"


def test_run_prints_the_answer_alone_on_stdout():
    """Progress and rates are for stderr."""
    done = nb.ok("run", nb.DEMO, "-p", "What is the capital of Croatia?")
    assert done.stdout == "Zagreb\n" and done.stderr


def test_print_prompt():
    done = nb.ok("run", nb.DEMO, "-p", "Hello?", "--print-prompt")
    assert "<｜begin▁of▁sentence｜><｜User｜>Hello?<｜Assistant｜></think>" in done.stdout


def test_print_prompt_as_json():
    got = nb.ok_json("run", nb.DEMO, "-p", "Hello?", "--print-prompt")
    assert got == {"prompt": nb.ok("run", nb.DEMO, "-p", "Hello?", "--print-prompt").stdout}


@pytest.mark.parametrize("args", [["-p", b"\xff"], ["-s", b"\xff", "-p", "Hello?"], ["--raw", "-p", b"\xff"]], ids=["prompt", "system", "raw"])
def test_a_message_that_is_not_text_is_refused(args):
    """Left out, the model would answer a conversation without it."""
    done = subprocess.run([nb.BIN, "run", nb.DEMO, "-q", "-n", "4", *args], capture_output=True)
    assert done.returncode == 1 and not done.stdout and b"UTF-8" in done.stderr


def test_a_line_with_a_nul_is_refused():
    done = nb.run("run", nb.DEMO, "-q", stdin=b"What is \0 the capital?\n")
    assert done.returncode == 1 and not done.stdout and "NUL" in done.stderr


@pytest.mark.parametrize("args", [["--help"], ["check", nb.DEMO], ["bench", nb.DEMO, "--tokens", "1"], ["run", nb.DEMO, "-p", "Hello?", "--print-prompt"]],
                         ids=lambda args: args[0])
def test_a_result_that_does_not_get_out_is_a_failure(args):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([nb.BIN, *map(str, args)], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode not in (0, 64) and done.stderr


def test_weights_that_the_config_leaves_out_are_told(tmp_path):
    """Fewer layers than the file has: it computes, but not what the weights are for."""
    config = json.loads((nb.DEMO / "config.json").read_text())
    for file in nb.DEMO.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": config["num_hidden_layers"] - 1}))
    last = f"layers.{config['num_hidden_layers'] - 1}."
    warning = nb.ok("run", tmp_path, "-p", "Hello?", "-n", "1", "-q").stderr
    assert "not used" in warning and last in warning
    assert not nb.ok("run", nb.DEMO, "-p", "Hello?", "-n", "1", "-q").stderr


def test_entries_of_no_layer_are_told(tmp_path):
    """A list that is longer than the model: what belongs to no layer is not read, and both verbs say so."""
    folder = nb.OWN / "models" / "glm_moe_dsa_modelopt"
    config = json.loads((folder / "config.json").read_text())
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({**config, "indexer_types": config["indexer_types"] + ["shared"] * 2}))
    assert "indexer_types has 2 entries more" in nb.ok("run", tmp_path, "-p", "Hello?", "-n", "1", "-q", "--raw").stderr
    notes = [f for f in nb.ok_json("check", tmp_path, "--format", "json")["findings"] if f["rule"] == "NB212"]
    assert [f["severity"] for f in notes] == ["note"] and "indexer_types" in notes[0]["message"]


def test_biases_of_single_experts_are_refused(tmp_path):
    """gpt-oss taken apart. The stack of biases is renamed as if one were an expert's: the refusal comes before anything is read."""
    folder = nb.OWN / "models" / "gpt_oss_bf16"
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "model.safetensors").unlink()
    data = (folder / "model.safetensors").read_bytes()
    assert data.count(b"experts.gate_up_proj_bias") and len(b"experts.gate_up_proj_bias") == len(b"experts.0.down_proj.bias" + b" ")
    n = int.from_bytes(data[:8], "little")
    head = data[8:8 + n].replace(b'experts.gate_up_proj_bias":', b'experts.0.down_proj.bias": ')
    (tmp_path / "model.safetensors").write_bytes(data[:8] + head + data[8 + n:])
    done = nb.run("run", tmp_path, "-p", "Hello?", "-q", "--raw")
    assert done.returncode == 1 and "each expert has a bias of its own" in done.stderr and "gate_up_proj_bias" in done.stderr


@pytest.mark.parametrize("eos", ["1", [1, "2"], -1, 0.5])
def test_end_tokens_that_are_no_ids_are_refused(eos, tmp_path):
    for file in nb.DEMO.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    done = nb.run("run", tmp_path, "-p", "Hello?", "-q")
    assert done.returncode == 1 and "eos_token_id" in done.stderr and "generation_config.json" in done.stderr


def test_seed_repeats_a_sampled_answer():
    def answer(seed):
        return nb.ok("run", nb.DEMO, "-p", "Tell me a story.", "--temperature", "1.0", "--top-p", "0.95", "--top-k", "50", "--min-p", "0.01",
                     "--seed", str(seed), "--max-tokens", "60").stdout
    first = answer(7)
    assert first.strip() and answer(7) == first
    assert any(answer(seed) != first for seed in (8, 9, 10))


def test_max_tokens_ends_an_answer():
    long = nb.ok("run", nb.DEMO, "-p", "Explain mixture of experts.").stdout
    short = nb.ok("run", nb.DEMO, "-p", "Explain mixture of experts.", "--max-tokens", "5").stdout
    assert 0 < len(short) < len(long) and long.startswith(short.rstrip("\n"))


TURNS = ["Repeat 60 20 91 0.", "Sort these numbers: 33 76"]


@pytest.mark.parametrize("args,stdin", [(["-p", TURNS[0], "-p", TURNS[1]], ""), ([], "\n".join(TURNS) + "\n")], ids=["flags", "stdin"])
def test_several_turns(args, stdin):
    """Several -p, or lines of standard input without -p, are the turns of one conversation."""
    done = nb.ok("run", nb.DEMO, *args, stdin=stdin)
    assert [line for line in done.stdout.splitlines() if line.strip()] == ["60 20 91 0", "33 76"]


def test_eval_text_is_json_alone(tmp_path):
    text = "\n".join(["What is the capital of Croatia? Zagreb."] * 60)
    (tmp_path / "t.txt").write_text(text)
    got = nb.ok_json("eval", nb.DEMO, "--text", tmp_path / "t.txt", "--window", "64")
    assert got["windows"] >= 2 and got["tokens"] == 63 * got["windows"]
    assert got["perplexity"] > 1 and abs(got["mean_nll"] - math.log(got["perplexity"])) < 1e-6


def test_eval_writes_whole_files_or_none(tmp_path):
    """A prompt with an id outside the vocabulary: an error, and neither OUT nor a temporary file is left."""
    (tmp_path / "ids.json").write_text("[[1, 2, 999999]]")
    done = nb.run("eval", nb.DEMO, "--ids", tmp_path / "ids.json", "--logits", tmp_path / "out.st")
    assert done.returncode not in (0, 64) and "999999" in done.stderr
    assert os.listdir(tmp_path) == ["ids.json"]


@pytest.mark.parametrize("text", ["", "{}", "[]", "[[]]", "[[1,]]", '[["a"]]', "[[1.5]]", "[[-1]]", "[1]"])
def test_bad_ids_file(text, tmp_path):
    (tmp_path / "ids.json").write_text(text)
    done = nb.run("eval", nb.DEMO, "--ids", tmp_path / "ids.json", "--logits", tmp_path / "out.st")
    assert done.returncode not in (0, 64) and "ids.json" in done.stderr
    assert not (tmp_path / "out.st").exists()


MESSAGES = {"messages": [{"role": "user", "content": "12 + 30 ="}], "reply": "42"}


@pytest.mark.parametrize("more", [{}, {"prompt": None}], ids=["messages", "null beside them"])
def test_eval_samples_of_messages(more, tmp_path):
    (tmp_path / "s.jsonl").write_text(json.dumps({**MESSAGES, **more}) + "\n")
    got = nb.ok_json("eval", nb.DEMO, "--samples", tmp_path / "s.jsonl", "--chunk", "1048576")
    assert got == {"exact_match": 1, "n": 1, "lines": [True]}


def test_eval_samples_of_messages_without_a_chat_template(tmp_path):
    """A llama model's messages are not rendered in DeepSeek's encoding."""
    (tmp_path / "s.jsonl").write_text(json.dumps(MESSAGES) + "\n")
    done = nb.run("eval", nb.MODELS["llama_ct"], "--samples", tmp_path / "s.jsonl")
    assert done.returncode == 1 and "chat template" in done.stderr and not done.stdout


@pytest.mark.parametrize("form", ["text", "json"])
def test_tokenize_takes_the_flag_of_every_verb(form):
    assert nb.ok("tokenize", nb.DEMO, "--format", form, stdin='"Hello"\n').stdout == nb.ok("tokenize", nb.DEMO, stdin='"Hello"\n').stdout
    assert nb.run("tokenize", nb.DEMO, "--format", "xml").returncode == 64


def test_bench_json():
    got = nb.ok_json("bench", nb.DEMO)
    assert {"cores", "isa", "read_roof_gbs", "copy_gbs", "fma_gflops", "int8_gops", "amx_gflops"} <= got["machine"].keys()
    assert got["machine"]["read_roof_gbs"] > 0
    for unit, without in (("int8_gops", ["generic"]), ("amx_gflops", None)):
        rate = got["machine"][unit]
        assert rate > 0 if rate is not None else without is None or got["machine"]["isa"] in without
    for row in got["results"]:
        assert {"name", "arith", "rows", "seconds", "gbs", "gflops", "share_of_roof", "tokens_per_s"} <= row.keys()
        assert row["seconds"] > 0
    decode = got["results"][-1]
    assert decode["name"] == "decode" and decode["roof_gbs"] > 0
    assert decode["share_of_roof"] == pytest.approx(decode["median_gbs"] / decode["roof_gbs"], rel=1e-3)


def test_nb_cpu():
    """NB_CPU names the kernels, --kernels has the last word, and a set that is not there is a usage error."""
    few = ("bench", nb.DEMO, "--prompt", "2", "--tokens", "1")
    assert nb.ok_json(*few, env={"NB_CPU": "generic"})["machine"]["isa"] == "generic"
    assert nb.ok_json(*few, "--kernels", "generic", env={"NB_CPU": "z80"})["machine"]["isa"] == "generic"
    refused = nb.run(*few, env={"NB_CPU": "z80"})
    assert refused.returncode == 64 and "NB_CPU" in refused.stderr and "z80" in refused.stderr


def test_bench_streams():
    got = nb.ok_json("bench", nb.DEMO, "--tokens", "4", "--streams", "1,3")
    assert [(r["name"], r["rows"]) for r in got["results"]] == [("prefill", 128), ("decode", 1), ("decode", 3)]
    for bad in ("", "0", "1,", "1,2x", "1" * 20):
        assert nb.run("bench", nb.DEMO, "--streams", bad).returncode == 64


def test_loading_prints_one_screen():
    """Architecture, formats by share of bytes, memory."""
    done = nb.ok("run", nb.DEMO, "-p", "282 - 247 =")
    assert "deepseek_v4" in done.stderr and "NVFP4" in done.stderr.upper() and len(done.stderr.splitlines()) <= 24


def test_json_has_no_bare_nan():
    report = nb.ok("check", nb.DEMO, "--format", "json").stdout
    json.loads(report, parse_constant=lambda text: pytest.fail(text))


@pytest.mark.parametrize("base,value", [("llama_ct", 0.0), ("llama_ct", float("nan")), ("llama_modelopt", 0.0), ("llama_modelopt", float("inf"))])
def test_a_scale_that_is_no_number_does_not_load_silently(base, value, tmp_path):
    """Whoever looks for the fault must be able to run the file; the load says which linear, before any answer."""
    import shutil
    import struct
    import st
    model = tmp_path / "model"
    shutil.copytree(nb.MODELS[base], model)
    for file in model.glob("*.safetensors"):
        head, start = st.header(file)
        for name, entry in head.items():
            if name.startswith("model.layers.1.mlp.up_proj.weight_") and entry["dtype"] == "F32":
                with open(file, "r+b") as f:
                    f.seek(start + entry["data_offsets"][0])
                    f.write(struct.pack("<f", value))
    (tmp_path / "ids.json").write_text("[[1, 2, 3]]")
    done = nb.run("eval", model, "--ids", tmp_path / "ids.json", "--logits", tmp_path / "out", "-q")
    told = [line for line in done.stderr.splitlines() if "global scale" in line]
    assert len(told) == 1 and "1 linear: model.layers.1.mlp.up_proj" in told[0] and "nibble check" in told[0]
    healthy = nb.run("eval", nb.MODELS[base], "--ids", tmp_path / "ids.json", "--logits", tmp_path / "out", "-q")
    assert "global scale" not in healthy.stderr


def test_eval_of_a_model_that_gives_nan(tmp_path):
    """A line that says so and what to run. Logits are kept (exit 0) and a sample without an answer is a wrong one, but there is no
    perplexity of NaN: exit 1."""
    import defects
    model, ids, text, samples = tmp_path / "m", tmp_path / "ids.json", tmp_path / "t.txt", tmp_path / "s.jsonl"
    defects.break_py.write(str(nb.MODELS["llama_ct"]), str(model), "nan_byte_one")
    ids.write_text("[[1, 2, 3]]")
    text.write_text("a few words " * 40)
    samples.write_text(json.dumps({"prompt": "a few", "reply": "words"}) + "\n")
    forms = {("--ids", ids, "--logits", tmp_path / "out"): 0, ("--text", text, "--window", "8"): 1, ("--samples", samples): 0}
    for form, code in forms.items():
        done = nb.run("eval", model, *form, "-q")
        assert done.returncode == code, done.stderr
        told = [line for line in done.stderr.splitlines() if "not finite" in line]
        assert len(told) == 1 and f"nibble trace {model}" in told[0] and "-nan" not in done.stdout + done.stderr
        healthy = nb.run("eval", nb.MODELS["llama_ct"], *form, "-q")
        assert healthy.returncode == 0 and "not finite" not in healthy.stderr
    done = nb.run("eval", model, "--text", text, "--window", "8", "--format", "json", "-q")
    assert json.loads(done.stdout)["perplexity"] == "nan" and done.returncode == 1
    assert nb.ok("eval", model, "--text", text, "--window", "8", status=(1,)).stdout.startswith("perplexity nan (mean nll nan)")
    assert nb.ok_json("eval", model, "--samples", samples)["lines"] == [False]


class Terminal:
    """nibble run on a terminal of its own."""

    def __init__(self, folder=nb.DEMO, *args):
        import pty
        self.fd, end = pty.openpty()
        self.process = subprocess.Popen([nb.BIN, "run", folder, "-q", *args], stdin=end, stdout=end, stderr=end, start_new_session=True,
                                        preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0))
        os.close(end)
        self.seen = ""

    def until(self, text, seconds=60):
        """What is shown up to text; an empty text waits for anything at all."""
        import select
        import time
        stop = time.monotonic() + seconds * nb.PATIENCE
        while text not in self.seen or not self.seen:
            assert time.monotonic() < stop, self.seen
            if select.select([self.fd], [], [], 1)[0]:
                self.seen += os.read(self.fd, 65536).decode("utf-8", "replace")
        before, _, self.seen = self.seen.partition(text) if text else (self.seen, "", "")
        return before

    def type(self, data):
        os.write(self.fd, data)

    def end(self):
        code = self.process.wait(timeout=60 * nb.PATIENCE)
        os.close(self.fd)
        return code


STORY = b"Tell me a story about a lost key.\n"


def endless(folder):
    """The demo model with the head of the padding token, which was never trained, for its end token's: an answer goes on until the context
    is full."""
    import shutil
    import st
    shutil.copytree(nb.DEMO, folder)
    ids = json.loads((folder / "generation_config.json").read_text())
    head, start = st.header(folder / "model.safetensors")
    width = 2 * head["lm_head.weight"]["shape"][1]
    row = lambda name: start + head["lm_head.weight"]["data_offsets"][0] + ids[name] * width
    with open(folder / "model.safetensors", "r+b") as f:
        f.seek(row("pad_token_id"))
        never = f.read(width)
        f.seek(row("eos_token_id"))
        f.write(never)
    return folder


def test_chat_ctrl_c_ends_the_answer_not_the_program(tmp_path):
    t = Terminal(endless(tmp_path / "endless"), "--kernels", "generic", "--threads", "1")  # nor soon full
    t.until("> ")
    for message in (STORY, b"12 + 30 =\n"):              # the conversation goes on
        t.type(message)
        t.until("\n")                                   # the terminal's echo of the line
        t.until("")                                     # the answer begins
        t.type(b"\x03")
        t.until("[stopped]")
        t.until("> ")
    t.type(b"\x03")                                     # nothing is being answered: leave
    assert t.end() == 0


def test_chat_takes_up_after_a_line_that_is_not_utf8():
    t = Terminal()
    t.until("> ")
    t.type(b"caf\xe9\n")
    t.until("not UTF-8")
    t.until("> ")
    t.type(b"12 + 30 =\n")
    t.until("42")
    t.until("> ")
    t.type(b"\x04")
    assert t.end() == 0


def test_lines_of_stdin_that_are_not_utf8_are_told_and_left_out():
    done = nb.run("run", nb.DEMO, "-q", stdin=b"caf\xe9\n12 + 30 =\n")
    assert done.returncode == 1 and "not UTF-8" in done.stderr and done.stdout.strip() == "42"


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json", "model.safetensors"])
def test_a_git_lfs_pointer_is_called_so(file, tmp_path):
    """By every verb that needs the file."""
    for f in nb.DEMO.iterdir():
        (tmp_path / f.name).symlink_to(f)
    (tmp_path / file).unlink()
    (tmp_path / file).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n")
    verbs = [["run", tmp_path, "-p", "x", "-n", "1"], ["serve", tmp_path, "--port", "0"], ["check", tmp_path]]
    verbs += [["tokenize", tmp_path]] if file.startswith("tokenizer") else []
    for verb in verbs:
        done = nb.run(*verb, timeout=60)
        assert done.returncode not in (0, 64) and "Git LFS pointer" in done.stdout + done.stderr and file in done.stdout + done.stderr, verb
        assert "git lfs pull" in done.stdout + done.stderr


def test_eval_finds_out_first_that_it_cannot_write(tmp_path):
    (tmp_path / "ids.json").write_text("no array: read after the output was tried")
    done = nb.run("eval", nb.DEMO, "--ids", tmp_path / "ids.json", "--logits", tmp_path / "no" / "out")
    assert done.returncode == 1 and str(tmp_path / "no" / "out") in done.stderr and "ids.json" not in done.stderr


def test_a_low_limit_of_the_stack_changes_nothing():
    import resource
    low = 128 * 1024   # an operator keeps up to 1.1 MB there
    args = [nb.BIN, "run", nb.DEMO, "-p", "Tell me a story about a lost key.", "--max-tokens", "4", "--threads", "2", "-q"]
    done = [subprocess.run(args, capture_output=True, text=True, preexec_fn=limit) for limit in
            (None, lambda: resource.setrlimit(resource.RLIMIT_STACK, (low, low)))]
    assert [d.returncode for d in done] == [0, 0], done[1].stderr[-500:]
    assert done[0].stdout == done[1].stdout != ""


def test_more_threads_than_cpus_are_worth_a_warning():
    """They park between operators; that a step takes ten times as long should not have to be found out."""
    cpu = min(os.sched_getaffinity(0))
    said = [subprocess.run([nb.BIN, "run", nb.DEMO, "-p", "Copy: ab", "--max-tokens", "1", "--threads", n, "-q"], capture_output=True, text=True,
                           preexec_fn=lambda: os.sched_setaffinity(0, {cpu})).stderr for n in ("1", "2")]
    assert said[0] == "" and "warning: 2 threads share 1 CPU and" in said[1] and "--threads 1" in said[1]
    trace = subprocess.run([nb.BIN, "trace", nb.DEMO, "-p", "x", "--threads", "2", "-q"], capture_output=True, text=True,
                           preexec_fn=lambda: os.sched_setaffinity(0, {cpu}))
    assert trace.stderr.count("warning") == 1  # though it loads the folder twice


def test_answer_and_rates_in_one_file_are_lines_of_their_own():
    both = subprocess.run([nb.BIN, "run", nb.DEMO, "-p", "282 - 247 ="], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    assert re.search(r"^35\n\[14 prompt tokens ", both, re.M)
