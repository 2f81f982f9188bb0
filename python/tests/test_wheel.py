"""What `pip install ./python` installs: the package with its C libraries, and the commands, or a script that says why
`stocached` is missing. tools/release has the tests of the wheels for other machines."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLEAN = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "STOCACHED_LIB_PATH")}
QUICK = {"CFLAGS": "-O0", "GO": "no-such-go"}  # compiles faster
# A JPEG file of 16 x 8 pixels.
PICTURE = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABALDA4MChAODQ4SERATGCgaGBYWGDEjJR0oOjM9PDkzODdASFxOQERXRTc4UG1RV19iZ2hnPk1xeXBk"
    "eFxlZ2P/wAALCAAIABABAREA/8QAFQABAQAAAAAAAAAAAAAAAAAABgf/xAAUEAEAAAAAAAAAAAAAAAAAAAAA/9oACAEBAAA/AJ+fP//Z"
)
LOAD = """
import numpy
import stocached
loader = stocached.Loader(numpy.arange(20).reshape(10, 2), 5, size="8MiB")
print(sum(batch.sum() for epoch in range(2) for batch in loader), stocached.__file__)
loader.close()
"""
# Prints what a picture decodes to, and the files of libjpeg that this loads.
DECODE = """
from stocached import image
pixels = image.decode("picture.jpg")
print(*pixels.shape, int(pixels.mean()), *{line.split()[-1] for line in open("/proc/self/maps") if "libjpeg" in line})
"""


# Its output is empty.
NO_COMPILER = '#!/bin/sh\nwhile [ $# -gt 0 ]; do [ "$1" = -o ] && : > "$2"; shift; done\n'


def written(program: Path, text: str) -> Path:
    program.write_text(text)
    program.chmod(0o755)
    return program


def built(folder: Path, **environment: str) -> zipfile.ZipFile:
    """Builds the wheel of the checkout, with libraries that are empty."""
    folder.mkdir(exist_ok=True)
    compiler = written(folder / "cc", NO_COMPILER)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        folder,
        ROOT / "python",
    ]
    subprocess.run(command, check=True, env=os.environ | {"CC": str(compiler)} | environment)
    (wheel,) = folder.glob("*.whl")
    return zipfile.ZipFile(wheel)


def script(wheel: zipfile.ZipFile, folder: Path) -> Path:
    (name,) = (name for name in wheel.namelist() if name.endswith(".data/scripts/stocached"))
    path = Path(wheel.extract(name, folder))
    path.chmod(0o755)
    return path


def call(*command: Any, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, env=os.environ | {"PATH": path}
    )


@pytest.fixture(scope="module")
def without_go(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return built(tmp_path_factory.mktemp("wheel"), GO="no-such-go")


def test_without_go_the_package_is_whole(without_go):
    names = without_go.namelist()
    assert {"stocached/libstocached.so", "stocached/libstocached_image.so"} <= set(names)
    assert sum(name.endswith(".data/scripts/stocached-decode") for name in names) == 1
    assert "stocached/py.typed" in names
    assert {f"stocached/{path.name}" for path in (ROOT / "python" / "src" / "stocached").glob("*.py")} <= set(names)


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """The Python of a virtual environment that has NumPy and what builds a package. It has no stocached."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "fresh"], check=True)
    (packages,) = (tmp_path / "fresh").glob("lib/python*/site-packages")
    tools = ("hatchling", "packaging", "pathspec", "pluggy", "tomli", "tomlkit", "trove_classifiers")
    for name in ("numpy", "numpy.libs", *tools):
        found = [Path(folder, name) for folder in sys.path if Path(folder, name).is_dir()]
        if found:
            (packages / name).symlink_to(found[0])
    (tmp_path / "picture.jpg").write_bytes(PICTURE)
    return tmp_path / "fresh/bin/python"


def install(python: Path, *arguments: str | Path, **environment: str) -> None:
    """Installs without a network."""
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-build-isolation"]
    subprocess.run(
        [*pip, "--no-deps", "--no-index", "--no-compile", *arguments],
        check=True,
        env={**CLEAN, **QUICK, **environment},
        cwd="/",
    )


