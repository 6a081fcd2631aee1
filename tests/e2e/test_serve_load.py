"""`nibble serve` under clients that cancel, die, idle and crowd, and its end under load."""
import fcntl
import http.client
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

import nb
import st
from serving import HELD, PATIENCE, Server, aborted, answer_status, frames, long_request, raw_post, read_all, reset


@pytest.fixture(scope="module")
def server():
    with Server(*HELD, "--max-num-seqs", 8, "--max-num-queued-reqs", 400, "--log-format", "json", "--health-timeout", 60 * PATIENCE) as s:
        yield s


def answered(server):
    body = json.loads(server.post("/v1/completions", {"prompt": "One two three", "max_tokens": 3, "temperature": 0, "ignore_eos": True})[2])
    return body["choices"][0]["text"]


def test_two_hundred_cancelled_then_one(server):
    """Cancelled at random moments, streaming and not, running and queued: then nothing is left, and one is answered at once: to finish
    what was cancelled would take an hour."""
    want = answered(server)
    before = server.quiet()
    rng, sockets = random.Random(5), []
    for i in range(200):
        s = server.socket()
        s.sendall(raw_post("/v1/completions", long_request(stream=i % 2 == 0)))
        sockets.append((time.monotonic() + rng.random() * 0.3, s))
        while sockets and (len(sockets) > 40 or sockets[0][0] < time.monotonic()):
            when, oldest = sockets.pop(0)
            time.sleep(max(0, when - time.monotonic()))
            oldest.close()
    for _, s in sockets:
        s.close()
    start = time.monotonic()
    assert answered(server) == want
    assert time.monotonic() - start < 30 * PATIENCE
    assert aborted(server.quiet()) > aborted(before)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("end", ["killed", "closed", "half-closed"])
def test_clients_that_go(server, stream, end):
    """The engine lets go within a step of the client's end, queued requests included (8 run, 4 wait)."""
    before = aborted(server.quiet())
    sockets = [server.socket() for _ in range(12)]
    for s in sockets:
        s.sendall(raw_post("/v1/completions", long_request(stream=stream)))
    server.running(12)
    for s in sockets:
        if end == "killed":
            reset(s)
        elif end == "closed":
            s.close()
        else:
            s.shutdown(socket.SHUT_WR)
    assert aborted(server.quiet()) == before + 12
    for s in sockets:
        s.close()


def test_a_cancelled_request_in_the_queue_leaves_the_others_alone():
    """Cancelling what waits must not stop what runs."""
    with Server(*HELD, "--max-num-seqs", 1) as one:
        results = {}

        def ask():
            results["text"] = one.post("/v1/completions", long_request(500, stream=False), timeout=600)[2]
        running = threading.Thread(target=ask)
        running.start()
        one.running(1)
        waiting = [one.socket() for _ in range(5)]
        for s in waiting:
            s.sendall(raw_post("/v1/completions", long_request(stream=False)))
        one.running(6)
        for s in waiting:
            reset(s)
        running.join()
        assert json.loads(results["text"])["usage"]["completion_tokens"] == 500
        one.quiet()


def test_full_queue_is_503_with_retry_after():
    with Server(*HELD, "--max-num-seqs", 1, "--max-num-queued-reqs", 3) as s:
        sockets = [s.socket() for _ in range(3)]
        for c in sockets:
            c.sendall(raw_post("/v1/completions", long_request()))
        s.running(3)
        status, headers, body = s.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
        assert status == 503 and headers["retry-after"] and json.loads(body)["error"]["code"] == 503
        for c in sockets:
            c.close()
        s.quiet()
        assert s.post("/v1/completions", {"prompt": "x", "max_tokens": 1})[0] == 200


def test_a_batch_that_is_more_than_may_wait_is_served_by_an_idle_server():
    """200 prompts of 100 tokens where 6,400 may wait: no waiting would ever let them in, so that they come in as one request."""
    with Server("--max-model-len", "100", "--max-num-seqs", "4") as s:
        status, _, body = s.post("/v1/completions", {"prompt": [[5] * 90] * 200, "max_tokens": 1}, timeout=600)
        assert status == 200 and len(json.loads(body)["choices"]) == 200
        status, _, body = s.post("/v1/completions", {"prompt": [5] * 90, "max_tokens": 1, "n": 200}, timeout=600)
        assert status == 200 and len(json.loads(body)["choices"]) == 200
        status, _, body = s.post("/v1/completions", {"prompt": ["a"] * 1024, "max_tokens": 1}, timeout=600)  # vLLM's most, whatever the number of seats
        assert status == 200 and len(json.loads(body)["choices"]) == 1024


