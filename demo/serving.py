"""A server of the demo: the program `stocached serve` with a configuration in a temporary
folder."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "bin" / "stocached"
SECONDS = 60  # the most that the server takes to end


class ServerError(Exception):
    """The server does not start, or does not end. The message has its log."""


class Serving:
    """A server of one cache, in a folder with a short path: a socket's path has at most 107 bytes.
    `stop` MUST be called."""

    def __init__(self, folder: Path, cache: dict[str, Any]) -> None:
        self.name: str = cache["name"]
        self.sockets = folder / "run"
        self._config, self._log = folder / "serve.yaml", folder / "log"
        # JSON is YAML.
        self._config.write_text(json.dumps({"caches": [cache], "sockets": {"dir": str(self.sockets)}}, indent=2))
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [PROGRAM, "serve", "-c", self._config], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        if not self._process.stdout.readline().startswith("serving"):
            self._process.wait(SECONDS)
            raise ServerError(f"the server did not start: {self._log.read_text()}")

    def stop(self) -> None:
        """Ends the server as an operator does; the cache stays."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise ServerError(
                f"the server did not end within {SECONDS} s and was killed: {self._log.read_text()}"
            ) from None

    def remove(self) -> None:
        """Removes the cache, which frees its memory."""
        done = subprocess.run([PROGRAM, "rm", self.name], capture_output=True, text=True)
        if done.returncode != 0:
            print(f"demo: {done.stderr.strip()}", file=sys.stderr)

    def metric(self, name: str) -> int:
        """A metric of the cache, from the admin socket."""
        connection = http.client.HTTPConnection("stocached", timeout=SECONDS)
        connection.sock = socket.socket(socket.AF_UNIX)
        try:
            connection.sock.connect(str(self.sockets / "admin.sock"))
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        found = re.search(rf'^{name}\{{cache="{self.name}"\}} (\S+)$', text, re.M)
        if found is None:
            raise ServerError(f"the server has no metric {name}: {text}")
        return int(float(found[1]))
