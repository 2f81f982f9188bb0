"""Tests of tools/version.py: every place has the version of python/pyproject.toml."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import version


def test_every_place_has_the_version() -> None:
    for place, found in version.found().items():
        assert found == [version.version()], place
