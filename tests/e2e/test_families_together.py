"""Every family served to 32 clients at once, with prompts that share prefixes, and with others that leave: each answer is the one that
it gets alone, without a prefix cache."""
import concurrent.futures
import json
import random
import time

import nb
import pytest
from serving import Server, raw_post

STREAMS = 32


def first_of_each_family():
    """One folder for each model_type, so that a family's other formats do not repeat what the kernels' tests compare."""
    found = {}
    for name, folder in sorted(nb.MODELS.items()):
        config = json.loads((folder / "config.json").read_text().replace("Infinity", "1e30"))
        found.setdefault(config.get("text_config", config).get("model_type"), name)
    return sorted(found.values())


def requests(vocabulary):
    """Prompts of ids: four prefixes, each cut at a few places, with endings of their own; greedy and drawn."""
    rng = random.Random(11)
    ids = lambda n: [rng.randrange(3, vocabulary) for _ in range(n)]
    prefixes = [ids(n) for n in (20, 48, 70, 130)]
    out = []
    for i in range(STREAMS):
        prefix = prefixes[i % len(prefixes)]
        cut = len(prefix) - (i // 8) * 5
        out.append({"prompt": prefix[:cut] + ids(1 + i % 7), "max_tokens": 4 + i % 13, "ignore_eos": True, "return_token_ids": True,
                    "temperature": i % 2, "seed": i})
    return out


def answer(server, request):
    status, _, body = server.post("/v1/completions", request, timeout=300)
    assert status == 200, body
    return json.loads(body)["choices"][0]["token_ids"]


def leave(server, request, seconds):
    """A client that asks for much and is gone before it has it."""
    s = server.socket()
    s.sendall(raw_post("/v1/completions", {**request, "max_tokens": 200, "stream": True}))
    time.sleep(seconds)
    s.close()


@pytest.mark.parametrize("name", first_of_each_family())
def test_same_tokens_as_alone(name):
    folder = nb.MODELS[name]
    config = json.loads((folder / "config.json").read_text().replace("Infinity", "1e30"))
    asked = requests(config.get("text_config", config)["vocab_size"])
    limits = ("--max-model-len", 512, "--max-num-seqs", STREAMS, "--max-num-batched-tokens", 96)
    with Server(*limits, "--no-enable-prefix-caching", model=folder) as server:
        alone = [answer(server, r) for r in asked]
    rng = random.Random(5)
    with Server(*limits, model=folder) as server, concurrent.futures.ThreadPoolExecutor(2 * STREAMS) as pool:
        for _ in range(2):  # the second time the prefixes are there
            jobs = [pool.submit(answer, server, r) for r in asked]
            leavers = [pool.submit(leave, server, rng.choice(asked), rng.random() * 0.2) for _ in range(STREAMS // 2)]
            assert [j.result() for j in jobs] == alone
            for j in leavers:
                j.result()
        m = server.quiet()
        if "vllm:prefix_cache_hits_total" in m:
            assert m["vllm:prefix_cache_hits_total"] > 0
