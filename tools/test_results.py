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


@pytest.mark.parametrize("name", draw_results.PLOTS)
def test_a_plot_is_that_of_the_results(name: str) -> None:
    plot = draw_results.PLOTS[name]
    committed = (draw_results.ROOT / "docs/images" / name).read_text()
    assert committed == draw_results.plot_svg(plot), "run python3 tools/draw_results.py"


@pytest.mark.parametrize("name", draw_results.PLOTS)
def test_marks_stand_at_their_numbers(name: str) -> None:
    plot = draw_results.PLOTS[name]
    shown = (draw_results.ROOT / "docs/images" / name).read_text()
    axis = {float(value): float(y) for y, value in re.findall(r"M70 ([\d.]+)H780.*\n.*>([\d.]+)</text>", shown)}
    least, most = min(axis), max(axis)
    heights = [float(y) for y in re.findall(r'<circle cx="[\d.]+" cy="([\d.]+)"', shown)]
    wanted = [value for line in plot.lines() if not line.dashed for _, value in line.points]
    assert len(wanted) > 5
    for height, value in zip(heights, wanted, strict=True):
        part = (height - axis[least]) / (axis[most] - axis[least])
        assert least + part * (most - least) == pytest.approx(value, abs=0.002 * most)
