"""From torchvision's ImageFolder and its transforms to Folder and steps. It imports no torchvision."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from .._common.errors import InvalidError
from .._common.numbers import whole
from .._common.one_line import one_line
from .._native import _image_header as native
from .decoding import Decode
from .folder import Decoded, Folder
from .parameters import LONGEST
from .passes import Picture, is_picture
from .steps import (
    CenterCrop,
    ColorJitter,
    Compose,
    Normalize,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    Step,
    ToDtype,
)

_KEPT = (Resize, CenterCrop)  # steps that shrink a picture and are not random
_PLACELESS = (RandomHorizontalFlip, ColorJitter, ToDtype, Normalize)  # these move no pixel but by a flip


class Converted(NamedTuple):
    dataset: Any
    augment: Compose | None

    @property
    def explanation(self) -> str:
        """What is cached, and what is done with each use."""
        folder = getattr(self.dataset, "dataset", self.dataset)  # what a Subset wraps
        steps = [] if self.augment is None else list(self.augment.transforms)
        box = next((step for step in steps if isinstance(step, RandomResizedCrop)), None)
        kept = "what the server keeps" if getattr(folder, "served", False) else folder.transform or folder.decode
        why = ""
        if box is not None and isinstance(kept, Decode) and kept.size is None:
            why = f" {type(box).__name__} takes its boxes from the whole picture, so the cache needs all of it: "
            why += (
                f"as large as the file. The default is a short side of {_short_side_for(box)} pixels."
                if kept.short_side is None
                else f"with a short side of {kept.short_side} pixels, also if the file is smaller. A box that is "
                "smaller than the result is less sharp than in a larger file; short_side=None keeps the files' sizes."
            )
        return f"Cached: {kept}.{why} With each use: {', '.join(map(repr, steps)) or 'nothing'}."


def convert(dataset: Any, short_side: int | Literal["auto"] | None = "auto") -> Converted:
    """(dataset, augment) for our loaders, of torchvision's ImageFolder with torchvision's transforms, v1 or v2:
    `DataLoader(dataset, ..., size="8GiB", augment=augment)`. Steps up to the first random one go into the dataset, and
    are cached. Pictures stay uint8 there, (channels, height, width). A Folder, Shards or SourceDataset with such a
    `transform=` may take the place of the ImageFolder; of a SourceDataset all steps go into augment. So may a Subset.

    short_side: of cached pictures from which RandomResizedCrop takes its boxes. "auto": 8/7 of the result's short side,
        as 256 is of 224. A smaller number means the same. None: as large as the file.

    `convert(dataset).explanation` says what is cached. Unlike ImageFolder, Folder applies the EXIF orientation.
    Raises InvalidError, which names the step, if a step has no equal in stocached.image."""
    if short_side is not None and short_side != "auto":
        whole("short_side", short_side, 1, LONGEST)
    if type(dataset).__name__ == "Subset":
        converted = convert(dataset.dataset, short_side)
        return Converted(type(dataset)(converted.dataset, dataset.indices), converted.augment)
    if isinstance(getattr(dataset, "transform", None), Step):
        return Converted(dataset, None)
    served = getattr(dataset, "served", False)
    if served and dataset.blank() is None:
        raise InvalidError("convert: samples of the cache differ in size; let the server decode them (decode:)")
    made = copy.copy(dataset) if served else _ours(dataset)
    steps = list(_steps(dataset.transform, _State(served, _blank(dataset.blank() if served else None))))
    if served:
        made.transform = None
        return Converted(made, Compose(steps) if steps else None)
    first = next((k for k, step in enumerate(steps) if not isinstance(step, _KEPT)), len(steps))
    kept, rest = steps[:first], steps[first:]
    made.decode = made.decode.but(layout="chw")
    box = next((step for step in rest if not isinstance(step, _PLACELESS)), None)
    if not kept and made.decode.keeps_size and isinstance(box, RandomResizedCrop) and short_side is not None:
        least = _short_side_for(box)
        made.decode = Decode(layout="chw", short_side=least if short_side == "auto" else max(short_side, least))
    shrunk = Compose([made.decode, *kept])
    made.transform = shrunk if shrunk._steps else None
    made.decode = shrunk.decode or made.decode
    return Converted(made, Compose(rest) if rest else None)


def convertible(dataset: Any) -> bool:
    """Whether `convert` makes other steps of a dataset's transforms."""
    transform = getattr(dataset, "transform", None)
    if not type(transform).__module__.startswith(_MODULES):
        return False
    try:
        convert(dataset)
    except (InvalidError, AttributeError):  # also of a class of the user's
        return False
    return True


