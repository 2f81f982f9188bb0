"""Counts lines of the product, of tests, and of bench, tools and demo; words of documents; modules of
Go. `tools/count_lines.py COMMIT` counts that commit in place of HEAD.

A line is one that wc counts, so comments and empty lines are in. Denser lines are no gain: the medians
show them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import PurePosixPath
from statistics import median

CODE = {".go", ".py", ".c", ".h", ".sh"}
AROUND = {"bench", "tools", "demo"}
TESTS = {"tests", "ctest", "testdata", "sourcetest", "s3test", "suites", "conform", "verify"}


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], check=True, stdout=subprocess.PIPE).stdout


def files(commit: str) -> Iterator[tuple[PurePosixPath, str]]:
    """The text files of a commit, without results, which are numbers."""
    for name in git("ls-tree", "-rz", "--name-only", commit).decode().split("\0"):
        path = PurePosixPath(name)
        if path.suffix in CODE | {".md", ".mod"} and path.parts[:2] != ("bench", "results"):
            yield path, git("show", f"{commit}:{name}").decode(errors="replace")


def group(path: PurePosixPath) -> str:
    if path.suffix == ".md":
        return "documents"
    if path.suffix == ".mod":
        return "modules"
    test = path.stem.endswith("_test") or path.stem.startswith(("test_", "checks_")) or path.stem == "conftest"
    if path.parts[0] in AROUND:
        return "bench, tools, demo"
    return "tests" if test or TESTS.intersection(path.parts) else "product"


def modules(text: str) -> int:
    return len(re.findall(r"^(?:require )?\s*[\w.-]+\.[\w.-]+/\S* v\S+", text, re.MULTILINE))


def main() -> int:
    commit = sys.argv[1] if sys.argv[1:] else "HEAD"
    found: dict[str, list[tuple[PurePosixPath, str]]] = {}
    for path, text in files(commit):
        found.setdefault(group(path), []).append((path, text))
    print(f"{'':20} {'lines':>8} {'files':>6}  median file, median line, lines over 100 columns")
    for name in ("product", "tests", "bench, tools, demo"):
        texts = [text for _, text in found[name]]
        lines = [line for text in texts for line in text.splitlines()]
        written = [len(line) for line in lines if line.strip()]
        lengths = median(text.count("\n") for text in texts), median(written)
        print(
            f"{name:20} {len(lines):8,} {len(texts):6,}  {lengths[0]:g}, {lengths[1]:g}, {sum(n > 100 for n in written) / len(written):.1%}"
        )
    words = sum(len(text.split()) for _, text in found["documents"])
    print(f"{'documents':20} {words:8,} words in {len(found['documents'])} files")
    text = next(text for path, text in found["modules"] if path.parts == ("go.mod",))
    print(f"{'modules of go.mod':20} {modules(text):8,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
