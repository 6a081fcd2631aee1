"""The transport of `nibble serve`: HTTP as proxies and clients speak it, and what neither may do to it."""
import json
import re
import select
import socket
import time

import pytest

from serving import HELD, PATIENCE, Server, answer_status, frames, long_request, raw_post, read_all, reset

SLOW = 2


@pytest.fixture(scope="module")
def server():
    with Server("--slow-client-timeout", SLOW * PATIENCE, "--max-body", "1MiB", "--enable-request-id-headers", "--root-path", "/llm",
                "--served-model-name", "demo", "alias") as s:
        yield s


def error_of(body):
    e = json.loads(body)["error"]
    assert set(e) == {"message", "type", "param", "code"} and isinstance(e["message"], str)
    return e


def test_simple_routes(server):
    assert server.get("/health")[::2] == (200, b"")
    assert server.get("/ping")[0] == 200 and server.post("/ping", b"")[0] == 200
    status, headers, body = server.get("/version")
    assert status == 200 and headers["content-type"] == "application/json" and json.loads(body)["version"]
    assert json.loads(server.get("/load")[2]) == {"server_load": 0}
    status, headers, body = server.get("/metrics")
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    status, headers, body = server.get("/")
    assert status == 200 and headers["content-type"] == "text/html; charset=utf-8" and b"<!doctype html>" in body.lower()
    assert "default-src 'none'" in headers["content-security-policy"]
    api = json.loads(server.get("/openapi.json")[2])
    assert "/v1/chat/completions" in api["paths"]


def test_models(server):
    status, _, body = server.get("/v1/models")
    cards = json.loads(body)["data"]
    assert status == 200 and [c["id"] for c in cards] == ["demo", "alias"] and cards[0]["max_model_len"] == 4096
    assert server.get("/models")[2].count(b'"demo"') == 1  # without the prefix, the same
    assert json.loads(server.get("/v1/models/alias")[2])["id"] == "alias"
    status, _, body = server.get("/v1/models/other")
    assert status == 404 and "other" in error_of(body)["message"]


def test_head_has_the_length_and_no_body(server):
    for path in ("/health", "/version", "/", "/metrics", "/v1/models"):
        whole, head = server.get(path), server.ask("HEAD", path)
        assert head[0] == whole[0] and head[2] == b""
        if path != "/metrics":  # its length changes with its figures
            assert head[1]["content-length"] == whole[1]["content-length"] == str(len(whole[2]))


def test_unknown_route_and_wrong_method(server):
    status, _, body = server.get("/v1/embeddings")
    assert status == 404 and error_of(body) == {"message": "Not Found", "type": "Not Found", "param": None, "code": 404}
    status, headers, body = server.get("/v1/completions")
    assert status == 405 and headers["allow"] == "POST" and error_of(body)["type"] == "Method Not Allowed"
    status, headers, _ = server.ask("DELETE", "/ping")
    assert status == 405 and headers["allow"] == "GET, HEAD, POST"


@pytest.mark.parametrize("kind", [None, "text/plain", "application/jsonx", ""])
def test_content_type(server, kind):
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/invocations"):
        status, _, body = server.ask("POST", path, b"{}", {"Content-Type": kind} if kind is not None else {})
        assert status == 400 and "Unsupported Media Type: Only 'application/json' is allowed" in error_of(body)["message"]


def test_completion_and_chat(server):
    ask = {"messages": [{"role": "user", "content": "282 - 247 ="}], "temperature": 0, "max_tokens": 8}
    status, headers, body = server.post("/v1/chat/completions", ask)
    assert status == 200 and headers["content-type"] == "application/json"
    assert json.loads(body)["choices"][0]["message"]["content"] == "35"
    assert json.loads(server.post("/chat/completions", ask)[2])["choices"][0]["message"]["content"] == "35"
    assert json.loads(server.post("/llm/v1/chat/completions", ask)[2])["choices"][0]["message"]["content"] == "35"
    assert json.loads(server.post("/invocations", ask)[2])["object"] == "chat.completion"
    status, _, body = server.post("/invocations", {"prompt": "12 + 30 =", "max_tokens": 2})
    assert status == 200 and json.loads(body)["object"] == "text_completion"


