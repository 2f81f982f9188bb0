"""Tests of the wheel for this machine: what is in it, and what it does where nothing else is."""

from __future__ import annotations

import base64
import ctypes
import importlib.util
import io
import os
import re
import runpy
import sys
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

import docs
from release.commands import ROOT
from release.made import DIST, HOME, MACHINE, PYTHONS, VERSION, interpreter, lacking, run, run_readmes_programs, wheel

WHEELS = sorted(DIST.glob("*.whl"))
LIBRARIES = ("stocached/libstocached.so", "stocached/libstocached_image.so")
PAGE_OF_PYPI, GUIDE = ((ROOT / name).read_text() for name in ("python/README.md", "docs/guides/packages.md"))
SYSTEM = {"libc.so.6", "libm.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
DECODE = """
import base64, sys
from stocached import image
for pixels in (image.decode(base64.b64decode(text)) for text in sys.argv[1:]):
    print(*pixels.shape, int(pixels.mean()), any(f"lib{name}" in open("/proc/self/maps").read() for name in ("jpeg", "png", "webp")))
"""


def check_metadata(metadata: Message) -> None:
    """PyPI and tools of some age know the version of the metadata, and a stranger finds us from there."""
    assert metadata["Metadata-Version"] == "2.4"
    assert metadata["Author"] == "The maintainers of stocached"
    urls = dict(url.split(", ") for url in metadata.get_all("Project-URL", []))
    assert urls["Homepage"] == HOME
    assert set(urls) == {"Homepage", "Documentation", "Changelog", "Issues"}
    assert all(url.startswith(HOME) for url in urls.values())
    classifiers = metadata.get_all("Classifier", [])
    assert [c.rpartition(" ")[2] for c in classifiers if re.fullmatch(r".*Python :: 3\.\d+", c)] == list(PYTHONS)


@pytest.mark.parametrize("package", WHEELS, ids=lambda path: path.name)
def test_wheel_says_its_version_and_has_notices(package: Path) -> None:
    packed = zipfile.ZipFile(package)
    information = f"stocached-{VERSION}.dist-info"
    metadata = message_from_bytes(packed.read(f"{information}/METADATA"))
    assert metadata["Version"] == VERSION
    check_metadata(metadata)
    names = packed.namelist()
    for name in (
        "licenses/LICENSE",
        "licenses/THIRD-PARTY.md",
        *(f"licenses/licenses/{file.name}" for file in (ROOT / "python/licenses").glob("*.txt")),
        "licenses/licenses/go-modules.txt",
        "sboms/stocached.cdx.json",
    ):
        assert names.count(f"{information}/{name}") == 1, name
    licences = packed.read(f"{information}/licenses/licenses/go-modules.txt").decode()
    assert "github.com/spf13/cobra" in licences
    assert "Redistribution and use in source and binary forms" in licences


@pytest.mark.parametrize("package", WHEELS, ids=lambda path: path.name)
def test_pypi_takes_the_wheel(package: Path) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", package)


@pytest.mark.parametrize("package", WHEELS, ids=lambda path: path.name)
def test_libraries_show_their_own_functions_only_and_need_only_the_c_library(package: Path) -> None:
    packed = zipfile.ZipFile(package)
    for name, first in zip(LIBRARIES, ("stoc_", "stoc_image_"), strict=True):
        elf = ELFFile(io.BytesIO(packed.read(name)))
        (table,) = (s for s in elf.iter_sections() if isinstance(s, SymbolTableSection) and s.name == ".dynsym")
        shown = {
            s.name for s in table.iter_symbols() if s["st_shndx"] != "SHN_UNDEF" and s["st_info"]["bind"] != "STB_LOCAL"
        }
        functions = {symbol for symbol in shown if not symbol.startswith("STOCACHED")}
        assert len(functions) > 10, name
        assert all(symbol.startswith(first) for symbol in functions), sorted(functions)
        (dynamic,) = (section for section in elf.iter_sections() if isinstance(section, DynamicSection))
        assert {str(vars(tag)["needed"]) for tag in dynamic.iter_tags("DT_NEEDED")} <= SYSTEM, name


@pytest.mark.skipif(MACHINE != "x86_64", reason="only for x86-64 are there loops with vector instructions")
def test_the_wheel_uses_the_vector_instructions_of_the_processor(tmp_path: Path) -> None:
    """The compiler of releases once made a library that never did."""
    image = ctypes.CDLL(zipfile.ZipFile(wheel(MACHINE)).extract(LIBRARIES[1], tmp_path))
    image.stoc_image_worker_new.restype = ctypes.c_void_p
    has = set(Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split())
    best = 0 if not {"avx2", "fma"} <= has else 2 if {"avx512f", "avx512bw", "avx512vl", "avx512_vnni"} <= has else 1
    assert image.stoc_image_vectors(ctypes.c_void_p(image.stoc_image_worker_new())) == best


@pytest.mark.parametrize("package", WHEELS, ids=lambda path: path.name)
def test_auditwheel_finds_only_symbols_of_glibc_2_17(package: Path) -> None:
    said = run(sys.executable, "-m", "auditwheel", "show", package)
    tag = re.search(r"manylinux_2_\d+_\w+", said.split("following platform tag", 1)[-1])
    architecture = package.stem.rsplit("2_17_", 1)[1]
    assert tag is not None, said
    assert tag[0] in (
        f"manylinux_2_17_{architecture}",
        f"manylinux_2_12_{architecture}",
        f"manylinux_2_5_{architecture}",
    ), said


# `make dist` tests all versions, and with one architecture the oldest and the newest.
@pytest.mark.parametrize("version", PYTHONS if len(WHEELS) > 1 else (PYTHONS[0], PYTHONS[-1]))
def test_first_use_in_an_environment_without_a_compiler(version: str, tmp_path: Path) -> None:
    python = interpreter(version)
    if python is None:
        lacking(f"no Python {version} on this machine, and none could be downloaded")
    environment = tmp_path / "environment"
    run(python, "-m", "venv", "--without-pip", environment)
    commands = environment / "bin"
    variables = {"PATH": str(commands), "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}
    install_wheel(commands / "python")
    run_readmes_programs(tmp_path, commands / "python", str(commands))
    files = [(ROOT / "source/decode/testdata" / name).read_bytes() for name in ("grey.png", "lossy.webp")]
    pictures = [
        base64.b64encode(file) for file in (runpy.run_path(str(ROOT / "python/tests/test_wheel.py"))["PICTURE"], *files)
    ]
    said = run(commands / "python", "-c", DECODE, *(text.decode() for text in pictures), env=variables, cwd=tmp_path)
    assert said == "8 16 3 62 False\n94 125 3 115 False\n94 125 3 117 False\n", "the decoders are inside the library"
    name = f"wheel-{os.getpid()}-{version}"
    try:
        run(commands / "stocached", "create", name, "--samples", "10", "--sample-bytes", "1000", env=variables)
        assert f'"name": "{name}"' in run(commands / "stocached", "stats", name, "--json", env=variables)
    finally:
        run(commands / "stocached", "rm", name, env=variables)
    assert f"version    {VERSION}\n" in run(commands / "stocached", "version", env=variables)
    assert "libjpeg-turbo 2.1.5" in run(commands / "stocached-decode", "--version", env=variables)


def test_readmes_loop_with_torch_runs_with_the_wheel(tmp_path: Path) -> None:
    """With the torch of the virtual environment, which `make dist` installs: its folders come after the wheel's."""
    if importlib.util.find_spec("torch") is None:
        lacking("no torch in the virtual environment: make setup-torch installs it")
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin/python"
    install_wheel(python)
    ours = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    others = [folder for folder in sys.path if folder.endswith(("site-packages", "dist-packages"))]
    (ours / "torch.pth").write_text("\n".join(others))
    where = f"import stocached\nassert stocached.__file__.startswith({str(ours)!r}), stocached.__file__\n"
    run_readmes_programs(tmp_path, python, "", needs="torch", before=where)


@pytest.mark.parametrize("document", ["python/README.md", "docs/guides/packages.md"])
def test_the_lines_of_a_document_install_the_wheel(document: str, tmp_path: Path) -> None:
    """pip takes the wheel of $DIST for the one of the index. torch (several GB) is left out."""
    name = wheel("x86_64").name
    block, *_ = docs.blocks_by("tools/release/checks_wheel.py", document)
    if name in block and MACHINE != "x86_64":
        pytest.skip("the line has the name of the wheel for x86-64")
    assert block.startswith((f"pip install {name}\n", "pip install stocached "))
    (tmp_path / name).symlink_to(wheel(MACHINE))
    said = install(tmp_path, block, {"PIP_FIND_LINKS": str(DIST), "PIP_PREFER_BINARY": "1"})
    assert f"version    {VERSION}\n" in said
    assert said.splitlines()[-1] == VERSION


def test_the_lines_of_readme_install_a_clone(tmp_path: Path) -> None:
    """Until the first release, this is how a stranger begins. Where Go is, the command comes with it. make test-docs runs
    README's programs with the package of make test, which is installed in the same way."""
    (block,) = docs.blocks_by("tools/release/checks_wheel.py", "README.md")
    (line,) = set(re.findall(r"`(pip install \./\w+)`", PAGE_OF_PYPI + GUIDE))
    clone, *lines = block.splitlines()
    assert clone.startswith("git clone ") and any(one.startswith(f"{line} ") for one in lines)
    block = "\n".join(lines).replace("~/", f"{tmp_path}/")  # with another HOME, Go would compile everything again
    said = install(ROOT, block, {})  # with other flags, ccache would not have what `make setup-python` compiled
    assert said.splitlines()[-1] == VERSION
    assert f"version    {VERSION}\n" in said


def install_wheel(python: Path) -> None:
    """With uv where it is, in a seventh of pip's time. Pip installs what the documents' lines say."""
    uv = Path(sys.executable).with_name("uv")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-compile"]
    tool = [str(uv), "pip", "install", "--python", str(python)] if uv.exists() else pip
    run(*tool, "--quiet", "--only-binary", ":all:", wheel(MACHINE))


def install(folder: Path, block: str, environment: dict[str, str]) -> str:
    """Runs the lines of a document but those for torch, in an environment of their own or one that they make."""
    lines = [line for line in block.splitlines() if not line.startswith("pip install torch")]
    if not any("-m venv" in line for line in lines):
        run(sys.executable, "-m", "venv", "--without-pip", folder / ".venv")
        pip = folder / ".venv/bin/pip"  # one that is there: to install another takes seconds
        pip.write_text(f'#!/bin/sh\nexec {sys.executable} -m pip --python {folder}/.venv/bin/python "$@"\n')
        pip.chmod(0o755)
        lines = [". .venv/bin/activate", *lines]
    lines += ["stocached version", 'python -c "import stocached; print(stocached.__version__)"']
    variables = {**os.environ, "PIP_QUIET": "1", "PIP_NO_COMPILE": "1", **environment}
    return run("bash", "-euc", "\n".join(lines), cwd=folder, env=variables)
