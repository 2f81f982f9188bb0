"""Copies the version of the product from python/pyproject.toml, the only place to edit, to all other places.

    python tools/version.py

`make lint-generate` runs it and fails if a file changes."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NUMBER = r"\d+\.\d+\.\d+"
SENTENCE, FILE = r"(?<=^Version )", r"(?<=stocached[-_])"  # before the number in a document
PLACES = (
    ("cclient/src/internal.h", r'(?<=^#define STOC_PRODUCT_VERSION ")[^"]*'),
    ("internal/cli/version.go", r'(?<=^const version = ")[^"]*'),
    ("deploy/chart/stocached/Chart.yaml", r"(?<=^version: ).*"),
    ("deploy/chart/stocached/Chart.yaml", r'(?<=^appVersion: ")[^"]*'),
    ("deploy/image/Containerfile", r'(?<=image\.version=")[^"]*'),
    ("README.md", rf"(?:{SENTENCE}|{FILE}){NUMBER}"),
    ("python/README.md", rf"{SENTENCE}{NUMBER}"),
    ("docs/guides/packages.md", rf"{FILE}{NUMBER}"),
)


def version() -> str:
    found = re.search(r'^version = "([^"]+)"', (ROOT / "python/pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def found() -> dict[tuple[str, str], list[str]]:
    """What each place says now."""
    return {(file, pattern): re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE) for file, pattern in PLACES}


def main() -> None:
    for file, pattern in PLACES:
        text = (ROOT / file).read_text()
        changed = re.sub(pattern, version(), text, flags=re.MULTILINE)
        if changed != text:
            (ROOT / file).write_text(changed)


if __name__ == "__main__":
    main()