def test_stream(server):
    status, headers, body = server.post("/v1/completions", {"prompt": "One two", "max_tokens": 6, "stream": True, "ignore_eos": True})
    assert status == 200 and headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["x-accel-buffering"] == "no" and headers["cache-control"] == "no-cache"
    got = frames(body)
    assert got[-1] == "[DONE]" and len(got) > 2
    for frame in got[:-1]:
        assert json.loads(frame)["object"] == "text_completion"


def test_stream_that_fails_before_it_begins_is_plain_json(server):
    status, headers, body = server.post("/v1/completions", {"prompt": "x", "max_tokens": 10**6, "stream": True})
    assert status == 400 and headers["content-type"] == "application/json" and error_of(body)["code"] == 400


def test_request_ids(server):
    assert server.get("/health", headers={"X-Request-Id": "abc"})[1]["x-request-id"] == "abc"
    assert re.fullmatch("[0-9a-f]{32}", server.get("/health")[1]["x-request-id"])
    ask = {"prompt": "x", "max_tokens": 1}
    status, headers, body = server.post("/v1/completions", ask, headers={"X-Request-Id": "mine"})
    assert headers["x-request-id"] == "mine" and json.loads(body)["id"].startswith("cmpl-mine")
    status, headers, body = server.post("/v1/completions", ask)
    assert json.loads(body)["id"].startswith("cmpl-" + headers["x-request-id"])


