"""Pictures: from a file to a row of a batch. docs/guides/images.md

    from stocached import image, Loader

    picture = image.decode("cat.jpg", size=224)
    augment = image.Compose([image.RandomResizedCrop(224), image.RandomHorizontalFlip()])
    loader = Loader(image.Folder("train", short_side=256), 64, shuffle=True, seed=1, size="8GiB", augment=augment)

Needs NumPy alone for JPEG, PNG and WebP files, and Pillow for others."""

from __future__ import annotations

from ._image.conversion import convert
from ._image.decoding import Decode, decode
from ._image.errors import DecodeError
from ._image.folder import Folder
from ._image.shards import Shards
from ._image.steps import (
    CenterCrop,
    ColorJitter,
    Compose,
    Normalize,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToDtype,
)

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "Decode",
    "DecodeError",
    "Folder",
    "Normalize",
    "RandomCrop",
    "RandomErasing",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Resize",
    "Shards",
    "ToDtype",
    "convert",
    "decode",
]
