"""`nibble serve` under clients that cancel, die, idle and crowd, and its end under load."""
import fcntl
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

import nb
import st
from serving import PATIENCE, Server, answer_status, frames, long_request, raw_post, read_all, reset


@pytest.fixture(scope="module")
def server():
    with Server("--max-num-seqs", 8, "--max-num-queued-reqs", 400, "--log-format", "json", "--health-timeout", 60 * PATIENCE) as s:
        yield s


def answered(server):
    body = json.loads(server.post("/v1/completions", {"prompt": "One two three", "max_tokens": 3, "temperature": 0, "ignore_eos": True})[2])
    return body["choices"][0]["text"]


def test_two_hundred_cancelled_then_one(server):
    """Cancelled at random moments, streaming and not, running and queued: then nothing is left, and one is answered at once."""
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
    assert time.monotonic() - start < 5 * PATIENCE
    after = server.quiet()
    aborted = 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="%s"}'
    key = next(k for k in after if k.startswith("vllm:request_success_total") and "abort" in k)
    assert after[key] > before[key], aborted


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("end", ["killed", "closed", "half-closed"])
def test_clients_that_go(server, stream, end):
    """The engine lets go within a step of the client's end, queued requests included (8 run, 4 wait)."""
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
    server.quiet(within=5)
    for s in sockets:
        s.close()


def test_a_cancelled_request_in_the_queue_leaves_the_others_alone(server):
    """Cancelling what waits must not stop what runs."""
    with Server("--max-num-seqs", 1) as one:
        results = {}

        def ask():
            results["text"] = one.post("/v1/completions", long_request(60, stream=False))[2]
        running = threading.Thread(target=ask)
        running.start()
        one.running(1)
        waiting = [one.socket() for _ in range(5)]
        for s in waiting:
            s.sendall(raw_post("/v1/completions", long_request(stream=False)))
        one.running(6)
        for s in waiting:
            reset(s)
        running.join(60 * PATIENCE)
        assert json.loads(results["text"])["usage"]["completion_tokens"] == 60
        one.quiet()


def test_full_queue_is_503_with_retry_after():
    with Server("--max-num-seqs", 1, "--max-num-queued-reqs", 3) as s:
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
        status, _, body = s.post("/v1/completions", {"prompt": [[5] * 90] * 200, "max_tokens": 1})
        assert status == 200 and len(json.loads(body)["choices"]) == 200
        status, _, body = s.post("/v1/completions", {"prompt": [5] * 90, "max_tokens": 1, "n": 200})
        assert status == 200 and len(json.loads(body)["choices"]) == 200
        status, _, body = s.post("/v1/completions", {"prompt": ["a"] * 1024, "max_tokens": 1})  # vLLM's most, whatever the number of seats
        assert status == 200 and len(json.loads(body)["choices"]) == 1024


def test_a_stream_that_waits_is_kept_alive():
    """Its headers come, then a comment now and then, so that no proxy cuts it; the answer follows as ever."""
    with Server("--max-num-seqs", 1, "--stream-comment-interval", "0.2") as s:
        first = s.socket()
        first.sendall(raw_post("/v1/completions", long_request(4000)))
        s.running(1)
        second = s.socket()
        second.sendall(raw_post("/v1/completions", long_request(5)))
        got = b""
        while got.count(b": keep-alive\n\n") < 2:
            piece = second.recv(4096)
            assert piece
            got += piece
        assert b"text/event-stream" in got and b"data:" not in got
        first.close()
        while b"0\r\n\r\n" not in got:
            got += second.recv(4096)
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
        assert sorted(times)[25] < 0.05 * PATIENCE
        assert answered(server)
        idle[500].sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle[500].recv(100).startswith(b"HTTP/1.1 200")
    finally:
        for s in idle:
            s.close()


def test_connections_are_limited():
    """One more takes the place of the one that idles longest; with all at work it is told to come back."""
    with Server("--max-connections", 4) as s:
        sockets = [s.socket() for _ in range(4)]
        time.sleep(0.2)
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


