"""What the tests of packages share: the folder $DIST with the packages, and Pythons without anything else."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import NoReturn

import pytest
from version import version

import docs
from release import debian, native
from release.commands import ROOT

DIST = (ROOT / os.environ.get("DIST", "build/dist")).resolve()
VERSION = version()
MACHINE = platform.machine()
(MODULE,) = re.findall(r"^module (\S+)$", (ROOT / "go.mod").read_text(), re.MULTILINE)
HOME = f"https://{MODULE}"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
UNITS = {
    f"/usr/lib/systemd/system/{name}" for name in ("stocached.service", "stocached.socket", "stocached-admin.socket")
}


def wheel(architecture: str) -> Path:
    return DIST / f"stocached-{VERSION}-py3-none-manylinux_2_17_{architecture}.whl"


def emulator(architecture: str) -> list[str]:
    """What runs a program of this architecture here."""
    return [] if architecture == MACHINE else [f"qemu-{architecture}-static", "-L", f"/usr/{architecture}-linux-gnu"]


def deb(architecture: native.Architecture) -> Path:
    return DIST / f"stocached_{VERSION}-1_{architecture.go}.deb"


def rpm(architecture: native.Architecture) -> Path:
    return DIST / f"stocached-{VERSION}-1.{architecture.name}.rpm"


def archive(architecture: native.Architecture) -> Path:
    return DIST / f"stocached-{VERSION}-linux-{architecture.name}.tar.gz"


def unpacked(package: Path, folder: Path) -> Path:
    with zipfile.ZipFile(package) as packed:
        packed.extractall(folder)
    return folder


def run(*command: str | Path, **options: object) -> str:
    """The output of a command that must not fail."""
    done = subprocess.run(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        **options,
    )  # type: ignore[call-overload]
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}"
    return str(done.stdout)


def run_readmes_programs(folder: Path, python: Path, path: str, needs: str | None = None, before: str = "") -> None:
    """Runs the programs of README in a folder, and compares what they print. path: the environment has only this PATH.
    needs: "torch" for those with torch. before: lines that run first."""
    examples = [e for e in docs.examples(ROOT / "README.md") if e.language == "python" and e.needs == needs]
    assert examples
    for example in examples:
        program = docs.program(example)
        if "tools/bucket.sh" in program:  # it needs the clone: make test-docs runs it
            continue
        if needs and sys.version_info >= (3, 14):  # README says so beside the loop
            program = 'if __name__ == "__main__":\n' + textwrap.indent(program, "    ")
        (folder / "program.py").write_text(before + program)
        said = run(python, "program.py", cwd=folder, env={"PATH": path, "HOME": str(folder), "LC_ALL": "C.UTF-8"})
        assert example.output is not None
        assert docs.matches(example.output, said), said


def lacking(reason: str) -> NoReturn:
    """Skips a test for what this machine lacks. With SKIPS=0, as where a release is published, the test fails."""
    if os.environ.get("SKIPS") == "0":
        pytest.fail(f"{reason}; SKIPS=0 forbids to skip this test")
    pytest.skip(reason)


def interpreter(version: str) -> str | None:
    """A Python of this version: on the PATH, of pyenv, of uv, which may download it, or of a newer Debian."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for candidate in (f"python{version}", *sorted(map(str, pyenv.glob(f"versions/{version}.*/bin/python")))):
        try:
            found = subprocess.run(
                [candidate, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"],
                capture_output=True,
                text=True,
            )
        except OSError:
            continue
        if found.stdout.strip() == version:
            return candidate
    try:
        return of_uv(version) or debian.python(version)
    except SystemExit as failed:  # no network, or an archive without this Debian
        print(failed, file=sys.stderr)
        return None


def of_uv(version: str) -> str | None:
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        return None
    try:
        subprocess.run([uv, "python", "install", version], capture_output=True, timeout=60)
    except subprocess.TimeoutExpired:  # uv tries again and again
        return None
    found = subprocess.run([uv, "python", "find", "--managed-python", version], capture_output=True, text=True)
    return found.stdout.strip() or None
