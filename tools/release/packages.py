"""Puts what is compiled into packages. Each archive has its files in order, with the owner root and one time."""

from __future__ import annotations

import gzip
import json
import os
import platform
import re
import shutil
import sys
import tarfile
from pathlib import Path

from version import version

from . import native
from .commands import ROOT, TOOLS, run
from .native import Architecture

DESCRIPTION = "One cache of training samples in shared memory for all processes of a machine"
HOME = "https://github.com/stocached/stocached"
# postinstall.sh makes the user by useradd where systemd is not installed.
NEEDS = {"deb": ["libc6 (>= 2.17)", "passwd"], "rpm": ["glibc >= 2.17", "shadow-utils"]}
UNITS = ("stocached.service", "stocached.socket", "stocached-admin.socket")
# Where the system looks for libraries.
LIBRARIES = {"deb": "lib/{name}-linux-gnu", "rpm": "lib64"}


def wheel(architecture: Architecture, built: Path, folder: Path) -> None:
    hatch("wheel", folder, STOCACHED_BUILT=str(built), STOCACHED_PLATFORM=f"manylinux_2_17_{architecture.name}")


def source(folder: Path) -> None:
    hatch("sdist", folder)


def hatch(target: str, folder: Path, **variables: str) -> None:
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder, cwd=ROOT / "python", **variables)


def install(architecture: Architecture, built: Path, work: Path, stage: Path, prefix: str, libraries: str) -> Path:
    """Runs `make install` into the folder. Returns the prefix in it."""
    shutil.rmtree(stage, ignore_errors=True)
    settings = native.make_settings(architecture, built, work / f"libraries-{architecture.name}")
    pages = work / platform.machine() / "stocached"
    run(
        "make", "install", *settings, f"PROGRAM={built}/stocached", f"RUNS={pages}",
        f"DESTDIR={stage}", f"PREFIX={prefix}", f"LIBDIR={libraries}",
    )  # fmt: skip
    top = stage / prefix.lstrip("/")
    documents = top / "share/doc/stocached"
    documents.mkdir(parents=True)
    for name in ("LICENSE", "python/THIRD-PARTY.md", "config.example.yaml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, documents)
    (documents / "licenses").mkdir()
    for file in (*(ROOT / "python/licenses").glob("*.txt"), built / "go-modules.txt"):
        shutil.copy(file, documents / "licenses")
    return top


def archive(architecture: Architecture, built: Path, work: Path, folder: Path) -> None:
    """To be unpacked into /usr/local, without its first folder."""
    name = f"stocached-{version()}-linux-{architecture.name}"
    top = install(architecture, built, work, work / f"archive-{architecture.name}", "/usr/local", "lib")
    time = int(os.environ["SOURCE_DATE_EPOCH"])
    with (
        open(folder / f"{name}.tar.gz", "wb") as file,
        gzip.GzipFile("", "wb", 9, file, time) as packed,
        tarfile.open(mode="w", fileobj=packed, format=tarfile.GNU_FORMAT) as tar,
    ):
        for path in sorted(top.rglob("*")):
            member = tar.gettarinfo(path, f"{name}/{path.relative_to(top)}")
            member.uid = member.gid = 0
            member.uname = member.gname = "root"
            member.mtime = time
            with open(path, "rb") if member.isreg() else open(os.devnull, "rb") as content:
                tar.addfile(member, content)


def system(architecture: Architecture, built: Path, work: Path, folder: Path) -> None:
    """deb and rpm: the same files, units of a system service, and its user."""
    for kind, libraries in LIBRARIES.items():
        stage = work / f"{kind}-{architecture.name}"
        place = libraries.format(name=architecture.name)
        top = install(architecture, built, work, stage, "/usr", place)
        units = top / "lib/systemd/system"
        units.mkdir(parents=True)
        for name in UNITS:
            text = (ROOT / "deploy" / name).read_text().replace("/usr/local/bin", "/usr/bin")
            text = re.sub(r"^#((?:Socket)?User)=trainer$", r"\1=stocached", text, flags=re.MULTILINE)
            (units / name).write_text(text.replace("WantedBy=default.target", "WantedBy=multi-user.target"))
        (top / "lib/sysusers.d").mkdir()
        shutil.copy(ROOT / "deploy/packages/sysusers.conf", top / "lib/sysusers.d/stocached.conf")
        settings = {
            "name": "stocached",
            "arch": architecture.go,
            "platform": "linux",
            "version": version(),
            "release": "1",
            "section": "utils",
            # Where others have an address for letters, the place to write to.
            "maintainer": f"The maintainers of stocached <{HOME}/issues>",
            "description": DESCRIPTION,
            "homepage": HOME,
            "license": "Apache-2.0",
            "depends": NEEDS[kind],
            "mtime": native.timestamp(),
            "contents": [
                {"src": f"{stage}/usr", "dst": "/usr", "type": "tree"},
                {"dst": "/etc/stocached", "type": "dir", "file_info": {"mode": 0o755}},
            ],
            "scripts": {
                name: str(ROOT / "deploy/packages" / f"{name}.sh")
                for name in ("postinstall", "preremove", "postremove")
            },
            "rpm": {"buildhost": "localhost", "group": "System Environment/Daemons"},
        }
        file = work / f"nfpm-{kind}-{architecture.name}.yaml"
        file.write_text(json.dumps(settings, indent=2))  # JSON is YAML
        run(TOOLS / "nfpm", "package", "-f", file, "-p", kind, "-t", folder)
