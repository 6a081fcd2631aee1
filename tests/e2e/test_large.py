"""A model larger than memory: weights are streamed, so trace, calibrate and `check --data` hold a few layers of a DeepSeek-V4-shaped folder
at a time, and check none. The folder is made here (tools/make_large.py)."""
import os
import resource
import shutil
import subprocess
import sys

import nb
import pytest

# Sanitizers and coverage keep books of their own in the same memory.
plain = pytest.mark.skipif(nb.BUILD.name != "build", reason="an instrumented program's memory says nothing")


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large") / "model"
    subprocess.run([sys.executable, nb.ROOT / "tools" / "make_large.py", folder, "--hidden", "768", "--inter", "384", "--experts", "24"], check=True, capture_output=True)
    yield folder
    shutil.rmtree(folder)


# Each thread has memory of its own, so that as many run everywhere: a thread a core.
CORES = sorted(os.sched_getaffinity(0))[:2]

# A child starts with its parent's peak, so the parent has to be small: not pytest after hundreds of tests.
MEASURE = f"""
import os, subprocess, sys
os.sched_setaffinity(0, {CORES})
p = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
_, status, used = os.wait4(p.pid, 0)
print(os.waitstatus_to_exitcode(status), used.ru_maxrss * 1024)
"""


def peak(*args):
    """The largest resident memory of a run that succeeds, in bytes."""
    done = subprocess.run([sys.executable, "-c", MEASURE, nb.BIN, *map(str, args)], check=True, capture_output=True, text=True)
    status, most = map(int, done.stdout.split())
    assert status == 0
    return most


@plain
def test_a_quarter_of_the_size_is_enough(large, tmp_path):
    size = sum(f.stat().st_size for f in large.iterdir())
    assert size > 480e6
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "one two three, said the clerk, and then four"}\n' * 10)
    assert peak("trace", large, "--as", "vllm-cutlass", "-p", "What is 12 + 30?", "--threads", "2") < size / 4
    assert peak("calibrate", large, "--data", data, "-o", tmp_path / "ranges", "--threads", "2") < size / 4
    assert peak("check", large, "--data", data) < size / 4
    assert peak("check", large) < 60e6


@plain
def test_a_quarter_of_the_size_is_enough_address_space(large, tmp_path):
    """A limit on addresses (ulimit -v) counts what is reserved and not touched, too: stacks, arenas, caches."""
    size = sum(f.stat().st_size for f in large.iterdir())

    def limit():
        os.sched_setaffinity(0, CORES)
        resource.setrlimit(resource.RLIMIT_AS, (size // 4, size // 4))
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "one two three, said the clerk, and then four"}\n' * 2)
    for args in (["calibrate", large, "--data", data, "-o", tmp_path / "ranges", "--threads", "2"],
                 ["trace", large, "--as", "vllm-cutlass", "-p", "What is 12 + 30?", "--threads", "2"],
                 ["check", large, "--data", data]):
        done = subprocess.run([nb.BIN, *map(str, args)], capture_output=True, text=True, preexec_fn=limit)
        assert done.returncode == 0, done.stderr[-500:]
