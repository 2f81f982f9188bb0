"""The charts of the benchmarks show the numbers of the results."""

from __future__ import annotations

import re

import draw_results
import pytest


@pytest.mark.parametrize("name", draw_results.CHARTS)
def test_a_chart_is_that_of_the_results(name: str) -> None:
    title, about, bars = draw_results.CHARTS[name]
    committed = (draw_results.ROOT / "docs/images" / name).read_text()
    assert committed == draw_results.svg(title, about, bars()), "run python3 tools/draw_results.py"


@pytest.mark.parametrize("name", draw_results.CHARTS)
def test_bars_are_as_long_as_their_numbers(name: str) -> None:
    shown = (draw_results.ROOT / "docs/images" / name).read_text()
    lengths = [float(width) for width in re.findall(r'<rect x="\d+" y="\d+" width="([\d.]+)"', shown)]
    numbers = [float(number.replace(",", "")) for number in re.findall(r">([\d,.]+)</text>", shown)]
    assert len(lengths) == len(numbers) > 2
    for length, number in zip(lengths, numbers, strict=True):
        assert length / max(lengths) == pytest.approx(number / max(numbers), abs=0.005)
