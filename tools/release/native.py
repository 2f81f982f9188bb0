"""Compiles the libraries and programs for one architecture, for glibc 2.17 and later.

zig, a package of PyPI, is the C compiler: it has the headers and symbols of every glibc. libjpeg-turbo comes from
Debian's source package, whose files have the hashes below. So pictures decode to the bits of Debian's library."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path

from . import debian
from .commands import ROOT, run

JPEG_VERSION = "1:2.1.5-2"
JPEG_FILES = {
    "libjpeg-turbo_2.1.5-2.dsc": "d718ead0dfbcbc8523665c02a7f7152e31039ded641d022868722623bb3b486d",
    "libjpeg-turbo_2.1.5.orig.tar.gz": "254f3642b04e309fee775123133c6464181addc150499561020312ec61c1bf7c",
    "libjpeg-turbo_2.1.5-2.debian.tar.xz": "cdb2433c2f7101345c1ffa14efb943787c675b86354691a32490845fe4bc9237",
}
# Where the files above lie after the first build. A machine without Debian's packages needs them there.
JPEG_SOURCE = ROOT / "build" / "libjpeg-turbo"


@dataclass(frozen=True)
class Architecture:
    name: str  # in the names of wheels and archives
    go: str  # GOARCH, which Debian uses too

    @property
    def target(self) -> str:
        return f"{self.name}-linux-gnu.2.17"


ARCHITECTURES = {name: Architecture(name, go) for name, go in (("x86_64", "amd64"), ("aarch64", "arm64"))}


def timestamp() -> str:
    """The time of all files, of which $SOURCE_DATE_EPOCH has the seconds."""
    time = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), timezone.utc)
    return time.isoformat().replace("+00:00", "Z")


def compilers(architecture: Architecture, folder: Path) -> tuple[Path, Path]:
    """Scripts that compile C and make static libraries, for programs that want one word for each."""
    spec = find_spec("ziglang")
    if spec is None or spec.origin is None:
        sys.exit("stocached: zig is missing: tools/setup.sh dist installs it")
    zig = Path(spec.origin).parent / "zig"
    folder.mkdir(parents=True, exist_ok=True)
    cc, ar = folder / "cc", folder / "ar"
    cc.write_text(f'#!/bin/sh\nexec "{zig}" cc -target {architecture.target} "$@"\n')
    ar.write_text(f'#!/bin/sh\nexec "{zig}" ar "$@"\n')
    cc.chmod(0o755)
    ar.chmod(0o755)
    return cc, ar


def build(architecture: Architecture, work: Path) -> Path:
    """The folder with the libraries and programs."""
    folder = work / architecture.name
    shutil.rmtree(folder, ignore_errors=True)
    jpeg = build_jpeg(architecture, work)
    settings = make_settings(architecture, folder, jpeg)
    names = ("libstocached.so", "libstocached.a")
    run("make", "-C", "cclient", *settings, *(folder / name for name in names))
    names = ("libstocached_image.so", "stocached-decode")
    run("make", "-C", "cimage", "CODECS=jpeg", *settings, *(folder / name for name in names))
    # `go env -w` of the machine may have set others. revision() says the commit, because what -buildvcs records has the
    # tags of the clone too. The others are those of the Makefile, so what Go has compiled for tests fits.
    of_go = "-trimpath -gcflags=all=-dwarf=false -buildvcs=false"
    flags = f"-s -w -X github.com/stocached/stocached/internal/cli.commit={revision(ROOT)}"
    run(
        os.environ.get("GO", "go"), "build", f"-ldflags={flags}", "-o", folder / "stocached", "./cmd/stocached",
        CGO_ENABLED="0", GOOS="linux", GOARCH=architecture.go, GOAMD64="v1", GOARM64="v8.0", GOFLAGS=of_go,
    )  # fmt: skip
    return folder


def revision(folder: Path) -> str:
    """The commit of a clone, with a + if a file differs from it or is not in it; "" if the folder is no clone."""
    top = git(folder, "rev-parse", "--show-toplevel")
    if top is None or Path(top.strip()) != folder.resolve():
        return ""
    commit = git(folder, "rev-parse", "HEAD") or ""
    return commit.strip() + ("+" if git(folder, "status", "--porcelain") else "")


def git(folder: Path, *arguments: str) -> str | None:
    """What git says; None if it fails, or is not there."""
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def make_settings(architecture: Architecture, folder: Path, jpeg: Path) -> list[str]:
    """The variables of our makefiles. No object has the name of a folder of this machine."""
    cc, ar = compilers(architecture, folder / "tools")
    flags = f"-O3 -g0 {reproducible(folder)} -Wno-unknown-warning-option -I{jpeg}/include -L{jpeg}/lib"
    return [f"CC={cc}", f"AR={ar}", f"BUILD={folder}", f"CFLAGS={flags}", "LDFLAGS=-s"]


def reproducible(*folders: Path) -> str:
    return " ".join(f"-ffile-prefix-map={folder}=." for folder in (ROOT, *folders))


def build_jpeg(architecture: Architecture, work: Path) -> Path:
    """libjpeg-turbo as a static library, in a folder with include/ and lib/."""
    prefix = work / f"jpeg-{architecture.name}"
    if (prefix / "lib/libjpeg.a").is_file():
        return prefix
    source = jpeg_source(work)
    building = work / f"jpeg-{architecture.name}-build"
    shutil.rmtree(building, ignore_errors=True)
    cc, _ = compilers(architecture, building / "tools")
    cmake = Path(sys.executable).parent / "cmake"
    run(
        cmake, "-S", source, "-B", building,
        "-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={architecture.name}",
        f"-DCMAKE_C_COMPILER={cc}", "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_C_FLAGS_RELEASE=-O3 -g0 -DNDEBUG {reproducible(source, building)}",
        "-DCMAKE_POSITION_INDEPENDENT_CODE=ON", "-DENABLE_SHARED=OFF", "-DWITH_TURBOJPEG=OFF", "-DREQUIRE_SIMD=ON",
        "-DBUILD=0",  # the date of the build otherwise
    )  # fmt: skip
    run("make", "-C", building, f"-j{os.cpu_count()}", "jpeg-static")
    for name, target in (("include", ("jpeglib.h", "jmorecfg.h", "jerror.h", "jconfig.h")), ("lib", ("libjpeg.a",))):
        (prefix / name).mkdir(parents=True, exist_ok=True)
        for file in target:
            shutil.copy(building / file if (building / file).is_file() else source / file, prefix / name / file)
    shutil.rmtree(building)
    return prefix


def jpeg_source(work: Path) -> Path:
    """The sources with Debian's patches."""
    fetch_jpeg()
    source = work / "libjpeg-turbo"
    if not source.is_dir():
        run("dpkg-source", "--no-check", "-x", JPEG_SOURCE / "libjpeg-turbo_2.1.5-2.dsc", source)
    return source


