"""Compiles the libraries and programs for one architecture, for glibc 2.17 and later.

zig, a package of PyPI, is the C compiler: it has the headers and symbols of every glibc. The libraries for pictures come
from Debian's source packages, whose files have the hashes in sources.json. So pictures decode to the bits of Debian's libraries."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version as package_version
from importlib.util import find_spec
from pathlib import Path

from . import debian
from .commands import ROOT, run

# Where files of the packages below lie after the first build. A machine without Debian's packages needs them there.
SOURCES = ROOT / "build" / "sources"


@dataclass(frozen=True)
class Package:
    """A source package of Debian 12, and what is built of it."""

    name: str
    version: str
    files: dict[str, str]  # the SHA-256 of each
    licences: list[str]  # by their names in SPDX
    target: str
    headers: list[str]
    libraries: list[str]
    options: list[str]
    cmake: bool  # False: it has a makefile alone

    @property
    def title(self) -> str:
        return f"{self.name}={self.version}"


# Each may need those before it. All choose vector instructions of a processor at run time. libjpeg-turbo's -DBUILD is the
# date of the build otherwise. Debian left out files of zlib that CMake asks for.
PACKAGES = tuple(Package(**row) for row in json.loads(Path(__file__).with_name("sources.json").read_text()))


@dataclass(frozen=True)
class Architecture:
    name: str  # in the names of wheels and archives
    go: str  # GOARCH, which Debian uses too
    cc: str = ""  # what takes the place of zig

    @property
    def target(self) -> str:
        return f"{self.name}-linux-gnu.2.17"


ARCHITECTURES = {name: Architecture(name, go) for name, go in (("x86_64", "amd64"), ("aarch64", "arm64"))}
SANITIZED = Architecture(os.uname().machine, "", 'cc "$@" -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined')


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
    cc = architecture.cc or f'"{zig}" cc -target {architecture.target} "$@"'
    for name, command in ("cc", cc), ("ar", f'"{zig}" ar "$@"'):
        (folder / name).write_text(f"#!/bin/sh\nexec {command}\n")
        (folder / name).chmod(0o755)
    return folder / "cc", folder / "ar"


def build(architecture: Architecture, work: Path) -> Path:
    """The folder with the libraries and programs."""
    folder = work / architecture.name
    shutil.rmtree(folder, ignore_errors=True)
    settings = make_settings(architecture, folder, build_libraries(architecture, work))
    names = ("libstocached.so", "libstocached.a")
    run("make", "-C", "cclient", *settings, *(folder / name for name in names))
    names = ("libstocached_image.so", "stocached-decode")
    run("make", "-C", "cimage", *settings, *(folder / name for name in names))
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


def make_settings(architecture: Architecture, folder: Path, libraries: Path) -> list[str]:
    """The variables of our makefiles. No object has the name of a folder of this machine."""
    cc, ar = compilers(architecture, folder / "tools")
    flags = f"-O3 -g0 {reproducible(folder)} -Wno-unknown-warning-option -isystem {libraries}/include -L{libraries}/lib"
    return [f"CC={cc}", f"AR={ar}", f"BUILD={folder}", f"CFLAGS={flags}", "LDFLAGS=-s"]


def reproducible(*folders: Path) -> str:
    return " ".join(f"-ffile-prefix-map={folder}=." for folder in (ROOT, *folders))


def build_libraries(architecture: Architecture, work: Path) -> Path:
    """The static libraries for pictures, in a folder with include/ and lib/. As with Go's, all clones on a machine share what
    one has compiled of these sources, with this file's options and this zig: no object has the name of a folder."""
    prefix = work / f"libraries-{architecture.name}"
    made_of = f"{Path(__file__).read_text()} {PACKAGES} {package_version('ziglang')} {architecture}"
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    shared = caches / "stocached-libraries" / hashlib.sha256(made_of.encode()).hexdigest()
    if shared.is_dir():
        shutil.copytree(shared, prefix, dirs_exist_ok=True)
    if lacking := [one for one in PACKAGES if not all((prefix / "lib" / name).is_file() for name in one.libraries)]:
        fetch()
        for package in lacking:
            build_package(package, architecture, work, prefix)
        if len(lacking) == len(PACKAGES):  # none is of an earlier commit
            whole = shutil.copytree(prefix, shared.with_name(f"{shared.name}.{os.getpid()}"))
            try:
                whole.rename(shared)
            except OSError:  # another clone was faster
                shutil.rmtree(whole)
    return prefix


def build_package(package: Package, architecture: Architecture, work: Path, prefix: Path) -> None:
    source, building = work / package.name, work / f"{package.name}-{architecture.name}"
    for folder in (source, building):
        shutil.rmtree(folder, ignore_errors=True)
    (description,) = (name for name in package.files if name.endswith(".dsc"))
    run("dpkg-source", "--no-check", "-x", SOURCES / description, source)  # with Debian's patches
    cc, ar = compilers(architecture, building / "tools")
    flags = f"-O3 -g0 -DNDEBUG {reproducible(source, building)}"
    making = building if package.cmake else source
    options = package.options
    if package.cmake:
        run(
            Path(sys.executable).parent / "cmake", "-S", source, "-B", building,
            "-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={architecture.name}",
            f"-DCMAKE_C_COMPILER={cc}", "-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_C_FLAGS_RELEASE={flags}",
            "-DCMAKE_POSITION_INDEPENDENT_CODE=ON", f"-DCMAKE_FIND_ROOT_PATH={prefix}", *options,
        )  # fmt: skip
        options = []
    else:
        options = [*options, f"CC={cc}", f"AR={ar}", f"CFLAGS={flags} -fPIC"]
    run("make", "-C", making, f"-j{os.cpu_count()}", *options, package.target)
    for kind, files in (("include", package.headers), ("lib", package.libraries)):
        for file in files:
            to = prefix / kind / file.removeprefix("src/")
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(making / file if (making / file).is_file() else source / file, to)
    for folder in (source, building):
        shutil.rmtree(folder)


def fetch() -> None:
    """Gets the source packages through apt, by settings of its own, and checks them."""
    SOURCES.mkdir(parents=True, exist_ok=True)
    said = ""
    if (lacking := [package.title for package in PACKAGES if missing(package)]) and shutil.which("apt-get"):
        lists = {
            name: re.sub(r"^(Types: )?deb(?=\s)", r"\1deb-src", text, flags=re.MULTILINE)
            for name, text in debian.lists_of_the_machine().items()
        }
        work = SOURCES / "apt"
        try:
            run(*debian.apt(work, lists), "source", "--download-only", *lacking, cwd=SOURCES)
        except SystemExit as error:  # another version of Debian, or Ubuntu
            said = f"\n{error}"
        shutil.rmtree(work)
    for package in PACKAGES:
        if absent := missing(package):
            sys.exit(
                f"stocached: {', '.join(absent)} of Debian's source package {package.name} {package.version} must lie "
                f"in {SOURCES}: put them there, or run tools/get_sources.sh, which needs docker{said}"
            )
        for name, expected in package.files.items():
            found = hashlib.sha256((SOURCES / name).read_bytes()).hexdigest()
            if found != expected:
                sys.exit(
                    f"stocached: {SOURCES / name} has the SHA-256 {found}, not {expected}; remove it and try again"
                )


def missing(package: Package) -> list[str]:
    return [name for name in package.files if not (SOURCES / name).is_file()]
