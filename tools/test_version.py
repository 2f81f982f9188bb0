"""Tests of tools/version.py: every place has the version of python/pyproject.toml, and all say whether it is released."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import version

DOCUMENTS = sorted(str(path.relative_to(version.ROOT)) for path in (version.ROOT / "docs").rglob("*.md"))


def test_every_place_has_the_version() -> None:
    for place, found in version.found().items():
        assert set(found) == {version.version()}, place


@pytest.mark.parametrize("document", ["README.md", "python/README.md", "examples/README.md", *DOCUMENTS])
def test_a_document_has_the_version_only_where_the_script_writes_it(document: str) -> None:
    text = (version.ROOT / document).read_text()
    for file, pattern in version.PLACES:
        if file == document:
            text = re.sub(pattern, "", text, flags=re.MULTILINE)
    assert version.version() not in text


def test_the_readmes_say_that_the_version_is_not_released_until_the_changelog_has_its_date() -> None:
    changelog = (version.ROOT / "CHANGELOG.md").read_text()
    section = re.search(
        rf"^## {re.escape(version.version())}, (not released|\d{{4}}-\d\d-\d\d)$", changelog, re.MULTILINE
    )
    assert section
    unreleased = f"Version {version.version()} is **not released yet**"
    for name in ("README.md", "python/README.md"):
        text = (version.ROOT / name).read_text()
        assert (unreleased in text) == (section[1] == "not released"), name
        assert text.count("not released") == text.count(unreleased), name
