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
SEEDS = [0, 1, 2**63, 2**64 - 1, *(random.Random(k).randrange(2**64) for k in range(36))]


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


ONE_PASS: dict[str, list[image.Step]] = {
    "nothing": [],
    "resized crop": [image.RandomResizedCrop(24)],
    "resized crop, bicubic": [image.RandomResizedCrop((20, 31), (0.3, 0.9), (0.5, 1), "bicubic")],
    "resized crop, no box fits": [image.RandomResizedCrop(24, (2, 3), (4, 5))],
    "resized crop, none fits and the picture is too square": [image.RandomResizedCrop(24, (0.9, 1), (7, 9))],
    "resized crop, wide": [image.RandomResizedCrop(24, (0.3, 0.6), (1.5, 2))],
    "resized crop, tall": [image.RandomResizedCrop(24, (0.1, 0.4), (0.3, 0.4))],
    "crop": [image.RandomCrop((30, 21))],
    "crop, padding": [image.RandomCrop(40, padding=6, fill=(1, 2, 3))],
    "crop, two paddings": [image.RandomCrop(40, padding=(6, 1), fill=9)],
    "crop, four paddings": [image.RandomCrop(40, padding=(1, 2, 3, 4))],
    "crop, pads if needed": [image.RandomCrop((120, 30), pad_if_needed=True, fill=(7, 8, 9))],
    "crop, both paddings": [image.RandomCrop((30, 130), padding=(3, 0, 5, 1), pad_if_needed=True)],
    "centre": [image.CenterCrop((31, 22))],
    "centre, larger": [image.CenterCrop((91, 120))],
    "centre, one side larger": [image.CenterCrop((91, 20))],
    "resize": [image.Resize((33, 21))],
    "resize short side": [image.Resize(30)],
    "resize, longest": [image.Resize(30, max_size=35)],
    "resize, bicubic": [image.Resize(90, interpolation="bicubic")],
    "resize, centre": [image.Resize(40), image.CenterCrop(32)],
    "resize, crop": [image.Resize(40), image.RandomCrop(32)],
    "flip": [image.RandomHorizontalFlip()],
    "flip, rarely": [image.RandomHorizontalFlip(0.1)],
    "flips": [image.RandomHorizontalFlip(), image.RandomHorizontalFlip(0.7)],
    "erase": [image.RandomErasing(0.8, value=(4, 5, 6))],
    "erase with normal numbers": [image.ToDtype("float32"), image.RandomErasing(0.8, value="random")],
    "erase, no box fits": [image.RandomErasing(1, scale=(1, 2), value=5)],
    "erase, boxes without pixels": [image.RandomErasing(1, (0.0001, 0.001), value=200)],
    "to float32": [image.ToDtype("float32")],
    "to float32, scaled": [image.ToDtype("float32", scale=True)],
    "to float16": [image.ToDtype("float16", scale=True)],
    "to bfloat16": [image.ToDtype("bfloat16", scale=True)],
    "to uint8": [image.ToDtype("uint8")],
    "normalise": [image.ToDtype("float32", scale=True), image.Normalize(MEAN, STD)],
    "normalise, one number": [image.ToDtype("float32"), image.Normalize((120,), (60,))],
    "normalise, float16": [image.ToDtype("float32"), image.Normalize(MEAN, STD), image.ToDtype("float16")],
    "normalise, bfloat16": [image.ToDtype("float32"), image.Normalize(MEAN, STD), image.ToDtype("bfloat16")],
    "usual": [
        image.RandomResizedCrop(32),
        image.RandomHorizontalFlip(),
        image.ColorJitter(0.4, 0.4, 0.4, 0.1),
        image.ToDtype("float32", scale=True),
        image.Normalize(MEAN, STD),
        image.RandomErasing(0.5, value="random"),
    ],
    "small pictures": [
        image.RandomCrop(48, padding=4),
        image.RandomHorizontalFlip(),
        image.ToDtype("float32", scale=True),
        image.Normalize((0.5,), (0.2,)),
        image.ToDtype("bfloat16"),
        image.RandomErasing(0.9, value=(0.1, 0.2, 0.3)),
    ],
}  # fmt: skip
for chosen in range(16):  # each subset
    values = [(0.5, 0.4, 0.6, 0.3)[k] if chosen >> k & 1 else 0 for k in range(4)]
    ONE_PASS[f"colours {values}"] = [image.ColorJitter(*values)]
CONSTANT = {
    "nothing",
    "colours [0, 0, 0, 0]",
    "erase, no box fits",
    "resized crop, no box fits",
    "resized crop, none fits and the picture is too square",
}


