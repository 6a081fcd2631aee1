#!/usr/bin/env python3
"""Streams over HTTP against the engine alone: what the server costs, and what a batch brings.

    bench/serve.py MODEL [--nibble build/nibble] [--streams 1,8,32] [--prompt 128] [--tokens 64] [--rounds 3]

For each number of streams `nibble bench` and a load on `nibble serve` take turns on the same cores, the client among them; each shows its
best round. Prints one JSON line a number: tokens a second of both and their ratio, and the milliseconds between tokens. Standard
library alone.
"""
import argparse
import json
import re
import selectors
import socket
import subprocess
import sys
import tempfile
import time


def server(args):
    most = max(args.streams)
    log = tempfile.TemporaryFile("w+")
    p = subprocess.Popen([args.nibble, "serve", args.model, "--port", "0", "--max-num-seqs", str(most), "--no-enable-prefix-caching",
                          "--max-num-batched-tokens", str(max(512, most)), "--disable-uvicorn-access-log",
                          "--max-model-len", str(args.prompt + args.tokens + 16)], stderr=log)
    while p.poll() is None:
        log.seek(0)
        ready = re.search(r"ready url=http://[^:]*:(\d+)", log.read())
        if ready:
            return p, int(ready.group(1))
        time.sleep(0.1)
    log.seek(0)
    sys.exit(log.read())


class Stream:
    """One streaming completion, read without parsing: a frame begins with "data: {"."""

    def __init__(self, port, prompt, tokens):
        body = json.dumps({"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True}).encode()
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
                          b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.times, self.tail, self.over = [], b"", False

    def read(self):
        data = self.sock.recv(1 << 16)
        now = time.perf_counter()
        if not data:
            self.sock.close()
            self.over = True
            return
        if not self.times and not self.tail and not data.startswith(b"HTTP/1.1 200"):
            sys.exit(data.decode(errors="replace"))
        data = self.tail + data
        self.times += [now] * data.count(b"data: {")
        self.tail = data[-6:]  # the mark's length less one


def load(port, n, args):
    """Tokens a second after all have begun, and every time between two tokens of a stream."""
    prompt = ("Once upon a time there was a miller who had three sons, and when he died " * args.prompt)[:4 * args.prompt]
    with selectors.DefaultSelector() as ready:
        streams = [Stream(port, prompt, args.tokens) for _ in range(n)]
        for s in streams:
            ready.register(s.sock, selectors.EVENT_READ, s)
        while not all(s.over for s in streams):
            for key, _ in ready.select(60):
                sock = key.data.sock
                key.data.read()
                if key.data.over:
                    ready.unregister(sock)
    if min(len(s.times) for s in streams) < args.tokens:
        sys.exit("bench/serve.py: an answer had fewer pieces than tokens: this model's tokens are not whole characters after this prompt")
    begun, first_end = max(s.times[0] for s in streams), min(s.times[-1] for s in streams)
    if first_end <= begun:
        sys.exit("bench/serve.py: an answer came in one piece, too soon to be timed: ask for more --tokens")
    tokens = sum(sum(begun < t <= first_end for t in s.times) for s in streams)
    return tokens / (first_end - begun), sorted(b - a for s in streams for a, b in zip(s.times, s.times[1:]))


def engine(n, args):
    out = subprocess.run([args.nibble, "bench", args.model, "--streams", str(n), "--prompt", str(args.prompt), "--tokens",
                          str(args.tokens), "--format", "json", "-q"], check=True, capture_output=True, text=True).stdout
    return next(r["tokens_per_s"] for r in json.loads(out)["results"] if r["name"] == "decode")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--nibble", default="build/nibble")
    parser.add_argument("--streams", default="1,2,4,8,16,32", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    process, port = server(args)
    try:
        load(port, 1, args)
        for n in args.streams:
            alone, served, gaps = [], [], []
            for _ in range(args.rounds):
                alone.append(engine(n, args))
                rate, between = load(port, n, args)
                served.append(rate)
                gaps += between
            gaps.sort()
            print(json.dumps({"streams": n, "engine_tokens_per_s": round(max(alone), 1), "served_tokens_per_s": round(max(served), 1),
                              "ratio": round(max(served) / max(alone), 3), "p50_ms": round(1e3 * gaps[len(gaps) // 2], 2),
                              "p99_ms": round(1e3 * gaps[len(gaps) * 99 // 100], 2)}), flush=True)
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
