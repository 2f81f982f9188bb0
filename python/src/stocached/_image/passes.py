"""Steps of one picture. The library plans them as few passes over the picture, so steps give the same values together
and one by one. It does the passes over uint8."""

from __future__ import annotations

import sys
from ctypes import byref, c_uint32
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.array_addresses import address_of
from .._common.errors import InvalidError
from .._native import _image_header as native
from .._samples.dtypes import BFLOAT16, NUMPY
from .draws import Draw
from .workers import attempt, call

Pixels = npt.NDArray[Any]

MOST_PIXELS = native.MAX_PIXELS  # limit of a picture, if the user gives none

DTYPES: dict[str, int] = {
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


class Picture:
    """pixels: an array or a tensor, height x width x channels or channels x height x width. Where both are possible, an
    array is the former and a tensor the latter. max_pixels: the most that a step may make."""

    def __init__(self, pixels: Any, max_pixels: int = MOST_PIXELS) -> None:
        tensor = is_tensor(pixels)
        dtype = DTYPES.get(str(pixels.dtype)[len("torch.") :]) if tensor else _CODES.get(pixels.dtype)
        if dtype is None:
            raise InvalidError(f"pixels are {pixels.dtype}; they must be one of {', '.join(DTYPES)}")
        chw = pixels.shape[0] in (1, 3) if tensor else pixels.shape[2] not in (1, 3)
        if pixels.ndim != 3 or pixels.shape[0 if chw else 2] not in (1, 3) or 0 in pixels.shape:
            raise InvalidError(
                f"pixels have the shape {tuple(pixels.shape)}; pictures have 1 or 3 channels: (height, width, "
                "channels) or (channels, height, width)"
            )
        if tensor:
            pixels = (pixels.view(sys.modules["torch"].int16) if dtype == native.BFLOAT16 else pixels).numpy()
        self._pixels: Pixels = np.ascontiguousarray(pixels).view(_ITEMS[dtype])
        self._set(max_pixels, tensor, chw, dtype)

    def _set(self, max_pixels: int, tensor: bool, chw: bool, dtype: int) -> None:
        self._most, self._tensor, self._chw, self.dtype = max_pixels, tensor, chw, dtype

    @property
    def sides(self) -> tuple[int, ...]:
        """Height and width."""
        return self._pixels.shape[1:] if self._chw else self._pixels.shape[:2]

    @property
    def _channels(self) -> int:
        return int(self._pixels.shape[0 if self._chw else 2])

    def plan(self, steps: list[native.Step], draw: Draw) -> list[native.Augment]:
        """The passes that do these steps."""
        failed: list[BaseException] = []

        def number(context: Any, stage: int) -> float:
            try:
                return float(draw(stage))
            except BaseException as error:  # C cannot pass it on
                failed.append(error)
                return 0.0

        count, passes = c_uint32(), (native.Augment * (2 * len(steps) + 1))()
        request = native.Request(
            *self.sides[::-1], self._channels, native.CHW if self._chw else native.HWC, self.dtype, 0, self._most,
            len(steps), (native.Step * len(steps))(*steps), native.Draw(number),
        )  # fmt: skip
        code, message = attempt(native.plan, byref(request), passes, byref(count))
        if failed:
            raise failed[0]
        if code:
            more = ", and Decode(max_pixels=) as the first step changes it" if "max_pixels" in message else ""
            raise InvalidError(message + more)
        return list(passes[: count.value])

    def apply(self, steps: list[native.Step], draw: Draw) -> Any:
        """The picture after these steps: an array or a tensor, as it was."""
        for how in self.plan(steps, draw):
            if self.dtype == native.UINT8:
                self._pixels = self._pass(how)
            else:
                done = self._floats(how)
                self._pixels = np.ascontiguousarray(done if self._chw else done.transpose(1, 2, 0))
            self.dtype = how.dtype
        if not self._tensor:
            return self._pixels.view(NUMPY[BFLOAT16]) if self.dtype == native.BFLOAT16 else self._pixels
        import torch

        if self.dtype == native.BFLOAT16:
            return torch.from_numpy(self._pixels.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(self._pixels)

    def _pass(self, how: native.Augment) -> Pixels:
        """A pass of the library over the uint8 picture."""
        return _pass(self._pixels, how)

    @staticmethod
    def _room(how: native.Augment, channels: int) -> Pixels:
        """For the result of a pass."""
        chw = how.layout == native.CHW
        return np.empty(
            (channels, how.height, how.width) if chw else (how.height, how.width, channels), _ITEMS[how.dtype]
        )

    def _floats(self, how: native.Augment) -> Pixels:
        """A pass over a picture that has floats already: the library has none for it. In CHW."""
        channels, width, height = self._channels, how.width, how.height
        source = self._pixels if self._chw else self._pixels.transpose(2, 0, 1)
        left, top = max(how.box_x, 0), max(how.box_y, 0)
        inside = source[:, top : max(how.box_y + height, 0), left : max(how.box_x + width, 0)]
        if inside.shape == (channels, height, width):
            done = inside.copy()
        else:
            fill = np.array(how.fill[:channels], np.float32).reshape(-1, 1, 1)
            done = np.empty((channels, height, width), source.dtype)
            done[:] = _of_dtype(fill, self.dtype)
            if inside.size:
                y, x = top - how.box_y, left - how.box_x
                done[:, y : y + inside.shape[1], x : x + inside.shape[2]] = inside
        if how.flip:
            done = done[:, :, ::-1].copy()
        if any(how.mean) or set(how.std) != {1}:
            mean, std = (np.array(v[:channels], done.dtype).reshape(-1, 1, 1) for v in (how.mean, how.std))
            done = (done - mean) / std
        if how.dtype != self.dtype:
            done = _of_dtype(done, how.dtype)
        x, y, width, height = how.erase_x, how.erase_y, how.erase_width, how.erase_height
        if how.erase and width and height:
            patch = native.Augment.from_buffer_copy(how)
            patch.box_x = patch.box_y = patch.erase_x = patch.erase_y = 0
            patch.box_width = patch.resized_width = patch.width = width
            patch.box_height = patch.resized_height = patch.height = height
            patch.layout = native.CHW
            done[:, y : y + height, x : x + width] = _pass(np.zeros((channels, height, width), np.uint8), patch)
        return done


def _pass(pixels: Pixels, how: native.Augment) -> Pixels:
    """A pass of the library over a uint8 picture of the result's layout."""
    chw = how.layout == native.CHW
    channels, rows, columns = pixels.shape if chw else (pixels.shape[2], *pixels.shape[:2])
    done = Picture._room(how, channels)
    picture = native.Picture(address_of(pixels), columns, rows, channels, how.layout)
    call(native.augment, "augment", byref(picture), byref(how), address_of(done), done.nbytes)
    return done


def _of_dtype(values: Pixels, dtype: int) -> Pixels:
    """float32 as items of a dtype, rounded to the nearest."""
    if dtype != native.BFLOAT16:
        return values.astype(_ITEMS[dtype])
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
