"""Steps with torchvision's names, arguments and meaning, for uint8 pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .._common.errors import InvalidError
from .._common.numbers import real, whole
from .._common.one_line import one_line
from .._common.ours import only_ours
from .._native import _image_header as native
from .decoding import Decode
from .draws import Draw, draw_of, draw_of_seeds
from .errors import steps_of
from .parameters import (
    LONGEST,
    check_probability,
    check_scale_and_ratio,
    dtype_number,
    fill_of,
    filter_number,
    items,
    numbers_of,
    pair,
    sides_of,
)
from .passes import Picture, is_picture
from .samples import FILE, PICTURE, changed

RANDOM = (
    native.RANDOM_RESIZED_CROP, native.RANDOM_CROP, native.RANDOM_FLIP, native.COLOR_JITTER, native.RANDOM_ERASING
)  # fmt: skip

_MOST = 3e38  # about the most that float32 holds


class Step:
    """Changes a picture: step(sample), or step(sample, generator).

    sample: a picture, or a tuple, list or mapping that has one; its first picture is changed, and all else stays. A
        picture is an array of three dimensions, (height, width, channels) if the last of them is 1 or 3, else
        (channels, height, width); or a tensor, (channels, height, width) if the first is 1 or 3, else (height, width,
        channels). The result is an array or a tensor as well, with the same order of dimensions.
    generator: of numpy.random or random, or torch.Generator. None: a new one, whose seed comes from torch's generator
        if the program uses torch, else from NumPy's. As `augment=` of a loader, a step gets a generator that depends
        only on (seed, epoch, index)."""

    takes_generator = True  # for `augment=`
    _parts_given: ClassVar[tuple[str, ...]] = ()  # for `only_ours`

    def __call__(self, sample: Any, generator: Any = None) -> Any:
        return _changed(sample, self, draw_of(generator))

    def in_c(self) -> list[native.Step]:
        """What the library plans (docs/spec/image.md, Plans)."""
        raise NotImplementedError

    @property
    def random(self) -> bool:
        """Whether it draws random numbers."""
        return any(step.kind in RANDOM for step in self.in_c())


def _step(
    kind: int,
    sides: Sequence[int] = (0, 0),
    filter: int = 0,
    integers: Sequence[int] = (),
    numbers: Sequence[float] = (),
) -> list[native.Step]:
    return [native.Step(kind, filter, *sides, tuple(integers), tuple(numbers))]


def _changed(sample: Any, step: Step, draw: Draw) -> Any:
    decode = step.decode if isinstance(step, Compose) else None

    def change(value: Any) -> Any:
        picture = Picture(value) if decode is None else decode.opened(*decode.read(value))
        return picture.apply(step.in_c(), draw)

    if decode is None:
        return changed(sample, lambda values: is_picture, change, step, PICTURE)
    return changed(sample, decode.chosen, change, step, FILE)


@dataclass
class Resize(Step):
    """size: (height, width), or the short side. max_size: of the long side. Always antialiased."""

    size: int | Sequence[int]
    interpolation: Any = "bilinear"
    max_size: int | None = None
    antialias: bool | None = True

    def __post_init__(self) -> None:
        self._sides = sides_of(self.size, "a short side")
        self._filter = filter_number(self.interpolation, self.antialias)
        if self.max_size is not None:
            longest = whole("max_size", self.max_size, 1, LONGEST)
            if len(self._sides) == 2 or longest <= self._sides[0]:
                raise InvalidError(f"max_size={self.max_size} must be larger than the short side {self.size!r}")

    def in_c(self) -> list[native.Step]:
        return _step(native.RESIZE, (*self._sides, 0)[:2], self._filter, [self.max_size or 0])


@dataclass
class CenterCrop(Step):
    """What is outside of the picture is black."""

    size: int | Sequence[int]

    def __post_init__(self) -> None:
        self._sides = pair(self.size)

    def in_c(self) -> list[native.Step]:
        return _step(native.CENTER_CROP, self._sides)


@dataclass
class RandomResizedCrop(Step):
    """Resizes a random box of the picture to `size`: (height, width), or the side of a square. `scale` limits its part
    of the picture's area, `ratio` its width over its height. Both are drawn as torchvision draws them."""

    size: int | Sequence[int]
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)
    interpolation: Any = "bilinear"
    antialias: bool | None = True

    def __post_init__(self) -> None:
        self._sides = pair(self.size)
        self._filter = filter_number(self.interpolation, self.antialias)
        check_scale_and_ratio(self.scale, self.ratio)

    def in_c(self) -> list[native.Step]:
        return _step(native.RANDOM_RESIZED_CROP, self._sides, self._filter, numbers=(*self.scale, *self.ratio))