def test_health_while_the_engine_is_busy(server):
    """A prompt of 2,000 tokens holds up no probe."""
    done = threading.Thread(target=lambda: server.post("/v1/completions", {"prompt": [100] * 2000, "max_tokens": 1}))
    done.start()
    times = []
    while done.is_alive():
        start = time.monotonic()
        assert server.get("/health")[0] == 200
        times.append(time.monotonic() - start)
    done.join()
    assert len(times) > 3 and sorted(times)[len(times) // 2] < 0.05 * PATIENCE


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
    end = time.monotonic() + 20 * PATIENCE
    while (m := server.metrics())["vllm:num_requests_running"] + m["vllm:num_requests_waiting"] < n:  # past the workers, too
        assert time.monotonic() < end, "the streams did not start"
        time.sleep(0.01)
    return got, threads


def test_sigterm_lets_what_runs_finish():
    server = Server("--shutdown-timeout", 60 * PATIENCE)
    with server:
        got, threads = streams(server, 4, 120)
        server.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 5 * PATIENCE
        while (answer := server.get("/health"))[0] == 200 and time.monotonic() < end:
            time.sleep(0.01)
        assert answer[0] == 503 and json.loads(answer[2])["status"] == "stopping"
        status, headers, _ = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
        assert status == 503 and headers["retry-after"]
        for t in threads:
            t.join()
        assert server.process.wait(10 * PATIENCE) == 0
    for one in got:
        body = one.split(b"\r\n\r\n", 1)[1]
        assert body.endswith(b"0\r\n\r\n") and b'"finish_reason":"length"' in body.replace(b": ", b":") and b"[DONE]" in body


def test_sigterm_without_time_aborts():
    server = Server()
    with server:
        got, threads = streams(server, 8, 3000)
        status, took = server.stop()
        assert status == 0 and took < 4.1 * PATIENCE
        for t in threads:
            t.join()
    for one in got:
        assert b"[DONE]" in one


def test_sigterm_when_the_time_is_over():
    server = Server("--shutdown-timeout", "1")
    with server:
        got, threads = streams(server, 2, 3500)
        status, took = server.stop()
        assert status == 0 and 1 <= took < 5 * PATIENCE
        for t in threads:
            t.join()


def test_a_second_signal_ends_at_once():
    server = Server("--shutdown-timeout", "100")
    with server:
        _, threads = streams(server, 2, 3500)
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        status, took = server.stop()
        assert status == 128 + signal.SIGTERM and took < 2 * PATIENCE
        for t in threads:
            t.join()


def test_a_signal_while_the_folder_is_checked(tmp_path):
    """The server answers, and reads its folder once more for the line about other stacks: 2 GB here that no model needs."""
    folder = tmp_path / "model"
    shutil.copytree(nb.OWN / "models" / "qwen3_ct", folder)
    st.add_hole(folder / "model.safetensors", "vision_tower.hole", 1 << 31)
    server = Server(model=folder, wait=False)
    with server:
        while server.get("/health")[0] != 200:
            time.sleep(0.002)
        assert server.stop()[0] == 0
    assert "stopped" in server.text() and " ready " not in server.text()


def test_a_signal_while_loading():
    server = Server("--arith", "w4a4", "--scales", "warmup", wait=False)
    with server:
        status, _, body = server.get("/health")
        if status == 503:  # still loading, as it should with a warm-up
            assert json.loads(body)["status"] == "loading"
            status, headers, _ = server.post("/v1/completions", {"prompt": "x"})
            assert status == 503 and headers["retry-after"]
            assert "vllm:num_requests_running" in server.metrics()
        assert server.stop()[0] == 0


def test_frames_are_json_to_the_last(server):
    body = server.post("/v1/completions", long_request(50))[2]
    got = frames(body)
    assert got[-1] == "[DONE]"
    for frame in got[:-1]:
        json.loads(frame)


def test_throughput_and_access_lines(server):
    """Last in this file: by now ten seconds have passed, with work in them."""
    server.post("/v1/completions", long_request(40, stream=False))
    end = time.monotonic() + 15
    while not any('"message":"throughput"' in line for line in server.log) and time.monotonic() < end:
        time.sleep(0.1)
    lines = [json.loads(line) for line in server.log]
    one = next(line for line in lines if line["message"] == "throughput")
    assert one["generation_tokens_per_s"] > 0 and "running" in one and "kv_cache_percent" in one
    access = [line for line in lines if line["message"] == "access" and line["path"] == "/v1/completions"]
    assert access and access[-1]["method"] == "POST" and access[-1]["status"] == 200
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
        end, answer = time.monotonic() + 20, s.get("/health")
        while answer[0] == 200 and time.monotonic() < end:
            time.sleep(0.05)
            answer = s.get("/health")
        assert answer[0] == 503 and json.loads(answer[2])["status"] == "stalled"
        status, took = s.stop(within=20)
        assert status == 0 and took < 6 * PATIENCE


def test_a_log_that_nobody_reads_stops_nothing():
    """Standard error is a pipe of one page whose reader sleeps: lines are dropped, and told of when there is room again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    process = subprocess.Popen([nb.BIN, "serve", nb.DEMO, "--port", str(port)], stdin=subprocess.DEVNULL, stderr=writer)
    os.close(writer)
    try:
        deadline = time.monotonic() + 60 * PATIENCE
        served = 0
        while served < 100:
            assert time.monotonic() < deadline and process.poll() is None
            try:
                c = http.client.HTTPConnection("127.0.0.1", port, timeout=10 * PATIENCE)
                c.request("GET", "/v1/models")
                served += c.getresponse().status == 200
            except ConnectionRefusedError:
                time.sleep(0.05)
            finally:
                c.close()
        os.read(reader, 1 << 16)
        c.request("GET", "/v1/models")
        assert c.getresponse().status == 200
        assert b"log lines were dropped" in os.read(reader, 1 << 16)
    finally:
        process.kill()
        process.wait()
        os.close(reader)
