"""Compiles the libraries and programs for one architecture, for glibc 2.17 and later.

zig, a package of PyPI, is the C compiler: it has the headers and symbols of every glibc. The libraries for pictures come
from Debian's source packages, whose files have the hashes below. So pictures decode to the bits of Debian's libraries."""

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

# Where files of the packages below lie after the first build. A machine without Debian's packages needs them there.
SOURCES = ROOT / "build" / "sources"


@dataclass(frozen=True)
class Package:
    """A source package of Debian 12, and what is built of it."""

    name: str
    version: str
    files: dict[str, str]  # the SHA-256 of each
    licences: tuple[str, ...]  # by their names in SPDX
    target: str
    headers: tuple[str, ...]
    libraries: tuple[str, ...]
    options: tuple[str, ...] = ()
    cmake: bool = True  # False: it has a makefile alone

    @property
    def title(self) -> str:
        return f"{self.name}={self.version}"


# Each may need those before it. All choose vector instructions of a processor at run time.
PACKAGES = (
    Package(
        "libjpeg-turbo", "1:2.1.5-2",
        {
            "libjpeg-turbo_2.1.5-2.dsc": "d718ead0dfbcbc8523665c02a7f7152e31039ded641d022868722623bb3b486d",
            "libjpeg-turbo_2.1.5.orig.tar.gz": "254f3642b04e309fee775123133c6464181addc150499561020312ec61c1bf7c",
            "libjpeg-turbo_2.1.5-2.debian.tar.xz": "cdb2433c2f7101345c1ffa14efb943787c675b86354691a32490845fe4bc9237",
        },
        ("IJG", "BSD-3-Clause", "Zlib"), "jpeg-static", ("jpeglib.h", "jmorecfg.h", "jerror.h", "jconfig.h"), ("libjpeg.a",),
        # -DBUILD is the date of the build otherwise.
        ("-DENABLE_SHARED=OFF", "-DWITH_TURBOJPEG=OFF", "-DREQUIRE_SIMD=ON", "-DBUILD=0"),
    ),
    Package(
        "zlib", "1:1.2.13.dfsg-1",
        {
            "zlib_1.2.13.dfsg-1.dsc": "3fa1e6b2fc525062aa88207dda52fed8e045373c809d362fe8a2bfbf7cf515a8",
            "zlib_1.2.13.dfsg.orig.tar.bz2": "71feb7947e3c00ef125f83b79a4e529bde31171e5babe48b391f06758d1ab0a1",
            "zlib_1.2.13.dfsg-1.debian.tar.xz": "f66cf3d4f2d7defcd4d1fd1fb0a11ee39f1e01b42ec7d059c9dc5c1695133c44",
        },
        ("Zlib",), "libz.a", ("zlib.h", "zconf.h"), ("libz.a",),
        # Debian left out files that CMake asks for.
        ("-f", "Makefile.in", "ZINC=-DHAVE_UNISTD_H -DHAVE_HIDDEN"), cmake=False,
    ),
    Package(
        "libpng1.6", "1.6.39-2+deb12u5",
        {
            "libpng1.6_1.6.39-2+deb12u5.dsc": "7b86211030a34deb6b0a2cd7e1d9db0fe92443fd30cab537fb89b1e7f7c9f188",
            "libpng1.6_1.6.39.orig.tar.gz": "a00e9d2f2f664186e4202db9299397f851aea71b36a35e74910b8820e380d441",
            "libpng1.6_1.6.39-2+deb12u5.debian.tar.xz": "ab14906eda9fddf14cbb1e589b9ba7439c22e233dc3c5e3cf9356c9625565a82",
        },
        ("libpng-2.0",), "png_static", ("png.h", "pngconf.h", "pnglibconf.h"), ("libpng16.a",),
        ("-DPNG_SHARED=OFF", "-DPNG_TESTS=OFF", "-DPNG_EXECUTABLES=OFF"),
    ),
    Package(
        "libdeflate", "1.14-1",
        {
            "libdeflate_1.14-1.dsc": "1f82791c5ac5623ed110e09cc991471deebfe4c419414392d1242e122c6f4c19",
            "libdeflate_1.14.orig.tar.gz": "89e7df898c37c3427b0f39aadcf733731321a278771d20fc553f92da8d4808ac",
            "libdeflate_1.14-1.debian.tar.xz": "4794c379cc4e77eaeb283620bd80a7ce57b858af508f80ba6d5efbc4bcb10434",
        },
        ("MIT",), "libdeflate.a", ("libdeflate.h",), ("libdeflate.a",), cmake=False,
    ),
    Package(
        "libwebp", "1.2.4-0.2+deb12u1",
        {
            "libwebp_1.2.4-0.2+deb12u1.dsc": "d9ed0b59e2010f255c28d0869fd15b31f9b08aed757bfc91862d43aa9ec1aa99",
            "libwebp_1.2.4.orig.tar.gz": "7bf5a8a28cc69bcfa8cb214f2c3095703c6b73ac5fba4d5480c205331d9494df",
            "libwebp_1.2.4-0.2+deb12u1.debian.tar.xz": "69cdba4dfe2e1b34d55fa80c1b29c31cacd40dd183812d6bcca7e508a2f7afcd",
        },
        ("BSD-3-Clause",), "webpdemux",
        tuple(f"src/webp/{name}.h" for name in ("decode", "demux", "mux_types", "types")), ("libwebp.a", "libwebpdemux.a"),
        tuple(
            f"-DWEBP_BUILD_{part}=OFF"
            for part in "ANIM_UTILS CWEBP DWEBP GIF2WEBP IMG2WEBP VWEBP WEBPINFO LIBWEBPMUX WEBPMUX EXTRAS".split()
        ),
    ),
)  # fmt: skip


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
    """The static libraries for pictures, in a folder with include/ and lib/."""
    prefix = work / f"libraries-{architecture.name}"
    fetch()
    for package in PACKAGES:
        if not all((prefix / "lib" / name).is_file() for name in package.libraries):
            build_package(package, architecture, work, prefix)
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
        options = ()
    else:
        options = (*options, f"CC={cc}", f"AR={ar}", f"CFLAGS={flags} -fPIC")
    run("make", "-C", making, f"-j{os.cpu_count()}", *options, package.target)
    for folder, files in (("include", package.headers), ("lib", package.libraries)):
        for file in files:
            to = prefix / folder / file.removeprefix("src/")
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
        except SystemExit as error:  # of another version of Debian, or of Ubuntu
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
