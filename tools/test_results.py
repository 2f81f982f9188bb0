"""The charts of the benchmarks show the numbers of the results."""

from __future__ import annotations

import re

import draw_results
import pytest


@pytest.mark.parametrize("name", draw_results.CHARTS)
def test_a_chart_is_that_of_the_results(name: str) -> None:
    title, about, panels = draw_results.CHARTS[name]
    committed = (draw_results.ROOT / "docs/images" / name).read_text()
    assert committed == draw_results.svg(title, about, panels()), "run python3 tools/draw_results.py"


@pytest.mark.parametrize("name", draw_results.CHARTS)
def test_bars_are_as_long_as_their_numbers(name: str) -> None:
    shown = (draw_results.ROOT / "docs/images" / name).read_text()
    bars = re.findall(r'<rect x="(\d+)" y="\d+" width="([\d.]+)"', shown)
    numbers = [float(number.replace(",", "")) for number in re.findall(r">([\d,.]+)</text>", shown)]
    assert len(bars) == len(numbers) > 2
    for panel in {x for x, _ in bars}:
        of_panel = [(float(width), value) for (x, width), value in zip(bars, numbers, strict=True) if x == panel]
        longest, most = map(max, zip(*of_panel, strict=True))
        for length, value in of_panel:  # a pixel stands for nothing
            assert length / longest == pytest.approx(value / most, abs=max(0.005, 1.01 / longest))