@pytest.mark.parametrize("name", ONE_PASS)
@pytest.mark.parametrize("layout", ["hwc", "chw"])
def test_one_pass(passes, name, layout):
    pixels = picture(61, 47, seed=len(name))
    pixels = pixels if layout == "hwc" else np.ascontiguousarray(pixels.transpose(2, 0, 1))
    seen = compare(ONE_PASS[name], pixels, SEEDS, passes)
    assert seen["in c"] == len(SEEDS)
    if any(type(step).__name__.startswith(("Random", "Color")) for step in ONE_PASS[name]) and name not in CONSTANT:
        assert len(seen) > 2, "seeds give different rows"


SEVERAL: dict[str, list[image.Step]] = {
    "resize, padded crop": [image.Resize(30), image.RandomCrop(32, padding=4)],
    "resize, resized crop": [image.Resize(60, interpolation="bicubic"), image.RandomResizedCrop(24)],
    "crop, centre that is larger": [image.RandomCrop(20), image.CenterCrop((30, 10))],
    "two resizes": [image.Resize(30), image.Resize((50, 40))],
    "two colours": [image.ColorJitter(0.1), image.ColorJitter(0.1)],
    "two erased boxes": [image.RandomErasing(1, (0.1, 0.2)), image.RandomErasing(1, (0.1, 0.2))],
    "flip, then crop": [image.RandomHorizontalFlip(1), image.RandomCrop(20)],
    "flip, then resized crop": [image.RandomHorizontalFlip(1), image.RandomResizedCrop((20, 31))],
    "colours, then resized crop": [image.ColorJitter(0.4, 0.4, 0.4, 0.1), image.RandomResizedCrop(24)],
    "erase, flip": [image.RandomErasing(1, (0.1, 0.2), value=(1, 2, 3)), image.RandomHorizontalFlip(1)],
    "erase, then floats": [image.RandomErasing(1, (0.1, 0.2)), image.ToDtype("float32"), image.Normalize(MEAN, STD)],
    "eight": [
        image.RandomErasing(1, (0.1, 0.2), value=99),
        image.ColorJitter(0.4, hue=0.1),
        image.Resize(90),
        image.RandomCrop(100, padding=9, fill=(3, 2, 1)),
        image.RandomHorizontalFlip(1),
        image.RandomResizedCrop((33, 44), interpolation="bicubic"),
        image.ColorJitter(0, 0.5),
        image.CenterCrop(50),
        image.ToDtype("float16", scale=True),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("layout", ["hwc", "chw"])
def test_several_passes(passes, name, layout):
    """C does all of them, as Python does."""
    pixels = picture(61, 47)
    pixels = pixels if layout == "hwc" else np.ascontiguousarray(pixels.transpose(2, 0, 1))
    seen = compare(SEVERAL[name], pixels, SEEDS, passes)
    assert seen["in c"] == seen["several"] == len(SEEDS)


FLOATS: dict[str, list[image.Step]] = {
    "erase, normalise": [image.ToDtype("float32"), image.RandomErasing(1, (0.1, 0.2)), image.Normalize((1,), (2,))],
    "two normalisations": [image.ToDtype("float32"), image.Normalize(MEAN, STD), image.Normalize(MEAN, STD)],
    "crop of floats": [image.RandomHorizontalFlip(1), image.ToDtype("float32"), image.RandomCrop(20)],
}  # fmt: skip


@pytest.mark.parametrize("name", FLOATS)
def test_passes_over_floats_come_back(passes, name):
    seen = compare(FLOATS[name], picture(61, 47), SEEDS, passes)
    assert seen["back"] == len(SEEDS)


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
        lambda: image.CenterCrop(side(10, 120)),
        lambda: image.RandomResizedCrop(side(10, 90)),
        lambda: image.RandomResizedCrop(
            (side(9, 90), 33), (0.01, 3), choice([(0.3, 0.4), (1, 9), (0.5, 2)]), "bicubic"
        ),
        lambda: image.RandomCrop(side(10, 30), padding=side(9), pad_if_needed=True, fill=side(256)),
        lambda: image.RandomCrop((side(10, 180), 20), padding=(1, 2, 3, 4), pad_if_needed=True, fill=(1, 2, 3)),
        lambda: image.RandomHorizontalFlip(chosen.random()),
        lambda: image.ColorJitter(*(choice([0, 0.5]) for _ in range(3)), choice([0, 0.2])),
        lambda: image.RandomErasing(value=(9, 8, 7)),
        lambda: image.RandomErasing(scale=(0.0001, 0.004), value=(9, 8, 7)),
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
        seeds: Any = [chosen.randrange(2**64) for _ in range(6)]
        seen.update(compare(steps, pixels, seeds, passes))
    assert min(seen["in c"], seen["several"]) > 150, seen
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
