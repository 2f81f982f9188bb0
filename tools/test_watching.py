"""Test of tools/draw_watching.py: a short version of docs/images/watching.png."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("PIL", reason="Pillow is not installed: tools/setup.sh demo does it")
sys.path.insert(0, str(Path(__file__).parent))
from PIL import Image
from website.browser import NAMES, program

TOOLS = Path(__file__).parent
SIZE = (1400, 560)


def test_the_page_with_three_caches_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if program() is None:
        pytest.skip(f"none of {', '.join(NAMES)} is here: tools/setup.sh browser installs one")
    monkeypatch.setattr(sys, "argv", ["draw_watching.py", "--quick", "--out", str(tmp_path)])
    before = os.listdir("/dev/shm")
    runpy.run_path(str(TOOLS / "draw_watching.py"), run_name="__main__")
    assert not [name for name in set(os.listdir("/dev/shm")) - set(before) if name.startswith("stocached-watched-")]
    for path in (tmp_path / "watching.png", TOOLS.parent / "docs/images/watching.png"):
        with Image.open(path) as picture:
            assert picture.size == SIZE
            assert (
                len(picture.convert("RGB").getcolors(1 << 20) or []) > 100
            )  # a page with curves, and not an empty one
