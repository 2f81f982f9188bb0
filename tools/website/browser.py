"""One browser that tests steer. It listens to nothing: its commands and reports go through pipes."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "google-chrome", "chrome")
SECONDS = 120  # a page takes a tenth of a second; a busy machine may take longer


def program() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One tab of one browser, with the protocol of the developer tools: https://chromedevtools.github.io"""

    def __init__(self, path: str, profile: Path) -> None:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        # A page that asks another machine gets no answer, and the browser reports that.
        rules = "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
        options += [f"--host-resolver-rules={rules}", "--hide-scrollbars", f"--user-data-dir={profile}"]
        # The browser reads commands from descriptor 3, and writes to 4.
        shell = ("sh", "-c", 'exec "$0" "$@" 3<&0 4>&1 >&2', path, "--remote-debugging-pipe", *options)
        self.log = (profile / "log").open("w+")
        self.process = subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log)
        self.got = b""
        self.sent = 0
        self.events: list[dict[str, Any]] = []
        self.session = ""
        tab = self.do("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.do("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.do(f"{domain}.enable")

    def close(self) -> None:
        self.session = ""
        self.do("Browser.close")
        self.process.wait(SECONDS)
        for file in (self.process.stdin, self.process.stdout, self.log):
            if file:
                file.close()

    def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What a command answers."""
        self.sent += 1
        command = {"id": self.sent, "method": method, "params": parameters}
        if self.session:
            command["sessionId"] = self.session
        assert self.process.stdin
        self.process.stdin.write(json.dumps(command).encode() + b"\0")
        self.process.stdin.flush()
        while True:
            told = self.next()
            if told.get("id") == self.sent:
                assert "error" not in told, f"{method}: {told['error']}"
                result: dict[str, Any] = told["result"]
                return result

    def next(self) -> dict[str, Any]:
        """The next answer, or the next event, which `events` gets."""
        assert self.process.stdout
        end = time.monotonic() + SECONDS
        while b"\0" not in self.got:
            ready, _, _ = select.select([self.process.stdout], [], [], end - time.monotonic())
            more = os.read(self.process.stdout.fileno(), 1 << 20) if ready else b""
            if not more:
                self.log.seek(0)
                raise AssertionError(f"the browser {'has ended' if ready else 'does not answer'}:\n{self.log.read()}")
            self.got += more
        told, _, self.got = self.got.partition(b"\0")
        message: dict[str, Any] = json.loads(told)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, address: str) -> list[str]:
        """Shows a page. Returns what it has reported so far: errors, and whatever it logs."""
        self.events.clear()
        failed = self.do("Page.navigate", url=address).get("errorText")
        assert not failed, f"{address}: {failed}"
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.next()
        self.ask("new Promise(done => setTimeout(done))")  # what scripts have begun at the end of the load
        return self.complaints()

    def complaints(self) -> list[str]:
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self.events if event["method"] in kinds]

    def ask(self, expression: str) -> Any:
        """The value of an expression of JavaScript, which may be a promise."""
        answer = self.do("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, condition: str) -> None:
        """Waits until a condition holds in the page."""
        self.ask(
            "new Promise((done, failed) => {"
            f" const end = Date.now() + {SECONDS * 500};"
            f" (function look() {{ ({condition}) ? done() : Date.now() > end ? failed({json.dumps(condition)})"
            " : setTimeout(look, 20); })(); })"
        )

    def size(self, width: int, height: int) -> None:
        self.do("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefers(self, scheme: str) -> None:
        """What the system of the reader prefers: light or dark."""
        self.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.do("Page.captureScreenshot")["data"]))