@dataclass
class RandomCrop(Step):
    """padding: of all sides, (left and right, top and bottom), or (left, top, right, bottom)."""

    size: int | Sequence[int]
    padding: int | Sequence[int] | None = None
    pad_if_needed: bool = False
    fill: int | Sequence[int] = 0
    padding_mode: str = "constant"

    def __post_init__(self) -> None:
        self._sides = pair(self.size)
        padding = items(self.padding or 0)
        if len(padding) not in (1, 2, 4) or self.padding_mode != "constant":
            raise InvalidError(
                f"padding={self.padding!r} in mode {self.padding_mode!r}: only 1, 2 or 4 numbers, constant"
            )
        self._padding = tuple(whole("padding", value, -LONGEST, LONGEST) for value in (padding * 4)[:4])
        self._fill = list(fill_of(self.fill))

    def in_c(self) -> list[native.Step]:
        return _step(native.RANDOM_CROP, self._sides, integers=(*self._padding, int(self.pad_if_needed), *self._fill))


@dataclass
class RandomHorizontalFlip(Step):
    """Flips left and right with the probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability(self.p)

    def in_c(self) -> list[native.Step]:
        return _step(native.RANDOM_FLIP, numbers=[self.p])


@dataclass
class ColorJitter(Step):
    """Each is a range of factors, or how far they go from 1 (of hue: from 0)."""

    brightness: float | Sequence[float] = 0
    contrast: float | Sequence[float] = 0
    saturation: float | Sequence[float] = 0
    hue: float | Sequence[float] = 0

    def __post_init__(self) -> None:
        self._ranges = []
        for number, name in enumerate(("brightness", "contrast", "saturation", "hue"), native.BRIGHTNESS):
            value, hue = getattr(self, name), name == "hue"
            centre, least, most = (0.0, -0.5, 0.5) if hue else (1.0, 0.0, float("inf"))
            wanted = "a number, or a range of two numbers"
            given = items(value)
            numbers = [real(name, one, wanted, -_MOST, _MOST) for one in given]
            if len(given) == 1 and given[0] is value:
                far = numbers[0]
                numbers = [centre - far if hue else max(centre - far, least), centre + far]
            elif len(numbers) != 2:
                raise InvalidError(f"{name}={value!r}; it must be {wanted}")
            low, high = numbers
            if not least <= low <= high <= most:
                raise InvalidError(
                    f"{name}={value!r} gives factors from {low} to {high}; {least} to {most} are allowed"
                )
            self._ranges.append(None if low == high == centre else (number, low, high))

    def in_c(self) -> list[native.Step]:
        drawn = [int(r is not None) for r in self._ranges]
        ranges = [value for r in self._ranges for value in (r[1:] if r else (0, 0))]
        return _step(native.COLOR_JITTER, integers=drawn, numbers=ranges)


@dataclass
class RandomErasing(Step):
    """value: a number, one for each channel, or "random" for normal numbers."""

    p: float = 0.5
    scale: Sequence[float] = (0.02, 0.33)
    ratio: Sequence[float] = (0.3, 3.3)
    value: float | Sequence[float] | str = 0
    inplace: bool = False  # accepted, and means nothing: the picture is a copy

    def __post_init__(self) -> None:
        check_probability(self.p)
        check_scale_and_ratio(self.scale, self.ratio)
        if isinstance(self.value, str):
            if self.value != "random":
                raise InvalidError(f"value={self.value!r}: the only text is 'random'")
            self._values: list[float] | None = None
        else:
            values = numbers_of("value", self.value)
            self._values = values * (3 // len(values))

    def in_c(self) -> list[native.Step]:
        numbers = (self.p, *self.scale, *self.ratio, *(self._values or (0, 0, 0)))
        return _step(native.RANDOM_ERASING, integers=[int(self._values is None)], numbers=numbers)


@dataclass
class ToDtype(Step):
    """dtype: float32, float16 or bfloat16, as a name or of NumPy or torch. scale: 0 to 255 become 0 to 1."""

    dtype: Any
    scale: bool = False

    def __post_init__(self) -> None:
        self._number = dtype_number(self.dtype)

    def in_c(self) -> list[native.Step]:
        return _step(native.TO_DTYPE, integers=(self._number, int(self.scale)))


@dataclass
class Normalize(Step):
    """Makes (value - mean) / std of each value of a float picture. `mean` and `std` have one number, or one for each
    channel."""

    mean: float | Sequence[float]
    std: float | Sequence[float]
    inplace: bool = False  # accepted, and means nothing: the picture is a copy

    def __post_init__(self) -> None:
        self._mean, self._std = numbers_of("mean", self.mean), numbers_of("std", self.std)
        with np.errstate(over="ignore"):
            numbers = np.array([*self._mean, *self._std], np.float32)
        if not np.isfinite(numbers).all() or not numbers[len(self._mean) :].all():
            raise InvalidError(f"mean={self.mean!r}, std={self.std!r} must be finite in float32, and std not 0")

    def in_c(self) -> list[native.Step]:
        given = self._mean, self._std
        numbers = [value for values in given for value in (values * 3)[:3]]
        return _step(native.NORMALIZE, integers=[len(values) for values in given], numbers=numbers)


@dataclass
class Compose(Step):
    """Steps in their order. Where the library can do several in one pass over the picture, it does. The first may be
    Decode: then the sample has the bytes or the path of a file in place of a picture, bytes rather than a path if it has
    both. Only what the steps use is decoded, so damage elsewhere may stay unseen.

    Pixels are those of the steps one by one. But Decode(fast=True) is near them where a Resize follows, as it scales for
    its size."""

    transforms: Sequence[Step | Decode]
    _parts_given: ClassVar[tuple[str, ...]] = ("decode", "_steps")

    def __post_init__(self) -> None:
        self.decode: Decode | None = None
        steps: list[Step] = []
        if not isinstance(self.transforms, Iterable):
            raise InvalidError(f"Compose: {self.transforms!r} is no list of steps")
        for k, step in enumerate(self.transforms):
            if isinstance(step, Compose) and (step.decode is None or k == 0):
                self.decode = self.decode or step.decode
                steps += step._steps
            elif isinstance(step, Decode) and k == 0:
                self.decode = step
            elif isinstance(step, Step) and not isinstance(step, Compose):
                steps.append(step)
            else:
                place = (
                    "must be the first step" if isinstance(step, (Decode, Compose)) else "is no step of stocached.image"
                )
                raise InvalidError(f"Compose: {step!r} {place}")
        self._steps: list[Step] = steps
        self._fold()

    def _fold(self) -> None:
        """Decode, Resize and CenterCrop become one Decode, which decodes less of a file."""
        steps, decode = self._steps, self.decode
        if decode is None or decode.size is not None or decode.short_side is not None or decode.filter != "bilinear":
            return
        if steps and isinstance(steps[0], Resize) and steps[0].max_size is None:
            sides, filter = steps[0]._sides, ("bilinear", "bicubic")[steps[0]._filter]
            if len(sides) == 2:
                self.decode, self._steps = decode.but(size=sides, filter=filter, fit="stretch"), steps[1:]
                return
            size = steps[1]._sides if len(steps) > 1 and isinstance(steps[1], CenterCrop) else None
            size = None if size is None or max(size) > sides[0] else size
            self.decode = decode.but(size=size, short_side=sides[0], filter=filter, fit="crop")
            self._steps = steps[1 if size is None else 2 :]

    def picture(self, data: bytes, name: Any) -> Any:
        """What the steps make of a file, if the first is Decode. name: of the file, for errors."""
        assert self.decode is not None
        opened = self.decode.opened(data, name)
        with steps_of(name):
            return opened.apply(self.in_c(), draw_of(None))

    def in_c(self) -> list[native.Step]:
        return [made for step in self._steps for made in step.in_c()]


def not_a_step(augment: Any) -> str:
    """Names the function of a loader, or of a stage of its pipe, that is no step."""
    for stage in getattr(augment, "maps", ()):
        if not isinstance(stage.function, Step):
            return f"{stage.shown()}{stage.line}"
    return f"augment={one_line(augment)}"


class Staged(Compose):
    """The steps of neighbouring stages of a pipe, as if they were in a Compose. Those of each random stage draw numbers
    of their own. stages: whose numbers each of the transforms draws. of: calls the same stages, in Python."""

    def __init__(self, transforms: Sequence[Step | Decode], stages: Sequence[int], of: Any = None) -> None:
        super().__init__(transforms)
        numbers = [stage for step, stage in zip(transforms, stages) for _ in _flat(step)]
        self._stages = numbers[len(numbers) - len(self._steps) :]  # Decode has taken the first steps
        self._shown = repr(of)
        if of is not None:
            self.seeded, self.where = of.seeded, of.where

    def made(self, sample: Any, seeds: Mapping[int, int]) -> Any:
        """seeds: of the generators of stages."""
        return _changed(sample, self, draw_of_seeds(seeds))

    def in_c(self) -> list[native.Step]:
        made = []
        for step, stage in zip(self._steps, self._stages):
            for one in step.in_c():
                one.stage = stage
                made.append(one)
        return made

    def __repr__(self) -> str:
        return self._shown


def _flat(step: Step | Decode) -> list[Step]:
    return step._steps if isinstance(step, Compose) else [step] if isinstance(step, Step) else []


def go_together(first: Any, second: Any) -> bool:
    """Whether functions of two neighbouring stages may be in one Compose."""
    steps = isinstance(first, (Step, Decode)) and isinstance(second, Step) and getattr(second, "decode", None) is None
    return steps and only_ours(first) and only_ours(second)
