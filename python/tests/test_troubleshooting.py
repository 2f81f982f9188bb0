"""docs/guides/troubleshooting.md has every error class and code, and its messages are the real ones."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from served import program

import stocached
import stocached.image
import stocached.prepare
from stocached._common.errors import StocachedError

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/guides/troubleshooting.md").read_text()
NAME = f"troubleshooting-{os.getpid()}"  # tests run in several processes
PRIVATE = {"UnfitError"}  # no user meets it under its own name


def classes(of: type[StocachedError] = StocachedError) -> Iterator[type[StocachedError]]:
    for kind in of.__subclasses__():
        if kind.__module__.partition(".")[0] == "stocached":
            yield kind
            yield from classes(kind)


@pytest.mark.parametrize("kind", sorted(set(classes()), key=str), ids=lambda kind: kind.__name__)
def test_each_class_has_an_entry(kind):
    if kind.__name__ in PRIVATE:
        return
    bases = [base.__name__ for base in kind.__bases__ if base is not StocachedError]
    assert f"\n### {kind.__name__} ({', '.join(bases)})\n" in PAGE


def literals() -> Iterator[str]:
    """The texts in the sources of the package and of the C library, without what is put into them."""
    for path in (ROOT / "python/src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
    yield (ROOT / "source/decode/helper.go").read_text()
    for path in (ROOT / "cclient/src").rglob("*.c"):
        yield re.sub(r'"\s*"', "", path.read_text())


def test_each_entry_quotes_a_message_of_the_code():
    """Between numbers, names and paths, the words of a message stand in the code."""
    code = "\n".join(literals())
    for entry in re.findall(r"^### (\w+Error \(.*?)(?=^#|\Z)", PAGE, re.M | re.S):
        quotes = re.findall(r"^> (.*)$", entry, re.M)
        assert quotes, f"no message of {entry.split()[0]}"
        for quote in quotes:
            runs = re.split(
                r"[;:] |/\S+|…|\S*[\d=\"]\S*|\b[A-Z]{4,}\b|\bfaces\b|\b.iB\b|(?=draws )|(?<= from )|numpy\.random",
                quote,
            )
            words = [run.strip(" ();:'") for run in runs if len(run.strip(" ();:'")) > 8]
            assert [run for run in words if run not in code] == [], quote
            assert words, quote


def test_parts_of_an_installation_that_are_missing_have_an_entry():
    """Messages without a class: the words of each before the first value or the next step stand in the code."""
    code = "\n".join(literals())
    section = PAGE.partition("\n## A part of the installation is missing\n")[2].partition("\n## ")[0]
    quotes = re.findall(r"^> (.*)$", section, re.M)
    for words in (
        "stocached.image: no library at ",
        "this installation was built without libjpeg-turbo, libpng, libdeflate or libwebp; ",
        " does not start: ",
        "; install stocached again ",
    ):
        assert words in code, words
        assert any(words in quote for quote in quotes), words


def test_each_code_of_c_and_error_of_go_is_named():
    header = (ROOT / "cclient/stocached.h").read_text()
    codes = re.findall(r"^ +(STOC_E[A-Z]+|STOC_REMOTE_[A-Z_]+) = -?\d+", header, re.M)
    go = [
        f"{package}.{name}"
        for folder, package in (
            *((name, name) for name in ("client", "loader", "order", "source")),
            ("source/block", "block"),
        )
        for path in ROOT.glob(f"{folder}/*.go")
        if not path.name.endswith("_test.go")
        for name in re.findall(r"^(?:var|\t)\s*(Err[A-Z]\w+)(?: error)? +=", path.read_text(), re.M)
    ]
    assert len(codes) > 30
    assert len(go) > 33
    wanted = [*(code for code in codes if code != "STOC_EXISTS"), *go]
    assert [name for name in wanted if f"`{name}`" not in PAGE] == []


def test_the_commands_exist():
    known = subprocess.run([program(), "--help"], capture_output=True, text=True, check=True).stdout
    used = set(re.findall(r"`stocached ([a-z]+)", PAGE))
    assert len(used) > 8
    assert [name for name in used if f"\n  {name} " not in known] == []


def wrong(name: str, cache: stocached.Cache) -> None:
    create = stocached.Cache.create
    read = stocached.Cache.attach(NAME, read_only=True)
    {
        "CacheNotFoundError": lambda: stocached.Cache.attach("nothing", timeout=0.1),
        "CacheExistsError": lambda: create(NAME, samples=10, shape=(4,), size="8MiB"),
        "CacheMemoryError": lambda: create("large", samples=1 << 40, shape=(4,), size="900TiB"),
        "FingerprintError": lambda: stocached.Cache.attach(NAME, fingerprint="v2"),
        "InvalidError": lambda: create("none", samples=-10, shape=(4,), size="8MiB"),
        "SampleIndexError": lambda: cache.get(33),
        "SchemaError": lambda: cache.put(3, np.zeros(5, np.uint8)),
        "ReadOnlyError": lambda: read.put(3, np.zeros(4, np.uint8)),
        "ClosedError": lambda: (read.close(), read.get(3)),
        "NoServerError": lambda: cache.fetch([1], timeout=0.1),
    }[name]()


def test_the_versions_of_a_message_are_real(tmp_path):
    """The page has the message with these numbers."""
    cache = stocached.Cache.create(NAME, samples=10, shape=(4,), size="8MiB")
    try:
        with open(cache.path, "r+b") as file:
            file.seek(8)  # layout_version
            file.write(bytes([2, 0, 0, 0]))
        with pytest.raises(stocached.VersionError) as caught:
            stocached.Cache.attach(NAME)
        entry = PAGE.partition("### VersionError ")[2]
        quoted = re.search(r"^> (.*) …$", entry, re.M)
        assert quoted
        assert str(caught.value).replace(cache.path, "/dev/shm/stocached-0/faces").startswith(quoted[1])
    finally:
        cache.close()
        subprocess.run([program(), "rm", NAME], check=True, capture_output=True)


def plain(message: str) -> str:
    """A message without numbers and units."""
    return re.sub(r"[\d.]+|[KMGT]iB", "0", message)


@pytest.mark.parametrize(
    "name",
    [
        "CacheExistsError",
        "CacheMemoryError",
        "CacheNotFoundError",
        "ClosedError",
        "FingerprintError",
        "InvalidError",
        "NoServerError",
        "ReadOnlyError",
        "SampleIndexError",
        "SchemaError",
    ],
)
def test_a_message_begins_as_the_page_says(name, tmp_path, monkeypatch):
    monkeypatch.setenv("STOCACHED_SOCKETS_DIR", str(tmp_path))
    entry = PAGE.partition(f"### {name} ")[2].partition("\n#")[0]
    quoted = re.search(r"^> (.*)$", entry, re.M)
    assert quoted
    cache = stocached.Cache.create(NAME, samples=10, shape=(4,), dtype="uint8", size="8MiB", fingerprint="v1")
    try:
        with pytest.raises(stocached.StocachedError) as caught:
            wrong(name, cache)
        assert type(caught.value).__name__ == name
        assert cache.path
        real = str(caught.value).replace(cache.path, "/dev/shm/stocached-0/faces").replace(NAME, "faces")
        real = real.replace(str(Path(cache.path).with_name("nothing")), "/dev/shm/stocached-0/faces")
        real = real.replace(f"{tmp_path}/data.sock", "/tmp/stocached-0/data.sock")
        assert plain(real).startswith(plain(quoted[1].partition("…")[0].rstrip("( "))), real
    finally:
        cache.close()
        subprocess.run([program(), "rm", NAME], check=True, capture_output=True)
