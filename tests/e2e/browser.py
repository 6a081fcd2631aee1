"""Chromium without a window, driven over its debugging pipe (JSON messages ended by NUL): nothing but the standard library."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

from nb import PATIENCE

PROGRAM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)


class Browser:
    def __init__(self):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self.to = os.pipe()
        self.answers, from_write = os.pipe()

        def place():  # the browser reads descriptor 3 and writes 4
            a, b = os.dup(to_read), os.dup(from_write)
            os.dup2(a, 3)
            os.dup2(b, 4)
        self.process = subprocess.Popen([PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                                         "--disable-background-networking", f"--user-data-dir={self.profile.name}", "--remote-debugging-pipe",
                                         "about:blank"], preexec_fn=place, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(from_write)
        self.rest, self.number, self.session, self.console = b"", 0, None, []
        try:
            self.begin()
        except BaseException:
            self.__exit__()
            raise

    def begin(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Runtime.enable")
        self.call("Log.enable")
        self.screen()

    def screen(self, width=1280, height=800, dark=False):
        """What the page is shown on."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 800)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + 120 * PATIENCE
        while True:
            while b"\0" not in self.rest:
                assert select.select([self.answers], [], [], max(0, end - time.monotonic()))[0], f"the browser does not answer {method}"
                piece = os.read(self.answers, 1 << 20)
                assert piece, "the browser has ended"
                self.rest += piece
            text, self.rest = self.rest.split(b"\0", 1)
            got = json.loads(text)
            if got.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.console.append(json.dumps(got["params"]))
            if got.get("id") == self.number:
                assert "error" not in got, got
                return got["result"]

    def open(self, url):
        self.console.clear()
        self.run("window.left = true")  # the page that is shown: the next one does not know it
        self.call("Page.navigate", url=url)
        self.wait("!window.left && document.readyState === 'complete'")

    def run(self, script):
        got = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")

    def wait(self, script, seconds=60):
        end = time.monotonic() + seconds * PATIENCE
        while not self.run(script):
            assert time.monotonic() < end, f"never true: {script}\n{self.run('document.body.innerText')}\n{self.console}"
            time.sleep(0.05)

    def shot(self, path):
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.answers)
        self.profile.cleanup()