def test_a_stream_that_waits_is_kept_alive():
    """Its headers come, then a comment now and then, so that no proxy cuts it; the answer follows as ever."""
    with Server(*HELD, "--max-num-seqs", 1, "--stream-comment-interval", "0.2") as s:
        first = s.socket()
        first.sendall(raw_post("/v1/completions", long_request(4000)))
        s.running(1)
        second = s.socket()
        second.sendall(raw_post("/v1/completions", long_request(5), "Connection: close\r\n"))
        got = b""
        while got.count(b": keep-alive\n\n") < 2:
            piece = second.recv(4096)
            assert piece
            got += piece
        assert b"text/event-stream" in got and b"data:" not in got
        first.close()
        got += read_all(second)
        assert b"data: [DONE]" in got
        second.close()


def test_a_thousand_idle_connections(server):
    idle = [server.socket() for _ in range(1000)]
    try:
        times = []
        for _ in range(50):
            start = time.monotonic()
            assert server.get("/health")[0] == 200
            times.append(time.monotonic() - start)
        assert sorted(times)[5] < 0.05 * PATIENCE  # the rest may have waited for a processor
        assert answered(server)
        idle[500].sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle[500].recv(100).startswith(b"HTTP/1.1 200")
    finally:
        for s in idle:
            s.close()


def test_connections_are_limited():
    """One more takes the place of the one that idles longest; with all at work it is told to come back."""
    with Server(*HELD, "--max-connections", 4) as s:
        sockets = [s.socket() for _ in range(4)]
        assert s.get("/health")[0] == 200
        assert sockets[0].recv(1) == b""
        sockets = sockets[1:] + [s.socket()]
        for c in sockets:
            c.sendall(raw_post("/v1/completions", long_request()))
            assert c.recv(10)
        with s.socket() as c:
            assert answer_status(read_all(c)) == 503
        for c in sockets:
            c.close()


# ---- The end ----

def streams(server, n, tokens):
    """n streams under way, each read by a thread; their bytes so far and the threads."""
    got, threads = [b""] * n, []

    def read(i, s):
        got[i] = read_all(s)
        s.close()
    for i in range(n):
        s = server.socket(timeout=60)
        s.sendall(raw_post("/v1/completions", long_request(tokens)))
        threads.append(threading.Thread(target=read, args=(i, s)))
        threads[-1].start()
    server.running(n)
    return got, threads


def reasons(got):
    """Why each of the streams ended."""
    return [re.findall(rb'"finish_reason": ?"(\w+)"', one)[-1] for one in got]


def stopping(server):
    """Waits until the server has taken the signal; its /health then."""
    end = time.monotonic() + 30 * PATIENCE
    while (answer := server.get("/health"))[0] == 200 and time.monotonic() < end:
        time.sleep(0.01)
    assert answer[0] == 503
    return json.loads(answer[2])["status"]


def test_sigterm_lets_what_runs_finish():
    server = Server(*HELD, "--shutdown-timeout", 600 * PATIENCE)
    with server:
        got, threads = streams(server, 4, 120)
        server.process.send_signal(signal.SIGTERM)
        assert stopping(server) == "stopping"
        status, headers, _ = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
        assert status == 503 and headers["retry-after"]
        for t in threads:
            t.join()
        assert server.process.wait(30 * PATIENCE) == 0
    assert all(one.endswith(b"0\r\n\r\n") and b"[DONE]" in one for one in got) and reasons(got) == [b"length"] * 4


def test_sigterm_without_time_aborts():
    server = Server(*HELD)
    with server:
        got, threads = streams(server, 8, 3000)
        assert server.stop(within=30)[0] == 0
        for t in threads:
            t.join()
    assert all(b"[DONE]" in one for one in got) and reasons(got) == [b"abort"] * 8
    assert "the engine did not end in time" not in server.text()


def test_sigterm_when_the_time_is_over():
    server = Server(*HELD, "--shutdown-timeout", "1")
    with server:
        got, threads = streams(server, 2, 3500)
        status, took = server.stop(within=30)
        assert status == 0 and took >= 1
        for t in threads:
            t.join()
    assert reasons(got) == [b"abort"] * 2


def test_a_second_signal_ends_at_once():
    server = Server(*HELD, "--shutdown-timeout", 1000)
    with server:
        _, threads = streams(server, 2, 3500)
        server.process.send_signal(signal.SIGINT)
        assert stopping(server) == "stopping"
        assert server.stop()[0] == 128 + signal.SIGTERM  # with the streams over, it would be 0
        for t in threads:
            t.join()


