"""Damaged files, as fuzz_pictures.py makes them: a short run, with the same files each time."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from fuzz_pictures import MOST, by_c, compare, mutated, seeds
from pictures import Image


@pytest.mark.filterwarnings("ignore")
@pytest.mark.filterwarnings("error::PIL.Image.DecompressionBombWarning")
def test_damaged_files_have_no_other_pixels_than_pillows(monkeypatch):
    """Some have an answer by one decoder alone. docs/spec/image.md lists which."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", MOST)
    r, files, kinds = Random(40), seeds(), Counter[str]()
    for _ in range(600):
        answer = compare(r, mutated(r, r.choice(files)))
        kinds["by one alone" if " refuses: " in answer else answer] += 1
    assert set(kinds) <= {"agree", "both refuse", "by one alone"}, kinds
    assert min(kinds["agree"], kinds["both refuse"]) > 100, kinds
    assert kinds["by one alone"] < 60, kinds


def test_a_palette_before_the_header_is_none():
    """Pillow skips it, and shows black."""
    file = next(data for data in seeds() if data[:4] == b"\x89PNG" and data[37:41] == b"PLTE")
    palette = 12 + int.from_bytes(file[33:37], "big")
    answer = by_c(file[:8] + file[33 : 33 + palette] + file[8:33] + file[33 + palette :])
    assert isinstance(answer, str)
    assert "lacks its header or its palette" in answer
