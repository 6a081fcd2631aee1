#!/usr/bin/env python3
"""Streams with random lengths, cancels, bad requests, half-closed sockets and injected NaNs on `nibble serve`, for as long as it takes.

    bench/soak.py MODEL [--nibble build/nibble] [--streams 64] [--seconds 1800] [--warmup 0.2] [--seed 1] [-- OPTION...]

Serves a copy of MODEL in which the embedding of the last token is NaN: requests whose prompt has that token must get 500, all others
must not. Prints one JSON line: answers by kind, the milliseconds between tokens (p50, p99), the resident memory after the warm-up (a share
of the time) and at the end, and what is left running, waiting and in the KV cache when all clients are gone. Exits 1 and says why when an
answer is not what it should be, something is left, or memory grew by more than 1 %. Options after -- are the server's. Standard library
alone.

The KV cache is small, so that every block has been written, and costs its memory, when the warm-up is over.
"""
import argparse
import collections
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time


def poisoned(model, folder):
    """A copy of the folder whose last embedding row begins with a NaN; returns that token."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    for path in pathlib.Path(folder).glob("*.safetensors"):
        with open(path, "r+b") as f:
            size = struct.unpack("<Q", f.read(8))[0]
            header = json.loads(f.read(size))
            for name, t in header.items():
                if not re.search(r"(embed_tokens|embed)\.weight$", name):
                    continue
                nan = {"BF16": b"\xc0\x7f", "F32": b"\x00\x00\xc0\x7f", "F16": b"\x00\x7e"}[t["dtype"]]
                rows, columns = t["shape"]
                f.seek(8 + size + t["data_offsets"][0] + (rows - 1) * columns * len(nan))
                f.write(nan)
                return rows - 1
    sys.exit(f"{model}: no embedding to poison")


class Soak:
    def __init__(self, port, bad_token, args):
        self.port, self.bad_token, self.args = port, bad_token, args
        self.kinds, self.wrong, self.gaps = collections.Counter(), [], []
        self.lock, self.end = threading.Lock(), time.monotonic() + args.seconds

    def count(self, kind, status, allowed, why=b""):
        with self.lock:
            self.kinds[f"{kind} {status}"] += 1
            if status not in allowed and len(self.wrong) < 20:
                self.wrong.append(f"{kind}: {status} {why[:200]!r}")

    def socket(self, path, body):
        body = json.dumps(body).encode()
        s = socket.create_connection(("127.0.0.1", self.port), timeout=300)
        s.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        return s

    @staticmethod
    def read(s, gaps=None):
        """Status and bytes until the end; gaps gets the times between frames with a token."""
        got, last = bytearray(), None
        while piece := s.recv(1 << 16):
            now = time.monotonic()
            if gaps is not None and b"data: {" in piece:
                if last is not None:
                    gaps.append(now - last)
                last = now
            got += piece
        found = re.match(rb"HTTP/1\.1 (\d+) ", got)
        return int(found[1]) if found else 0, bytes(got)

    def request(self, rng, stream, most=200):
        n = rng.choice([4, 20, 60, 200])
        return {"prompt": [rng.randrange(5, self.bad_token) for _ in range(n)], "max_tokens": rng.randrange(1, most), "stream": stream,
                "temperature": rng.choice([0, 1]), "seed": rng.randrange(1 << 30), "ignore_eos": True, "logit_bias": {str(self.bad_token): -100}}

    def stream(self, rng):
        gaps = []
        with self.socket("/v1/completions", self.request(rng, True)) as s:
            status, got = self.read(s, gaps)
        self.count("stream", status, (200,), got)
        if status == 200 and not (b"[DONE]" in got and got.endswith(b"0\r\n\r\n")):
            self.count("stream cut", 0, (), got[-200:])
        with self.lock:
            self.gaps += gaps

    def whole(self, rng):
        body = self.request(rng, False)
        if rng.random() < 0.5:
            body |= {"n": 2, "temperature": 1, "logprobs": 3}
        with self.socket("/v1/completions", body) as s:
            self.count("whole", *self.expect(s, (200,)))

    def expect(self, s, allowed):
        status, got = self.read(s)
        return status, allowed, got

    def cancel(self, rng):
        """Away at a random moment: closed, killed, or closed by half."""
        s = self.socket("/v1/completions", self.request(rng, rng.random() < 0.5, 1000))
        time.sleep(rng.random() * 0.5)
        how = rng.choice(["closed", "killed", "half-closed"])
        if how == "killed":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if how == "half-closed":
            s.shutdown(socket.SHUT_WR)
            try:
                self.read(s)  # answered before, or ended
            except ConnectionError:
                pass
        s.close()
        self.count(how, "gone", ("gone",))

    def bad(self, rng):
        body = rng.choice([{"max_tokens": -1}, {"temperature": -3}, {"max_tokens": "a"}, {"model": 5}, {"stop": [""] * 9}, {"prompt": []}, {"max_tokens": 1 << 40}])
        with self.socket("/v1/completions", {"prompt": "x"} | body) as s:
            self.count("bad", *self.expect(s, (400,)))

    def nan(self, rng):
        body = self.request(rng, False)
        body["prompt"][rng.randrange(len(body["prompt"]))] = self.bad_token
        with self.socket("/v1/completions", body) as s:
            self.count("nan", *self.expect(s, (500,)))

    def client(self, i):
        rng = random.Random(self.args.seed * 1000 + i)
        while time.monotonic() < self.end:
            do = rng.choices([self.stream, self.whole, self.cancel, self.bad, self.nan], [50, 15, 20, 10, 5])[0]
            try:
                do(rng)
            except OSError as e:
                self.count(do.__name__, type(e).__name__, ())

    def metrics(self):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request("GET", "/metrics")
        out = collections.Counter()
        for line in c.getresponse().read().decode().splitlines():
            if line and line[0] != "#":
                out[line.split("{")[0].split(" ")[0]] += float(line.rsplit(" ", 1)[1])
        c.close()
        return out


LEFT = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


def run(soak, args):
    threads = [threading.Thread(target=soak.client, args=(i,)) for i in range(args.streams)]
    for t in threads:
        t.start()
    time.sleep(args.seconds * args.warmup)
    rss = [soak.metrics()["process_resident_memory_bytes"]]
    while time.monotonic() < soak.end:
        time.sleep(min(5, args.seconds / 20))
        rss.append(soak.metrics()["process_resident_memory_bytes"])
    for t in threads:
        t.join()
    end = time.monotonic() + 30
    while any((m := soak.metrics())[k] for k in LEFT) and time.monotonic() < end:
        time.sleep(0.1)
    gaps = sorted(soak.gaps)
    growth = (max(rss[-3:]) - rss[0]) / rss[0]
    for k in LEFT:
        if m[k]:
            soak.wrong.append(f"left: {k} {m[k]}")
    if abs(growth) > 0.01:
        soak.wrong.append(f"resident memory: {rss[0]:.0f} bytes after the warm-up, {max(rss[-3:]):.0f} at the end")
    return {"streams": args.streams, "seconds": args.seconds, "answers": dict(sorted(soak.kinds.items())),
            "ms_between_tokens": {f"p{q}": round(1e3 * gaps[min(len(gaps) - 1, len(gaps) * q // 100)], 2) for q in (50, 99)} if gaps else None,
            "rss_mib": [round(rss[0] / 2 ** 20, 1), round(max(rss[-3:]) / 2 ** 20, 1)], "rss_growth": round(growth, 4),
            "guard_events": m["nibble:guard_events_total"], "corrupted": m["vllm:corrupted_requests_total"],
            "preemptions": m["vllm:num_preemptions_total"], "left": {k: m[k] for k in LEFT}, "wrong": soak.wrong}


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("model")
    p.add_argument("--nibble", default=str(pathlib.Path(__file__).resolve().parents[1] / "build" / "nibble"))
    p.add_argument("--streams", type=int, default=64)
    p.add_argument("--seconds", type=float, default=1800)
    p.add_argument("--warmup", type=float, default=0.2)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("options", nargs="*")
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "log"), "w+") as log:
        token = poisoned(args.model, os.path.join(folder, "model"))
        server = subprocess.Popen([args.nibble, "serve", os.path.join(folder, "model"), "--port", "0", "--max-num-seqs", str(args.streams),
                                   "--max-num-queued-reqs", str(args.streams * 8), "--disable-uvicorn-access-log",
                                   "--max-model-len", "1280", "--num-gpu-blocks-override", str(args.streams * 16), *args.options], stderr=log)
        try:
            while not (ready := re.search(r"ready url=http://[^:]*:(\d+)", pathlib.Path(log.name).read_text())):
                if server.poll() is not None:
                    sys.exit(pathlib.Path(log.name).read_text())
                time.sleep(0.1)
            result = run(Soak(int(ready[1]), token, args), args)
            server.terminate()
            if server.wait(60) != 0:
                result["wrong"].append(f"the server ended with status {server.returncode}")
        finally:
            server.kill()
            server.wait()
    print(json.dumps(result))
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
