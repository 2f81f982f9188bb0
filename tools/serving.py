"""For examples of the documents whose program reads from a server: tools/docs.py."""

from __future__ import annotations

import atexit
import os
import re
import subprocess
import time
from pathlib import Path


def serve(configuration: str) -> None:
    """A server with this configuration in the present folder. It ends with the program, and its caches too."""
    Path("config.yaml").write_text(f"{configuration}\nsockets: {{dir: sockets}}\n")
    os.environ["STOCACHED_SOCKETS_DIR"] = "sockets"
    names = re.findall(r"\bname: ([\w-]+)", configuration.partition("source")[0])
    with Path("log.txt").open("w") as log:
        server = subprocess.Popen(["stocached", "serve", "-c", "config.yaml"], stdout=log, stderr=log)

    def end() -> None:
        server.terminate()
        server.wait()
        subprocess.run(["stocached", "rm", *names], capture_output=True)

    atexit.register(end)
    while subprocess.run(["stocached", "health", names[0]], capture_output=True).returncode != 0:
        if server.poll() is not None:
            raise RuntimeError(Path("log.txt").read_text())
        time.sleep(0.1)