def test_a_signal_while_the_folder_is_checked(tmp_path):
    """The server answers, and reads its folder once more for the line about other stacks: 32 GB here that no model needs, nor the disk."""
    folder = tmp_path / "model"
    shutil.copytree(nb.OWN / "models" / "qwen3_ct", folder)
    st.add_hole(folder / "model.safetensors", "vision_tower.hole", 1 << 35)
    server = Server("--memory", "1T", model=folder, wait=False)
    with server:
        while server.get("/health")[0] != 200:
            time.sleep(0.002)
        assert server.stop()[0] == 0
    assert "stopped" in server.text() and " ready " not in server.text()


def test_a_signal_while_loading():
    """With a warm-up that the plain kernels make long."""
    server = Server(*HELD, "--arith", "w4a4", "--scales", "warmup", wait=False)
    with server:
        status, _, body = server.get("/health")
        assert status == 503 and json.loads(body)["status"] == "loading"
        status, headers, _ = server.post("/v1/completions", {"prompt": "x"})
        assert status == 503 and headers["retry-after"]
        assert "vllm:num_requests_running" in server.metrics()
        assert server.stop()[0] == 0
    assert " ready " not in server.text()


def test_frames_are_json_to_the_last(server):
    body = server.post("/v1/completions", long_request(50))[2]
    got = frames(body)
    assert got[-1] == "[DONE]"
    for frame in got[:-1]:
        json.loads(frame)


def test_throughput_and_access_lines(server):
    """Ten seconds after the start there is a line of the work that was in them."""
    server.post("/v1/completions", long_request(40, stream=False), headers={"X-Request-Id": "told"})
    end, one, access = time.monotonic() + 60 * PATIENCE, None, None
    while not (one and access):
        assert time.monotonic() < end
        time.sleep(0.1)
        lines = [json.loads(line) for line in server.log]
        one = next((line for line in lines if line["message"] == "throughput"), None)
        access = next((line for line in lines if line["message"] == "access" and line.get("id") == "told"), None)
    assert one["generation_tokens_per_s"] > 0 and "running" in one and "kv_cache_percent" in one
    assert access["path"] == "/v1/completions" and access["method"] == "POST" and access["status"] == 200
    assert not any(line.get("path") in ("/health", "/metrics") for line in lines)  # machines that ask all the time


def slow_step(*args):
    """A server whose one request takes a single step of many seconds: the plain kernels, a prompt of 4,000 tokens at once."""
    s = Server("--kernels", "generic", "--arith", "exact", "--threads", 1, "--max-num-batched-tokens", 4096, "--max-num-seqs", 4, *args)
    c = s.socket(timeout=120)
    c.sendall(raw_post("/v1/completions", {"prompt": [100] * 4000, "max_tokens": 1}))
    s.running(1)
    return s, c


def test_a_step_that_does_not_end_is_told_and_holds_up_nothing():
    """/health answers at once and says stalled; a signal ends the process in its time all the same, with status 0."""
    s, c = slow_step("--health-timeout", 0.3)
    with s, c:
        assert stopping(s) == "stalled"
        for _ in range(20):
            assert s.get("/health")[0] == 503
        assert not select.select([c], [], [], 0)[0]  # all these while the step ran
        status, took = s.stop(within=30)
        assert status == 0 and (took < 5 * PATIENCE or "the engine did not end in time" in s.text())


def test_a_log_that_nobody_reads_stops_nothing():
    """Standard error is a pipe of one page whose reader sleeps: lines are dropped, and told of when there is room again."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    process = subprocess.Popen([nb.BIN, "serve", nb.DEMO, "--port", "0"], stdin=subprocess.DEVNULL, stderr=writer)
    os.close(writer)
    try:
        said = b""
        while b" ready " not in said:
            piece = os.read(reader, 4096)
            assert piece, said
            said += piece
        port = int(re.search(rb"http://localhost:(\d+)", said)[1])
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=60 * PATIENCE)
        for _ in range(100):
            c.request("GET", "/v1/models")
            r = c.getresponse()
            assert r.status == 200 and r.read()
        os.read(reader, 1 << 16)
        c.request("GET", "/v1/models")
        assert c.getresponse().status == 200
        c.close()
        assert b"log lines were dropped" in os.read(reader, 1 << 16)
    finally:
        process.kill()
        process.wait()
        os.close(reader)
