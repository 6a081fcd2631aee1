"""Starts `nibble serve`, asks questions over HTTP with streamed answers, stops it: ask_server.py NIBBLE DIR QUESTION ANSWER … Exit 0 when all
answers are the expected ones and the server ended well. Used by ./dev demo."""
import http.client
import json
import re
import signal
import subprocess
import sys


def ask(port, question):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps({"messages": [{"role": "user", "content": question}], "temperature": 0, "stream": True})
    c.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    answer = ""
    for line in c.getresponse():
        line = line.decode()
        if line.startswith("data: {"):
            choices = json.loads(line[6:]).get("choices")
            answer += choices[0]["delta"].get("content") or "" if choices else ""
    c.close()
    return answer


def main(program, folder, *pairs):
    server = subprocess.Popen([program, "serve", folder, "--port", "0"], stderr=subprocess.PIPE, text=True)
    try:
        port, right = None, True
        for line in server.stderr:
            port = port or re.search(r"url=http://[^:]*:(\d+)", line)
            if " ready " in line:
                break
        if server.poll() is not None or not port:
            return 1
        for question, expected in zip(pairs[::2], pairs[1::2]):
            answer = ask(int(port[1]), question)
            print(f"question: {question}\nanswer:   {answer}", flush=True)
            right = right and answer == expected
        server.send_signal(signal.SIGTERM)
        return 0 if right and server.wait(20) == 0 else 1
    finally:
        server.kill()
        server.stderr.close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
