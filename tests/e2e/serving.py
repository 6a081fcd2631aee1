"""A running `nibble serve` for tests: started on a free port, spoken to with http.client and plain sockets, always ended."""
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import threading
import time

import nb
from nb import PATIENCE


class Server:
    def __init__(self, *args, model=nb.DEMO, env=None, wait=True, port="0", before=None):
        self.log, self.ready, self.listening = [], threading.Event(), threading.Event()
        self.host, self.port = "127.0.0.1", None
        self.process = subprocess.Popen([nb.BIN, "serve", str(model), "--port", port, *map(str, args)], stdin=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env={**os.environ, **(env or {})},
                                        preexec_fn=before)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        event = self.ready if wait else self.listening
        if not event.wait(60 * PATIENCE) or (self.port is None and "--uds" not in args):
            self.kill()
            raise AssertionError("the server did not start:\n" + self.text())

    def _read(self):
        for line in self.process.stderr:
            line = line.decode("utf-8", "replace").rstrip("\n")
            self.log.append(line)
            found = re.search(r"http://[^:\s\"]*:(\d+)", line)
            if found and self.port is None:
                self.port = int(found[1])
            if "listening" in line:
                self.listening.set()
            if " ready " in line or '"message":"ready"' in line:
                self.ready.set()
        self.listening.set()
        self.ready.set()

    def text(self):
        return "\n".join(self.log)[-4000:]

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def stop(self, sig=signal.SIGTERM, within=10):
        """Asks the server to end; returns its status and how long it took."""
        start = time.monotonic()
        self.process.send_signal(sig)
        try:
            status = self.process.wait(within * PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError("the server did not end:\n" + self.text()) from None
        took = time.monotonic() - start
        self.reader.join(5)
        return status, took

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None and kind is None:
            status, _ = self.stop(within=20)
            assert status == 0, f"exit {status}\n{self.text()}"
        self.kill()

    # ---- Requests ----

    def connect(self, timeout=30):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout * PATIENCE)

    def socket(self, timeout=30):
        s = socket.create_connection((self.host, self.port), timeout=timeout * PATIENCE)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s

    def ask(self, method, path, body=None, headers=None, timeout=60):
        """One request on a connection of its own: status, headers, bytes."""
        c = self.connect(timeout)
        try:
            if body is not None and not isinstance(body, (bytes, str)):
                body = json.dumps(body)
                headers = {"Content-Type": "application/json", **(headers or {})}
            c.request(method, path, body, headers or {})
            r = c.getresponse()
            return r.status, r.headers, r.read()
        finally:
            c.close()

    def get(self, path, **kw):
        return self.ask("GET", path, **kw)

    def post(self, path, body, **kw):
        return self.ask("POST", path, body, **kw)

    def metrics(self):
        """The samples of /metrics: {"name{labels}": value}, and each name's sum without labels."""
        status, _, text = self.get("/metrics")
        assert status == 200
        out = {}
        for line in text.decode().splitlines():
            if line and line[0] != "#":
                key, value = line.rsplit(" ", 1)
                out[key] = float(value)
                name = key.split("{")[0]
                if name != key:
                    out[name] = out.get(name, 0) + float(value)
        return out

    def quiet(self, within=30):
        """Waits until nothing runs, nothing waits and no KV block is held; the metrics then."""
        end = time.monotonic() + within * PATIENCE
        while True:
            m = self.metrics()
            left = {k: m[k] for k in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")}
            if not any(left.values()) and json.loads(self.get("/load")[2])["server_load"] == 0:
                return self.metrics()  # the first may be from before the last was counted
            assert time.monotonic() < end, f"still {left}"
            time.sleep(0.02)

    def running(self, n, within=60):
        """Waits until the engine has n sequences, running or in its queue."""
        end = time.monotonic() + within * PATIENCE
        while (m := self.metrics())["vllm:num_requests_running"] + m["vllm:num_requests_waiting"] < n:
            assert time.monotonic() < end, "the requests did not start"
            time.sleep(0.01)


# The plain kernels on one thread are some twenty times slower than the others: a long answer takes many seconds on any machine, and is
# under way still when a test has looked, cancelled or sent a signal.
HELD = ("--kernels", "generic", "--threads", 1)


def long_request(tokens=3000, stream=True, prompt="Tell me a story."):
    return {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": stream}


def aborted(metrics):
    """How many requests ended because their clients went."""
    return next(v for k, v in metrics.items() if k.startswith("vllm:request_success_total{") and 'finished_reason="abort"' in k)


def raw_post(path, body, more=""):
    body = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{more}\r\n").encode() + body


def read_all(s):
    """What comes until the other side closes; the connection's end by RST is one, too."""
    got = b""
    try:
        while True:
            piece = s.recv(65536)
            if not piece:
                return got
            got += piece
    except ConnectionResetError:
        return got


def answer_status(got):
    found = re.match(rb"HTTP/1\.1 (\d+) ", got)
    return int(found[1]) if found else None


def reset(s):
    """Closes as a killed client's kernel does, with RST."""
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def frames(text):
    """The data of a stream's frames; comments are left out."""
    out = []
    for block in text.decode("utf-8").split("\n\n"):
        if block and not block.startswith(":"):
            assert block.startswith("data: "), block
            out.append(block[6:])
    return out
