"""Steps of one picture, collected into as few calls of the library as possible.

A step adds itself to the plan. If the library cannot do it in the same call as the steps so far, these run first. So
steps give the same values together and one by one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from ctypes import byref
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.errors import InvalidError
from .._native import _image_header as native
from .._samples.dtypes import BFLOAT16, NUMPY
from .workers import call

Pixels = npt.NDArray[Any]

MOST_PIXELS = 178_956_970  # of a picture, if the user gives no limit; as Pillow

DTYPES = {
    "uint8": native.UINT8, "float32": native.FLOAT32, "float16": native.FLOAT16, "bfloat16": native.BFLOAT16,
}  # fmt: skip
# The items of a result in memory. Those of bfloat16 are their bits.
_ITEMS = (np.dtype(np.uint8), np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.uint16))

_CODES = {np.dtype(item): code for code, item in enumerate((*_ITEMS[:3], NUMPY[BFLOAT16]))}


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_picture(value: Any) -> bool:
    return (isinstance(value, np.ndarray) or is_tensor(value)) and value.ndim == 3


class Plan:
    """pixels: an array or a tensor, height x width x channels or channels x height x width. Where both are possible, an
    array is the former and a tensor the latter. max_pixels: the most that a step may make."""

    def __init__(self, pixels: Any, max_pixels: int = MOST_PIXELS) -> None:
        self._most = max_pixels
        self.tensor = is_tensor(pixels)
        dtype = DTYPES.get(str(pixels.dtype)[len("torch.") :]) if self.tensor else _CODES.get(pixels.dtype)
        if dtype is None:
            raise InvalidError(f"pixels are {pixels.dtype}; they must be one of {', '.join(DTYPES)}")
        chw = pixels.shape[0] in (1, 3) if self.tensor else pixels.shape[2] not in (1, 3)
        if pixels.ndim != 3 or pixels.shape[0 if chw else 2] not in (1, 3) or 0 in pixels.shape:
            raise InvalidError(
                f"pixels have the shape {tuple(pixels.shape)}; pictures have 1 or 3 channels: (height, width, "
                "channels) or (channels, height, width)"
            )
        if self.tensor:
            pixels = (pixels.view(sys.modules["torch"].int16) if dtype == native.BFLOAT16 else pixels).numpy()
        self._begin(np.ascontiguousarray(pixels).view(_ITEMS[dtype]), chw, dtype)

    def _begin(self, pixels: Pixels, chw: bool, dtype: int) -> None:
        """No step is collected now."""
        self._pixels, self._chw, self._dtype = pixels, chw, dtype
        self.channels, height, width = pixels.shape if chw else (pixels.shape[2], *pixels.shape[:2])
        self._how = native.Augment(
            box_width=width, box_height=height, resized_width=width, resized_height=height, width=width, height=height,
            dtype=dtype, layout=native.CHW if chw else native.HWC, divisor=1, std=(1, 1, 1), max_pixels=self._most,
        )  # fmt: skip
        self._waits = self._normalised = False

    @property
    def width(self) -> int:
        return int(self._how.width)

    @property
    def height(self) -> int:
        return int(self._how.height)

    @property
    def dtype(self) -> int:
        """Of the result so far."""
        return int(self._how.dtype)

    @property
    def _resizes(self) -> bool:
        how = self._how
        return bool(how.box_width != how.resized_width or how.box_height != how.resized_height)

    def _outside(self, x: int, y: int, width: int, height: int) -> bool:
        """Whether a box reaches outside of the picture as it is now."""
        return x < 0 or y < 0 or x + width > self.width or y + height > self.height

    def _check(self, width: int, height: int) -> None:
        """Whether a step may make a picture of these sides, even if no call keeps all of it."""
        if width * height > self._most:
            raise InvalidError(
                f"a step makes a picture of {width} x {height}: {width * height} pixels; max_pixels is {self._most}, and "
                "Decode(max_pixels=) as the first step changes it"
            )

    def _before_boxes(self) -> None:
        """Boxes come before all else in a call."""
        how = self._how
        if how.flip or how.adjust[0] or how.erase or how.dtype != self._dtype or self._normalised:
            self.run()

    def crop(self, x: int, y: int, width: int, height: int, fill: Sequence[int] = (0, 0, 0)) -> None:
        """What is outside is fill."""
        if not self._outside(x, y, width, height) and (width, height) == (self.width, self.height):
            return
        self._check(width, height)
        self._before_boxes()
        outside = self._outside(x, y, width, height)
        if outside and self._waits:
            self.run()
        how = self._how
        if outside:
            how.fill[:] = fill
        if self._resizes:
            how.window_x += x
            how.window_y += y
        else:
            how.box_x += x
            how.box_y += y
            how.box_width = how.resized_width = width
            how.box_height = how.resized_height = height
        how.width, how.height = width, height
        self._waits = True

    def resize(self, height: int, width: int, filter: int = native.BILINEAR) -> None:
        if (height, width) == (self.height, self.width):
            return
        if self.dtype != native.UINT8:
            raise InvalidError("only uint8 pictures can be resized: put the step before ToDtype")
        self._check(width, height)
        self._before_boxes()
        rows, columns = self._pixels.shape[1:] if self._chw else self._pixels.shape[:2]
        how = self._how
        outside = how.box_x < 0 or how.box_y < 0
        outside = outside or how.box_x + how.box_width > columns or how.box_y + how.box_height > rows
        if self._resizes or outside:
            self.run()
        how = self._how
        how.resized_width = how.width = width
        how.resized_height = how.height = height
        how.filter = filter
        self._waits = True

    def flip(self) -> None:
        if self._how.erase:
            self.run()
        self._how.flip ^= 1
        self._waits = True

    def adjust(self, adjustments: Sequence[tuple[int, float]]) -> None:
        """At most four, with a factor each, in this order."""
        if self.dtype != native.UINT8:
            raise InvalidError("only the colours of uint8 pictures can be adjusted: put the step before ToDtype")
        if self._how.adjust[0] or self._how.erase:
            self.run()
        for k, (what, factor) in enumerate(adjustments):
            self._how.adjust[k], self._how.factor[k] = what, factor
            self._waits = True

    def to_dtype(self, dtype: int, scale: bool) -> None:
        if dtype == self.dtype:
            return
        if self.dtype not in (native.UINT8, native.FLOAT32) or dtype == native.UINT8:
            raise InvalidError(
                "ToDtype makes float32, float16 or bfloat16 of uint8, and float16 or bfloat16 of float32"
            )
        if self._how.erase:
            self.run()
        if self.dtype == native.UINT8:
            self._how.divisor = 255 if scale else 1
        self._how.dtype = dtype
        self._waits = True

    def normalise(self, mean: Sequence[float], std: Sequence[float]) -> None:
        if self.dtype not in (native.FLOAT32, native.FLOAT16):
            raise InvalidError(
                "Normalize needs a picture of float32 or float16: put ToDtype('float32', scale=True) first"
            )
        if self._how.erase or self._normalised or (self._waits and self.dtype == native.FLOAT16):
            self.run()
        for name, values in (("mean", mean), ("std", std)):
            if len(values) not in (1, self.channels):
                raise InvalidError(f"{name} has {len(values)} values; the picture has {self.channels} channels")
            getattr(self._how, name)[: self.channels] = list(values) * (self.channels // len(values))
        self._normalised = self._waits = True

    def erase(self, x: int, y: int, width: int, height: int, values: Sequence[float] | None, seed: int) -> None:
        """values: None for normal numbers that depend on the seed."""
        if self._how.erase:
            self.run()
        how = self._how
        how.erase_x, how.erase_y, how.erase_width, how.erase_height = x, y, width, height
        how.erase = native.ERASE_RANDOM if values is None else native.ERASE_VALUE
        how.erase_value[:], how.erase_seed = values or (0, 0, 0), seed
        self._waits = True

    def layout(self, chw: bool) -> None:
        """Of the result."""
        if chw != self._chw:
            self._how.layout, self._waits = native.CHW if chw else native.HWC, True

    def result(self) -> Any:
        """The picture, as an array or a tensor, as the first one was."""
        self.run()
        if not self.tensor:
            return self._pixels.view(NUMPY[BFLOAT16]) if self._dtype == native.BFLOAT16 else self._pixels
        import torch

        if self._dtype == native.BFLOAT16:
            return torch.from_numpy(self._pixels.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(self._pixels)

    def run(self) -> None:
        """Does the steps so far."""
        if not self._waits:
            return
        how, chw = self._how, self._how.layout == native.CHW
        if self._dtype == native.UINT8:
            shape = (self.channels, self.height, self.width) if chw else (self.height, self.width, self.channels)
            done = np.empty(shape, _ITEMS[how.dtype])
            rows, columns = self._pixels.shape[1:] if self._chw else self._pixels.shape[:2]
            layout = native.CHW if self._chw else native.HWC
            picture = native.Picture(_address(self._pixels), columns, rows, self.channels, layout)
            call(native.augment, "augment", byref(picture), byref(how), _address(done), done.nbytes)
        else:
            done = np.ascontiguousarray(self._floats() if chw else self._floats().transpose(1, 2, 0))
        self._begin(done, chw, how.dtype)

    def _floats(self) -> Pixels:
        """The steps for a picture that has floats already: the library has none for it. In CHW."""
        how = self._how
        source = self._pixels if self._chw else self._pixels.transpose(2, 0, 1)
        left, top = max(how.box_x, 0), max(how.box_y, 0)
        inside = source[:, top : max(how.box_y + self.height, 0), left : max(how.box_x + self.width, 0)]
        if inside.shape == (self.channels, self.height, self.width):
            done = inside.copy()
        else:
            fill = np.array(how.fill[: self.channels]).reshape(-1, 1, 1)
            done = np.empty((self.channels, self.height, self.width), source.dtype)
            done[:] = _of_dtype(fill.astype(np.float32), self._dtype)
            if inside.size:
                y, x = top - how.box_y, left - how.box_x
                done[:, y : y + inside.shape[1], x : x + inside.shape[2]] = inside
        if how.flip:
            done = done[:, :, ::-1].copy()
        if self._normalised:
            mean, std = (np.array(v[: self.channels], done.dtype).reshape(-1, 1, 1) for v in (how.mean, how.std))
            done = (done - mean) / std
        if how.dtype != self._dtype:
            done = _of_dtype(done, how.dtype)
        if how.erase:
            x, y, width, height = how.erase_x, how.erase_y, how.erase_width, how.erase_height
            patch = Plan(np.zeros((height, width, self.channels), np.uint8))
            patch._how.dtype = how.dtype
            patch.erase(
                0, 0, width, height, list(how.erase_value) if how.erase == native.ERASE_VALUE else None, how.erase_seed
            )
            patch.layout(True)
            patch.run()
            done[:, y : y + height, x : x + width] = patch._pixels
        return done


def _of_dtype(values: Pixels, dtype: int) -> Pixels:
    """float32 as items of a dtype, rounded to the nearest."""
    if dtype != native.BFLOAT16:
        return values.astype(_ITEMS[dtype])
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _address(array: Pixels) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