def fetch_jpeg() -> None:
    """Gets the source package through apt, by settings of its own, and checks it."""
    JPEG_SOURCE.mkdir(parents=True, exist_ok=True)
    said = ""
    if missing_jpeg() and shutil.which("apt-get"):
        lists = {
            name: re.sub(r"^(Types: )?deb(?=\s)", r"\1deb-src", text, flags=re.MULTILINE)
            for name, text in debian.lists_of_the_machine().items()
        }
        work = JPEG_SOURCE / "apt"
        try:
            command = debian.apt(work, lists)
            run(*command, "source", "--download-only", f"libjpeg-turbo={JPEG_VERSION}", cwd=JPEG_SOURCE)
        except SystemExit as error:  # of another version of Debian, or of Ubuntu
            said = f"\n{error}"
        shutil.rmtree(work)
    if missing := missing_jpeg():
        sys.exit(
            f"stocached: {', '.join(missing)} of Debian's source package libjpeg-turbo {JPEG_VERSION} must lie in "
            f"{JPEG_SOURCE}: put them there, or run tools/get_libjpeg_turbo.sh, which needs docker{said}"
        )
    for name, expected in JPEG_FILES.items():
        file = JPEG_SOURCE / name
        found = hashlib.sha256(file.read_bytes()).hexdigest()
        if found != expected:
            sys.exit(f"stocached: {file} has the SHA-256 {found}, not {expected}; remove it and try again")


def missing_jpeg() -> list[str]:
    return [name for name in JPEG_FILES if not (JPEG_SOURCE / name).is_file()]
