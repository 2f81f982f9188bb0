"""The table of supported versions in docs/guides/packages.md says what the project's files say."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def row(name: str) -> tuple[str, str]:
    """What works, and what is tested."""
    table = (ROOT / "docs/guides/packages.md").read_text().partition("## What is supported")[2]
    found = re.search(rf"^\| {re.escape(name)} \| (.*?) \| (.*?) \|$", table, re.MULTILINE)
    assert found, name
    return found[1], found[2]


def value(file: str, pattern: str) -> str:
    found = re.search(pattern, (ROOT / file).read_text(), re.MULTILINE)
    assert found, (file, pattern)
    return found[1]


def test_python_and_its_packages() -> None:
    project = "python/pyproject.toml"
    assert row("Python")[0] == value(project, r'^requires-python = ">=([\d.]+)"') + " and later"
    assert row("NumPy")[0] == value(project, r'^dependencies = \["numpy>=([\d.]+)"\]') + " and later"
    assert row("torch (optional)")[0] == value(project, r'^torch = \["torch>=([\d.]+)"\]') + " and later"
    assert row("lightning (optional)")[0] == value(project, r'^lightning = \["lightning>=([\d.]+)"\]') + " and later"


def test_the_oldest_and_the_frameworks_are_those_of_the_tests() -> None:
    oldest = "tools/requirements-torch-oldest.txt"
    assert value(oldest, r"^numpy==(.*)$") in row("NumPy")[1]
    assert value(oldest, r"^torch==(.*)$") in row("torch (optional)")[1]
    for name in ("lightning", "accelerate", "transformers"):
        assert value("tools/requirements-frameworks.txt", rf"^{name}==(.*)$") in row("lightning (optional)")[1]


def test_go_and_the_c_library() -> None:
    version = value("go.mod", r"^go (\d+\.\d+)")
    assert row("Go (to build)") == (f"{version} and later", version)
    glibc = value("tools/release/native.py", r"(?:gnu\.|manylinux_)(\d+[._]\d+)").replace("_", ".")
    assert row("C library")[0] == f"glibc {glibc} and later"
    assert row("C library")[1].endswith(f"symbols are compared with {glibc}")


def test_linux() -> None:
    assert row("Linux")[0].startswith(value("cclient/src/protocol/create.c", r"Linux (\d+\.\d+) with tmpfs") + " ")
    assert "from 6.1 on" in row("Linux")[0]
    assert "Since Linux 6.1 " in (ROOT / "docs/spec/segment.md").read_text()