def test_cors(server):
    origin = {"Origin": "http://page.example"}
    assert server.get("/v1/models", headers=origin)[1]["access-control-allow-origin"] == "*"
    assert "access-control-allow-origin" not in server.get("/v1/models")[1]
    status, headers, _ = server.ask("OPTIONS", "/v1/chat/completions", headers={
        **origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type"})
    assert status == 200 and headers["access-control-allow-origin"] == "*"
    assert "POST" in headers["access-control-allow-methods"]
    assert headers["access-control-allow-headers"] == "authorization, content-type"
    status, headers, _ = server.ask("OPTIONS", "/v1/chat/completions")
    assert status == 200 and "POST" in headers["allow"]


# ---- Bytes on the wire ----

MALFORMED = [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),  # TLS to a plain port
    (b"GET\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
    (b"GET / HTTP/3.0\r\n\r\n", 505),
    (b"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\nA: \x00\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\nnonsense\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
    (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nExpect: wonders\r\nContent-Length: 1\r\n\r\n", 417),
    (b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
    (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 300 + b"\r\n", 431),
    (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 70000 + b"\r\n\r\n", 431),
    (b"x" * 70000, 431),
]


@pytest.mark.parametrize("bytes_,status", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_is_answered_and_closed(server, bytes_, status):
    with server.socket() as s:
        s.sendall(bytes_)
        got = read_all(s)
    assert answer_status(got) == status, got[:200]
    assert error_of(got.split(b"\r\n\r\n", 1)[1])["code"] == status
    assert b"connection: close" in got


def test_too_large_a_body(server):
    """Refused by its length, before it comes; the answer reaches a client that goes on sending."""
    with server.socket() as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 3000000\r\n\r\n")
        try:
            s.sendall(b"x" * 3000000)
        except ConnectionError:
            pass
        assert answer_status(read_all(s)) == 413
    with server.socket() as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            s.sendall(b"200000\r\n" + b"x" * 0x200000)
        except ConnectionError:
            pass
        assert answer_status(read_all(s)) == 413


def test_announced_bodies_hold_no_room(server):
    """Twenty connections that announce as much as all bodies together may have, and send none of it, keep nobody out."""
    idle = [server.socket() for _ in range(20)]
    for s in idle:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1048576\r\n\r\n")
    assert server.post("/v1/completions", {"prompt": "x" * 1000, "max_tokens": 1})[0] == 200
    for s in idle:
        s.close()


def test_bodies_of_who_has_gone_are_counted_until_they_are_freed():
    """Six megabytes keep the only worker busy; of who then sends one and goes, one after the other, two have room beside them, as eight
    are held. Later there is room again."""
    body = json.dumps({"prompt": "x" * 1000000}).encode()
    request = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with Server("--workers", 1, "--max-body", "1MiB") as server:
        busy = [server.socket(timeout=600) for _ in range(6)]
        for s in busy:
            s.sendall(request)
        got = []
        for _ in range(10):
            with server.socket() as s:
                s.sendall(request)
                s.shutdown(socket.SHUT_WR)
                got.append(answer_status(read_all(s)))
        assert 503 in got and got.count(None) >= 2
        for s in busy:
            assert s.recv(12) == b"HTTP/1.1 200"
            s.close()
        ask = lambda: server.ask("POST", "/tokenize", body, {"Content-Type": "application/json"}, timeout=600)[0]
        end = time.monotonic() + 60 * PATIENCE
        while ask() == 503:  # until the worker has come to those who have gone
            assert time.monotonic() < end
            time.sleep(0.05)
        for _ in range(10):
            assert ask() == 200


def test_calls_that_wait_for_a_worker_are_bounded():
    """Parsing costs before a request is known: 1,024 of them may wait or be with a worker, their clients there or gone; one more is told to come back."""
    with Server("--workers", 1) as s:
        long = [s.socket() for _ in range(3)]
        for c in long:
            c.sendall(raw_post("/tokenize", {"prompt": "One two three. " * 1300000}))  # a second and more of the only worker, each
        small = {"prompt": "x"}
        for i in range(1024):  # and with those of the three that are not over, more than may wait
            if i % 64 == 0:
                s.get("/health")  # so that no more than that are open at once, whatever ulimit -n is
            with s.socket() as c:
                c.sendall(raw_post("/tokenize", small))
                c.shutdown(socket.SHUT_WR)
        with s.socket() as c:  # those before it have been read by now, or it would wait behind them
            c.sendall(raw_post("/tokenize", small, "Connection: close\r\n"))
            got = read_all(c)
        assert answer_status(got) == 503 and b"wait for a worker" in got and b"retry-after" in got
        assert s.get("/health")[0] == 200
        for c in long:
            reset(c)
        end = time.monotonic() + 60 * PATIENCE
        while s.post("/tokenize", small)[0] == 503 and time.monotonic() < end:
            time.sleep(0.05)
        assert s.post("/tokenize", small)[0] == 200


def test_chunks_pipelines_and_continue(server):
    body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
    with server.socket() as s:
        s.sendall(b"\r\nPOST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
                  b"Expect: 100-continue\r\n\r\n")
        assert s.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        for i in range(len(body)):  # a byte a chunk
            s.sendall(b"1\r\n" + body[i:i + 1] + b"\r\n")
        s.sendall(b"0\r\n\r\n" + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 3 + b"GET /version HTTP/1.0\r\n\r\n")
        got = read_all(s)  # the last one closes
    assert got.count(b"HTTP/1.1 200 OK") == 5 and b"text_completion" in got and b'"version"' in got


def test_connections_are_kept(server):
    c = server.connect()
    for _ in range(5):
        c.request("GET", "/health")
        r = c.getresponse()
        r.read()
        sock = c.sock
        assert r.status == 200 and sock is not None
    c.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 2, "stream": True}),
              {"Content-Type": "application/json"})
    c.getresponse().read()
    c.request("GET", "/health")
    assert c.getresponse().status == 200 and c.sock is sock
    c.close()


def test_slow_headers_and_bodies_are_cut(server):
    """A byte now and then does not keep a connection: both are cut after the time there is."""
    start = time.monotonic()
    head, body = server.socket(), server.socket()
    head.sendall(b"GET / HT")
    body.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n")
    open_ = {head: b"", body: b""}
    while open_ and time.monotonic() - start < 60 * PATIENCE:
        time.sleep(0.3)
        for s in list(open_):
            try:
                s.sendall(b"x")
                s.settimeout(0.01)
                piece = s.recv(4096)
            except socket.timeout:
                continue
            except ConnectionError:
                piece = b""
            open_[s] += piece
            if b"HTTP/1.1 408" in open_[s] or not piece:
                assert b"HTTP/1.1 408" in open_[s]
                del open_[s]
    assert not open_ and time.monotonic() - start >= SLOW * PATIENCE
    head.close()
    body.close()


def test_a_reader_that_does_not_read_is_cut(server):
    """Not for what it sends meanwhile: requests that wait behind an answer may have 64 KiB."""
    request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    with server.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        start = time.monotonic()
        s.sendall(500 * request)  # more answers than the kernels take
        sent = 500
        with pytest.raises(ConnectionError):
            while time.monotonic() - start < 30 * PATIENCE:
                s.sendall(request)
                sent += 1
                time.sleep(0.05 * PATIENCE)
    assert time.monotonic() - start > SLOW * PATIENCE and sent * len(request) < 1 << 16
    assert server.get("/health")[0] == 200


def test_a_reader_that_trickles_is_cut_and_one_that_keeps_up_is_not():
    """Some bytes again and again do not make a reader: the span's rate counts. A stream that comes slower than that rate is no reader's fault."""
    with Server(*HELD, "--slow-client-timeout", 2 * PATIENCE, "--slow-client-rate", 10 ** 9) as s:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)  # so that the server's kernel takes some all the time
        slow.settimeout(60 * PATIENCE)
        slow.connect((s.host, s.port))
        slow.sendall(raw_post("/tokenize", {"prompt": "One two three. " * 200000, "return_token_strs": True}, "Connection: close\r\n"))
        start, got, fast = time.monotonic(), slow.recv(4096), b""
        with s.socket() as c, slow:
            c.sendall(raw_post("/v1/completions", long_request(800)))
            while time.monotonic() - start < 6 * PATIENCE:
                time.sleep(0.05 * PATIENCE)
                got += slow.recv(16384)
                fast += c.recv(1 << 20) if select.select([c], [], [], 0)[0] else b""
            while not fast.endswith(b"0\r\n\r\n"):
                piece = c.recv(1 << 20)
                assert piece, "the stream was cut"
                fast += piece
            got += read_all(slow)  # what the kernel had taken, and no more
        head, body = got.split(b"\r\n\r\n", 1)
        assert answer_status(got) == 200 and len(body) < int(re.search(rb"content-length: (\d+)", head)[1])
        assert b"[DONE]" in fast


def test_what_the_server_has_not_passed_on_is_no_readers_fault():
    """Sixteen streams whose kernels take all there is. A look four times a second finds bytes that the loop has put and not written yet:
    with a rate that nobody has, each of them would be cut that is held for behind."""
    with Server("--slow-client-timeout", 0.1, "--slow-client-rate", 10 ** 9) as s:
        sockets = [s.socket(timeout=600) for _ in range(16)]
        for c in sockets:
            c.sendall(raw_post("/v1/completions", long_request(500), "Connection: close\r\n"))
        for c in sockets:
            with c:
                assert b"data: [DONE]" in read_all(c)


def test_half_closed_but_answered_at_once(server):
    """An answer that is made at once reaches a client that has already closed its half; nc does that."""
    with server.socket() as s:
        s.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        s.shutdown(socket.SHUT_WR)
        assert answer_status(read_all(s)) == 200


def test_the_body_that_says_close_closes(server):
    with server.socket() as s:
        s.sendall(raw_post("/v1/completions", {"prompt": "x", "max_tokens": 1}, "Connection: close\r\n"))
        got = read_all(s)  # well before the 75 seconds of an idle connection, or the socket's time-out ends the test
    assert answer_status(got) == 200 and b"connection: close" in got