def _ours(dataset: Any) -> Decoded:
    """A Folder of the same samples, or a copy of a dataset of this package."""
    if isinstance(dataset, Decoded):
        if type(dataset).__getitem__ is not Decoded.__getitem__ or dataset.decode.layout != "hwc":
            raise InvalidError(
                f'convert: {type(dataset).__name__} has a __getitem__ of its own, or layout="chw", which transforms of '
                "torchvision do not take in arrays"
            )
        return copy.copy(dataset)
    theirs: Any = sys.modules.get("torchvision.datasets.folder")
    if (
        theirs is None
        or not isinstance(dataset, theirs.ImageFolder)
        or type(dataset).__getitem__ is not theirs.DatasetFolder.__getitem__
        or dataset.loader not in (theirs.default_loader, theirs.pil_loader)
    ):
        raise InvalidError(
            f"convert: {type(dataset).__name__} is no ImageFolder, or has a loader or __getitem__ of its own"
        )
    folder: Folder = object.__new__(Folder)
    Decoded.__init__(folder, None, dataset.target_transform, {})
    for name in ("root", "classes", "class_to_idx", "samples", "imgs", "targets"):
        setattr(folder, name, getattr(dataset, name))
    return folder


def _short_side_for(box: RandomResizedCrop) -> int:
    """Of a picture that is a little larger than what is made of it, as 256 is of 224, which torchvision's programs
    use to validate."""
    return -(-min(box._sides) * 8 // 7)


def _blank(sample: Any) -> Picture:
    """The picture of an empty sample. None: one of a file, which is of any size."""
    values = sample.values() if isinstance(sample, Mapping) else sample if isinstance(sample, tuple) else (sample,)
    return Picture(next((value for value in values if is_picture(value)), np.zeros((1, 1, 3), np.uint8)))


@dataclass
class _State:
    """What a picture is at a step."""

    tensor: bool  # else of Pillow, which always antialiases
    blank: Picture  # a picture after the steps so far; it shows which dtypes they take

    @property
    def floats(self) -> bool:
        return bool(self.blank.dtype != native.UINT8)

    def follow(self, step: Step) -> None:
        """Raises InvalidError if the step does not take such a picture. Whether sizes fit depends on the files."""
        if isinstance(step, RandomErasing):
            step = RandomErasing(1, (1e-9, 1e-9), (1, 1), step.value)  # erases a box without pixels
        if isinstance(step, (RandomErasing, ToDtype, Normalize)):
            self.blank.apply(step.in_c(), lambda stage: 0.0)


def _steps(transform: Any, state: _State) -> Iterator[Step]:
    """Steps that do the same. Raises InvalidError for a step, or an order of steps, without an equal."""
    kind = type(transform)
    if transform is None:
        return
    if not kind.__module__.startswith(_MODULES) or kind.__name__ not in (*_KINDS, *_SEVERAL, *_CONVERSIONS):
        raise InvalidError(
            f"convert: {one_line(transform, 150)} has no equal in stocached.image; these have: "
            f"{', '.join((*_KINDS, *_SEVERAL, *_CONVERSIONS))}{_ELSE}"
        )
    if kind.__name__ in _SEVERAL:
        for one in _SEVERAL[kind.__name__](transform):
            yield from _steps(one, state)
        return
    convert_one = _conversion if kind.__name__ in _CONVERSIONS else _KINDS[kind.__name__]
    try:
        step = convert_one(transform, state)
        if state.floats and isinstance(step, (Resize, RandomResizedCrop, ColorJitter)):
            raise ValueError("it gets floats, and our step takes uint8; put it before ToTensor, ToDtype")
        if step is not None:
            state.follow(step)
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidError(
            f"convert: {one_line(transform, 150)} has no equal in stocached.image: {error}{_ELSE}"
        ) from None
    if step is not None and not (isinstance(step, ToDtype) and step._number == native.UINT8):  # they are uint8 anyway
        yield step


_MODULES = ("torchvision.transforms", "torch.nn.modules.container")
_ELSE = (
    '. To keep it, cache stocached.image.Folder(root, short_side=256, layout="chw"), for results of 224 pixels, and give '
    "all steps after it to the loader as a function: augment="
)
_CONVERSIONS = ("ToTensor", "PILToTensor", "ToPILImage", "ToImage", "ToPureTensor", "Identity")


def _parts_of_preset(preset: Any) -> list[Any]:
    """Of the steps that torchvision's models have for validation."""
    module: Any = sys.modules["torchvision.transforms"]
    return [
        module.Resize(preset.resize_size, preset.interpolation, antialias=preset.antialias),
        module.CenterCrop(preset.crop_size),
        module.ToTensor(),
        module.Normalize(preset.mean, preset.std),
    ]


_SEVERAL: dict[str, Callable[[Any], Any]] = {
    "Compose": lambda t: t.transforms,
    "Sequential": iter,
    "ImageClassification": _parts_of_preset,
}


def _conversion(transform: Any, state: _State) -> Step | None:
    name = type(transform).__name__
    if name == "ToPILImage" and state.floats:
        raise ValueError("it makes whole numbers of floats")
    state.tensor = name != "ToPILImage" and (state.tensor or name != "Identity")
    return ToDtype("float32", scale=True) if name == "ToTensor" else None


def _resizing(transform: Any, state: _State) -> dict[str, Any]:
    antialias = bool(transform.antialias) or not state.tensor
    interpolation = getattr(transform.interpolation, "value", transform.interpolation)
    return {"size": _plain(transform.size), "interpolation": interpolation, "antialias": antialias}


def _plain(size: Any) -> Any:
    """torchvision keeps a single number as a list, or as it is."""
    if isinstance(size, int):
        return size
    if size is None:
        raise ValueError("size=None: give the short side, or (height, width)")
    return size[0] if len(size) == 1 else tuple(size)


def _crop(transform: Any, state: _State) -> RandomCrop:
    padding, fill = transform.padding, transform.fill
    if "v2" in type(transform).__module__ and padding is not None:
        left, right, top, bottom = padding
        padding = (left, top, right, bottom)
    return RandomCrop(_plain(transform.size), padding, transform.pad_if_needed, fill or 0, transform.padding_mode)


def _to_dtype(transform: Any, state: _State) -> ToDtype:
    if not state.tensor:
        raise ValueError("it does nothing with pictures of Pillow: put ToImage before it")
    scale = True if type(transform).__name__ == "ConvertImageDtype" else transform.scale
    return ToDtype(transform.dtype, scale)


def _erasing(transform: Any, state: _State) -> RandomErasing:
    value = "random" if transform.value is None else transform.value
    return RandomErasing(transform.p, tuple(transform.scale), tuple(transform.ratio), value)


_KINDS: dict[str, Callable[[Any, _State], Step]] = {
    "Resize": lambda t, state: Resize(max_size=t.max_size, **_resizing(t, state)),
    "CenterCrop": lambda t, state: CenterCrop(_plain(t.size)),
    "RandomResizedCrop": lambda t, state: RandomResizedCrop(
        scale=tuple(t.scale), ratio=tuple(t.ratio), **_resizing(t, state)
    ),
    "RandomCrop": _crop,
    "RandomHorizontalFlip": lambda t, state: RandomHorizontalFlip(t.p),
    "ColorJitter": lambda t, state: ColorJitter(
        t.brightness or (1, 1), t.contrast or (1, 1), t.saturation or (1, 1), t.hue or 0
    ),
    "RandomErasing": _erasing,
    "ToDtype": _to_dtype,
    "ConvertImageDtype": _to_dtype,
    "Normalize": lambda t, state: Normalize(tuple(t.mean), tuple(t.std)),
}
