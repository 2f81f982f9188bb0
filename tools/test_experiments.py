"""Tests of tools/draw_experiments.py: they run short versions of the experiments in docs/images."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("matplotlib", reason="matplotlib is not installed: tools/setup.sh demo does it")
sys.path.insert(0, str(Path(__file__).parent))
import draw_experiments as experiments
import torch
from PIL import Image

pytestmark = pytest.mark.filterwarnings("ignore:.*suggested max number of worker.*")
SCRIPT = Path(__file__).parent / "draw_experiments.py"


def test_both_pictures_are_drawn_and_their_numbers_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--quick", "--out", str(tmp_path)])
    threads = torch.get_num_threads()
    try:
        runpy.run_path(str(SCRIPT), run_name="__main__")  # this process has imported torch already
    finally:
        torch.set_num_threads(threads)
    said = capsys.readouterr().out
    told = [line.split() for line in said.splitlines()]
    assert (
        sum(line[-1:] == ["ms"] for line in told) == 9
        and sum(line[-1:] != [] and line[-1].endswith("%") for line in told) == 9
    ), said
    for name in ("workers.png", "streams-workers.png"):
        with Image.open(tmp_path / name) as picture:
            assert picture.width == 1600 and picture.convert("RGB").getpixel((2, 2)) == (255, 255, 255)
            assert len(picture.convert("RGB").getcolors(1 << 22) or []) > 20
        assert (tmp_path / name).stat().st_size < 150_000


def test_what_is_recorded_is_what_each_loader_did() -> None:
    for kind in (experiments.TORCH, experiments.OURS):
        epoch = experiments.warm_epoch(kind, 2, 2)
        makers = [{load.process for load in epoch.loads if load.batch == batch} for batch in range(2)]
        # A batch by one worker, or by all of them.
        assert [len(found) for found in makers] == ([1, 1] if kind == experiments.TORCH else [2, 2])
        for load in epoch.loads:
            assert 0 < load.start < load.end < epoch.arrivals[load.batch] and load.end - load.start >= experiments.LOAD
        assert epoch.seconds >= 2 * experiments.STEP
    cached = experiments.warm_epoch(experiments.CACHED, 0, 2)
    assert cached.loads == [] and len(cached.arrivals) == 2


def test_only_torch_with_several_workers_breaks_rows() -> None:
    go_on = {kind: experiments.stream(kind, 2, 3).contiguous(3) for kind in experiments.STREAMS}
    broken, *whole = go_on.values()
    assert broken < 0.5 and whole == [1, 1], go_on


def test_an_epoch_that_lacks_a_sample_is_refused() -> None:
    epoch = experiments.Epoch([0.1], [0.2], [], [[0, 1, 1]])
    with pytest.raises(RuntimeError, match="torch: 3 samples came, 2 different ones, of 3, by 0 loads, of 3"):
        experiments.check(epoch, "torch", 3, 3)


def test_a_folder_that_is_not_there_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--out", str(tmp_path / "gone")])
    with pytest.raises(SystemExit, match="2"):
        experiments.main()
    assert "there is no such folder; make it first" in capsys.readouterr().err
