"""How the tests reach the built program and the data. NB_BIN names the program (build/nibble), NB_FIXTURES a further folder
of test data with the layout of tests/fixtures."""
import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("NB_BIN", ROOT / "build" / "nibble"))
BUILD = pathlib.Path(os.environ.get("NB_BUILD", BIN.parent))
OWN = ROOT / "tests" / "fixtures"
DEMO = ROOT / "models" / "demo"
DATA = [OWN] + ([pathlib.Path(os.environ["NB_FIXTURES"])] if os.environ.get("NB_FIXTURES") else [])

# The architectures (model_type of the text model) that this build runs; the further data holds others too.
ARCHITECTURES = {
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
    "gemma3_text",
    "gemma4_text",
    "glm4_moe",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "gpt_oss",
    "llama",
    "minimax_m2",
    "mistral",
    "mixtral",
    "phi3",
    "nemotron_h",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_moe",
    "qwen3_next",
}


def text_config(model):
    """config.json of a folder, or the text_config in it."""
    config = json.loads((model / "config.json").read_text())
    return config.get("text_config", config)


def folders(kind, wanted=lambda name: True):
    """The folders of DATA/kind by name, each name once."""
    found = {}
    for data in DATA:
        for path in sorted((data / kind).glob("*")):
            if path.is_dir() and wanted(path.name):
                found.setdefault(path.name, path)
    return found


def runs(model):
    """True when this build has a forward pass for the folder."""
    return text_config(model)["model_type"] in ARCHITECTURES


MODELS = {name: path for name, path in folders("models").items() if runs(path)}
# Folders that `check` reads; none of them need run.
ALL_MODELS = folders("models")
DEMOS = folders("demo")


# A sanitizer makes everything some ten to fifty times slower: ./dev sets by how much longer to wait.
PATIENCE = float(os.environ.get("NB_PATIENCE", "1"))


def run(*args, stdin="", env=None, timeout=600):
    """Runs nibble; the result has returncode, stdout and stderr as text. A death by signal is an error whatever the test wants."""
    done = subprocess.run([BIN, *map(str, args)], input=stdin.encode() if isinstance(stdin, str) else stdin, capture_output=True,
                          timeout=timeout * PATIENCE, env={**os.environ, **(env or {})})
    done.stdout, done.stderr = done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
    assert done.returncode >= 0, f"nibble {' '.join(map(str, args))}: died of signal {-done.returncode}\n{done.stderr[-3000:]}"
    return done


def ok(*args, status=(0,), **kw):
    """Runs nibble, which must end with one of these statuses."""
    done = run(*args, **kw)
    assert done.returncode in status, f"nibble {' '.join(map(str, args))}: exit {done.returncode}\n{done.stderr[-3000:]}"
    return done


def ok_json(*args, **kw):
    """stdout of a successful run with --format json: JSON alone, no bare NaN."""
    def refuse(text):
        raise AssertionError(f"not JSON: {text}")
    return json.loads(ok(*args, "--format", "json", **kw).stdout, parse_constant=refuse)
