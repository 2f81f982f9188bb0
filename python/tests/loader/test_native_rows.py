"""Rows that the library for pictures makes from steps, seeds and samples: bit for bit those of Python's steps."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from pictures import picture

from stocached import InvalidError, image
from stocached._image.passes import Picture
from stocached._image.pipeline import Files, Pipeline
from stocached._loader.job import Augment
from stocached._native import _image_header as native
from stocached._samples import dtypes
from stocached._samples.batch_layout import Layout
from stocached._samples.schema import Field

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LABEL = 77
EXTREMES = [0, 2**64 - 1]  # the least and the greatest seed


@pytest.fixture
def passes(monkeypatch) -> list[bool]:
    """An entry for each pass over a picture that Python's steps made: whether the picture had floats."""
    made: list[bool] = []
    plan = Picture.plan

    def counted(self: Picture, *arguments) -> list[native.Augment]:
        planned = plan(self, *arguments)
        dtypes_before = [self.dtype, *(how.dtype for how in planned)]
        made.extend(dtype != native.UINT8 for dtype in dtypes_before[: len(planned)])
        return planned

    monkeypatch.setattr(Picture, "plan", counted)
    return made


class Rows:
    """Rows of the samples of a fixed-size cache, made in C and in Python."""

    def __init__(self, steps: Sequence[image.Step], pixels: np.ndarray) -> None:
        chw = pixels.shape[2] != 3
        at = -(-pixels.nbytes // 64) * 64
        self.sample = np.zeros(at + 64, np.uint8)
        self.sample[: pixels.nbytes] = pixels.ravel()
        self.sample[at : at + 8].view(np.int64)[0] = LABEL
        step = image.Compose(steps)
        fields = [Field("0", pixels.shape, dtypes.CODES["uint8"], 0), Field("1", (), dtypes.CODES["int64"], at)]
        size = pixels.shape[1:] if chw else pixels.shape[:2]
        decode = image.Decode(size=size, layout="chw" if chw else "hwc")
        pipeline = Pipeline(
            Files.of([("a", 0)]), decode, [] if step is None else step.in_c(), fields, self.sample.nbytes, False
        )
        self.augment, self.pixels = Augment(step), pixels
        layout = Layout.of(self.by_python(0), 3)
        self.worker, self.buffer = pipeline.worker(layout), np.zeros(layout.bytes, np.uint8)
        self.pictures, self.labels = layout.arrays(self.buffer, 3)

    def by_python(self, seed: int) -> tuple[np.ndarray, int]:
        made: tuple[np.ndarray, int] = self.augment((self.pixels, LABEL), seed)
        return made

    def by_c(self, seed: int) -> np.ndarray | None:
        """The second of three rows. None: C cannot make it; then the caller's rows are as they were."""
        self.buffer[:] = 99
        before, at = self.buffer.copy(), self.sample.ctypes.data
        code = native.finish(self.worker.handle, seed, at, self.sample.nbytes, self.buffer.ctypes.data, 1)
        if code:
            assert code == native.EUNSUPPORTED, native.message(self.worker.handle)
            return None
        made = self.pictures[1].copy()
        assert self.labels[1] == LABEL
        self.pictures[1], self.labels[1] = np.frombuffer(b"c" * made.nbytes, made.dtype).reshape(made.shape), 99
        self.labels[1:2].view(np.uint8)[:] = 99
        assert np.array_equal(self.buffer, before), "only its row is written"
        return made


def compare(steps: Sequence[image.Step], pixels: np.ndarray, seeds: Sequence[int], passes: list[bool]) -> Counter[str]:
    """Whether both make the same row. C must make it where Python's steps need no pass over floats."""
    rows, seen = Rows(steps, pixels), Counter[str]()
    for seed in seeds:
        passes.clear()
        try:
            want, _ = rows.by_python(seed)
        except InvalidError:
            assert rows.by_c(seed) is None, "Python raises the error"
            continue
        floats, needed = any(passes), len(passes)
        got = rows.by_c(seed)
        fits = (want.shape, want.dtype) == (rows.pictures.shape[1:], rows.pictures.dtype)
        assert (got is not None) == (not floats and fits), (steps, pixels.shape, seed)
        seen["back" if got is None else "in c"] += 1
        seen["several"] += got is not None and needed > 1
        if got is not None:
            assert got.tobytes() == want.tobytes(), (steps, pixels.shape, seed)
            seen[f"row {hash(got.tobytes())}"] = 1
    return seen


def test_steps_that_python_refuses_come_back():
    pixels = picture(30, 30)
    rows = Rows([image.RandomCrop(20)], pixels)
    assert rows.by_c(1) is not None
    assert native.finish(rows.worker.handle, 1, rows.sample.ctypes.data, 7, rows.buffer.ctypes.data, 0) != 0
    with pytest.raises(InvalidError, match="larger than the picture"):
        Rows([image.RandomCrop(31)], pixels)


def any_steps(chosen: random.Random) -> list[image.Step]:
    """Steps in an order that makes sense, with floats at the end or not."""
    side, choice = chosen.randrange, chosen.choice
    early: list[Callable[[], image.Step]] = [
        lambda: image.Resize(side(30, 90), max_size=choice([None, 95])),
        lambda: image.Resize((side(10, 90), side(10, 90)), interpolation="bicubic"),
        lambda: image.CenterCrop((side(10, 120), side(10, 120))),
        lambda: image.RandomResizedCrop(side(10, 90)),
        lambda: image.RandomResizedCrop(24, (0.9, 1), (7, 9)),  # no box fits
        lambda: image.RandomResizedCrop(
            (side(9, 90), 33), (0.01, 3), choice([(0.3, 0.4), (1, 9), (0.5, 2)]), "bicubic"
        ),
        lambda: image.RandomCrop(side(10, 30), padding=side(9), pad_if_needed=True, fill=side(256)),
        lambda: image.RandomCrop((side(10, 180), 20), padding=(1, 2, 3, 4), pad_if_needed=True, fill=(1, 2, 3)),
        lambda: image.RandomCrop(side(10, 30), padding=(6, 1), pad_if_needed=True),
        lambda: image.RandomHorizontalFlip(chosen.random()),
        lambda: image.ColorJitter(*(choice([0, 0.5]) for _ in range(3)), choice([0, 0.2])),
        lambda: image.RandomErasing(value=(9, 8, 7)),
        lambda: image.RandomErasing(scale=(0.0001, 0.004), value=(9, 8, 7)),
        lambda: image.RandomErasing(1, scale=(1, 2)),  # no box fits
        lambda: image.ToDtype("uint8"),
    ]
    late: list[Callable[[], image.Step]] = [
        lambda: image.CenterCrop(side(10, 120)),
        lambda: image.RandomHorizontalFlip(),
        lambda: image.RandomErasing(value=choice(["random", 0.5])),
        lambda: image.RandomCrop(8, padding=3, pad_if_needed=True, fill=5),
        lambda: image.Normalize(*choice([((0.4,), (0.3,)), (MEAN, STD)])),
    ]
    steps = [choice(early)() for _ in range(side(5))]
    if chosen.random() < 0.7:
        steps.append(image.ToDtype("float32", scale=chosen.random() < 0.7))
        steps += [choice(late)() for _ in range(side(3))]
        if chosen.random() < 0.5:
            steps.append(image.ToDtype(choice(["float16", "bfloat16"])))
            steps += [choice(late[:-1])() for _ in range(side(2))]
    return steps


@pytest.mark.parametrize("begin", range(0, 600, 100))
def test_random_pipelines(passes, begin):
    seen: Counter[str] = Counter()
    for number in range(begin, begin + 100):
        chosen = random.Random(number)
        steps, pixels = any_steps(chosen), picture(chosen.randrange(4, 150), chosen.randrange(4, 150), number)
        if chosen.random() < 0.4 and pixels.shape[1] != 3:
            pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1))
        seeds: Any = [*EXTREMES, *(chosen.randrange(2**64) for _ in range(4))]
        seen.update(compare(steps, pixels, seeds, passes))
    assert min(seen["in c"], seen["several"]) > 100, seen
    assert seen["back"] > 50, seen


def test_draws_are_those_of_the_generator_that_augment_gets():
    """RandomCrop of one pixel gives the place in the picture, for 2,000 seeds."""
    pixels = np.zeros((251, 256, 3), np.uint8)
    pixels[..., 0], pixels[..., 1] = np.arange(251)[:, None], np.arange(256)
    rows = Rows([image.RandomCrop(1)], pixels)
    chosen = random.Random(1)
    seeds = [chosen.randrange(2**64) for _ in range(2000)]
    places = [tuple(rows.by_c(seed)[0, 0, :2]) for seed in seeds]  # type: ignore[index]
    assert places == [tuple(rows.by_python(seed)[0][0, 0, :2]) for seed in seeds]
    assert len(set(places)) > 1900