def says(python: Path, code: str) -> subprocess.CompletedProcess[str]:
    folder = python.parents[2]
    return subprocess.run([python, "-c", code], cwd=folder, env=CLEAN, capture_output=True, text=True, check=False)


def source_package(folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder], cwd=ROOT / "python", check=True
    )
    (made,) = folder.glob("*.tar.gz")
    return made


def test_without_the_headers_of_libjpeg_the_package_decodes_no_jpeg_files(fresh, tmp_path):
    # Finds no header for a program that it reads from its standard input.
    without = written(tmp_path / "cc", '#!/bin/sh\n[ "$1" != -fsyntax-only ] && exec cc "$@"\n')
    install(fresh, source_package(tmp_path), CC=str(without))
    done = says(fresh, LOAD)
    assert done.stderr == ""
    assert done.stdout.startswith(f"380 {fresh.parents[1]}/")
    done = says(fresh, DECODE)
    line = done.stderr.splitlines()[-1]
    assert (
        "DecoderError: picture.jpg: this installation was built without libjpeg-turbo, libpng, libdeflate or libwebp; on Debian"
        in line
    )
    found = re.search(
        r"run: sudo apt-get install -y libjpeg-dev libpng-dev libdeflate-dev libwebp-dev && pip install (\S.*)\. Or: pip install pillow$",
        line,
    )
    assert found is not None, line
    install(fresh, *found[1].split())
    assert says(fresh, DECODE).stdout.startswith("8 16 3 62 /")


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({"url": "file:///c/python", "dir_info": {}}, "file:///c/python"),
        ({"url": "file:///c/python", "dir_info": {"editable": True}}, "-e file:///c/python"),
        ({"url": "https://h/c", "vcs_info": {"vcs": "git"}, "subdirectory": "p"}, "git+https://h/c#subdirectory=p"),
        ({"url": "file:///w/s.whl", "archive_info": {}}, "build/wheel/*.whl"),
        ({}, "--no-cache-dir --no-binary stocached stocached"),
    ],
)
def test_the_command_that_installs_again_takes_what_pip_noted(origin, command, tmp_path, monkeypatch):
    information = tmp_path / "stocached-0.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: stocached\nVersion: 0.0\n")
    if origin:
        (information / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("STOCACHED_LIB_PATH", raising=False)
    from stocached._native._image_library import install_again

    first = "make wheel && " if command.endswith("*.whl") else ""
    assert install_again() == f"{first}pip install --force-reinstall --no-deps {command}"


def test_without_go_the_command_says_what_to_do(without_go, tmp_path):
    command = script(without_go, tmp_path)
    done = call(command, "ls", path=os.pathsep.join([str(command.parent), "/usr/bin", "/bin"]))
    assert done.returncode == 127
    assert done.stdout == ""
    assert done.stderr == (
        "stocached: this Python package is without the command line: there was no Go when it was built; install Go 1.26 or later "
        "(https://go.dev/dl), then the package again\n"
    )


def test_without_go_a_command_from_elsewhere_is_run(without_go, tmp_path):
    command = script(without_go, tmp_path)
    other = tmp_path / "other"  # an environment with the same script: the two must not call each other for ever
    other.mkdir()
    shutil.copy(command, other / "stocached")
    real = tmp_path / "real"
    real.mkdir()
    shutil.copy(shutil.which("echo") or "/bin/echo", real / "stocached")
    done = call(
        command, "a b", "c", path=os.pathsep.join([str(command.parent), str(other), str(real), "/usr/bin", "/bin"])
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "a b c\n", "")
    assert (
        call(command, "ls", path=os.pathsep.join([str(other), str(command.parent), "/usr/bin", "/bin"])).returncode
        == 127
    )


def test_go_that_fails_is_told(tmp_path):
    go = written(tmp_path / "go", '#!/bin/sh\necho "go: it\'s too old" >&2\nexit 1\n')
    command = script(built(tmp_path / "wheel", GO=str(go)), tmp_path)
    done = call(command, path="/usr/bin:/bin")
    assert done.returncode == 127
    assert done.stderr.endswith("Go could not compile it; mend this and install the package again: go: it's too old\n")
