"""From the bytes of a file to a uint8 picture of a given size."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import byref
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from .._common.cached import cached_property
from .._common.errors import BYTES, InvalidError
from .._common.numbers import whole
from .._native import _image_header as native
from . import codecs
from .errors import DecodeError, NoDecoderError
from .parameters import LONGEST, fill_of, filter_number, pair
from .passes import MOST_PIXELS, Picture, Pixels
from .samples import FILE, changed
from .workers import OtherKind, call

_FITS = {"stretch": native.STRETCH, "crop": native.CROP, "pad": native.PAD}


def decoder() -> str:
    """What decodes files: a text that differs where pixels may. It is a hint of derived fingerprints."""
    if codecs.pixels():
        return f"pixels {codecs.pixels():016x}"
    try:
        from PIL import __version__
    except ImportError:
        return "none"
    return f"Pillow {__version__}"


def bytes_of(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file. Raises OSError, which names it."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError as error:
        error.filename = error.filename or os.fspath(path)  # errors of reads name none
        raise


def _is_bytes(value: Any) -> bool:
    array = isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype == np.uint8
    return array or isinstance(value, (bytes, bytearray, memoryview))


@dataclass
class Decode:
    """Decodes files: decode(source) -> uint8 picture, red, green and blue.

    source: bytes, an array of them, or a path; or a tuple, list or mapping that has one, which is changed as by Compose.
        In place of bytes, a dict may have {"bytes": ..., "path": ...}, as tables of Hugging Face.
    size: of the result, (height, width), or a number for both. None: as the file, or as short_side says.
    short_side: the length of the short side, before a centre of `size` is cut out, as torchvision's Resize and
        CenterCrop do. None: the shortest for `size`.
    fit: what to do with a picture of another aspect ratio: "crop" cuts out the centre, "pad" puts `fill` around it,
        "stretch" changes its aspect ratio.
    layout: "hwc" is (height, width, channels), "chw" is (channels, height, width).
    filter: "bilinear" or "bicubic", antialiased as Pillow's.
    fast: a JPEG file may be scaled by 1/2, 1/4 or 1/8 while it is decoded.
    max_pixels: larger files are refused before they take memory, and so are larger pictures that this step and those
        after it in a Compose make of them. None: 178,956,970, as Pillow.

    The C library decodes JPEG, PNG and WebP files, Pillow all others. If the package was built without decoders, Pillow
    decodes all files to the same pixels, but for roundings of lossy ones, and `fast` changes nothing. The EXIF
    orientation is applied, unlike in torchvision. Samples of 16 bits become their high byte.
    Raises DecodeError, which names the file, or OSError for a file that cannot be read."""

    size: int | Sequence[int] | None = None
    short_side: int | None = None
    fit: str = "crop"
    layout: str = "hwc"
    filter: Any = "bilinear"
    fill: int | Sequence[int] = 0
    fast: bool = False
    max_pixels: int | None = None
    _parts_given: ClassVar[tuple[str, ...]] = ()  # for `only_ours`

    def __post_init__(self) -> None:
        self._sides = None if self.size is None else pair(self.size)
        if self.fit not in _FITS or self.layout not in ("hwc", "chw"):
            raise InvalidError(
                f"fit={self.fit!r}, layout={self.layout!r}: fit is {', '.join(_FITS)}, layout is hwc, chw"
            )
        if self.short_side is not None:
            whole("short_side", self.short_side, 1, LONGEST)
            if self._sides is not None and (self.fit != "crop" or max(self._sides) > self.short_side):
                raise InvalidError(f"short_side={self.short_side} goes with fit='crop' and a size inside it, or none")
        self._filter, self._chw = filter_number(self.filter, name="filter"), self.layout == "chw"
        self._fill = fill_of(self.fill)
        if self.fast not in (False, True):
            raise InvalidError(f"fast={self.fast!r} is neither True nor False")
        self._most = MOST_PIXELS if self.max_pixels is None else whole("max_pixels", self.max_pixels, 1)
        height, width = self._sides or (0, 0)
        least = max(height * width, (self.short_side or 0) ** 2)
        if least > self._most:
            raise InvalidError(
                f"size={self.size!r}, short_side={self.short_side!r}: pictures have at least {least} pixels; max_pixels is "
                f"{self._most}"
            )
        codecs.warn_if_missing()

    @property
    def keeps_size(self) -> bool:
        """Whether pictures have the size of their files."""
        return self.size is None and self.short_side is None

    def but(self, **changes: Any) -> Decode:
        """A copy with other settings."""
        return dataclasses.replace(self, **changes)

    @staticmethod
    def accepts(value: Any) -> bool:
        """Whether a value is the bytes or the path of a file."""
        return _is_bytes(value) or isinstance(value, (str, os.PathLike))

    @staticmethod
    def chosen(values: Iterable[Any]) -> Callable[[Any], bool]:
        """What tells the file among the values of a sample: a text beside bytes is a key or a class, and no path."""
        return _is_bytes if any(map(_is_bytes, values)) else Decode.accepts

    def __call__(self, source: Any) -> Any:
        if isinstance(source, (Mapping, tuple, list)):
            return changed(source, self.chosen, lambda file: self.decode(*self.read(file)), self, FILE)
        return self.decode(*self.read(source))

    def read(self, source: Any) -> tuple[bytes, str]:
        """The bytes of a file, and its name for errors."""
        if isinstance(source, (str, os.PathLike)):
            return bytes_of(source), os.fspath(source)
        if not self.accepts(source):
            raise TypeError(f"a {type(source).__name__} is no file: give bytes, a uint8 array of them, or a path")
        return bytes(source), BYTES

    def decode(self, data: bytes, name: Any) -> npt.NDArray[np.uint8]:
        """name: of the file, for errors; its text is asked for then."""
        if codecs.pixels():
            with contextlib.suppress(OtherKind):
                return self._by_c(data, name)
        return self._by_pillow(data, name)

    def picture(self, data: bytes, name: Any) -> npt.NDArray[np.uint8]:
        """What this step makes of a file, as `Compose.picture`."""
        return self.decode(data, name)

    def made(self, pixels: Any) -> Picture:
        """A picture that this step has made, for the steps after it."""
        picture = Picture(pixels, self._most)
        picture._chw = self._chw  # known, also of 1 or 3 columns
        return picture

    def opened(self, data: bytes, name: Any) -> Picture:
        """What this step makes of a file, for the steps after it. It is decoded for their first pass, if it can be."""
        if self._sides is None and codecs.pixels():
            with contextlib.suppress(OtherKind):
                return _OfFile(self, data, name)
        return self.made(self.decode(data, name))

    def in_c(self, width: int, height: int) -> native.Decode:
        """The same for the C library, for a result of this size. 0 x 0: of a size that C finds out."""
        fit, short_side = _FITS[self.fit], self.short_side or 0
        if self._sides is None and width:
            fit, short_side = native.STRETCH, 0
        return native.Decode(
            width, height, short_side, fit, self._filter, native.CHW if self._chw else native.HWC, self.fast,
            self._fill, 0, self._most,
        )  # fmt: skip

    def _check(self, width: int, height: int, name: Any) -> None:
        if width * height > self._most:
            raise DecodeError(
                f"the picture is {width} x {height}: {width * height} pixels; max_pixels is {self._most}", name
            )

    def _target(self, width: int, height: int, name: Any) -> native.Target:
        """Where a picture of this size goes."""
        target = native.Target()
        rows, columns = self._sides or (0, 0)
        call(native.target, name, width, height, byref(self.in_c(columns, rows)), byref(target))
        return target

    def _by_c(self, data: bytes, name: Any) -> npt.NDArray[np.uint8]:
        height, width = self._sides or self.sides_of(data, name)
        how = self.in_c(width, height)
        made = np.empty((3, height, width) if self._chw else (height, width, 3), np.uint8)
        call(native.decode, name, data, len(data), byref(how), made.ctypes.data, made.nbytes)
        return made

    def sides_of(self, data: bytes, name: Any) -> tuple[int, int]:
        """Height and width of a file's picture, in a result of no given size."""
        info = native.Info()
        call(native.read_info, name, data, len(data), byref(info))
        target = self._target(info.width, info.height, name)
        return target.height, target.width

    def _by_pillow(self, data: bytes, name: Any) -> npt.NDArray[np.uint8]:
        # The result has been checked. What it is cut out of may be longer: no call keeps it.
        pixels = self._opened(data, name)
        rows, columns = pixels.shape[:2]
        target = self._target(columns, rows, name)
        height, width = self._sides or (target.height, target.width)
        left, top = target.x - target.window_x, target.y - target.window_y  # corner of the padding
        padding = left, top, width - target.resized_width - left, height - target.resized_height - top
        resize = native.Step(native.RESIZE, self._filter, target.resized_height, target.resized_width)
        crop = native.Step(native.RANDOM_CROP, 0, height, width, (*padding, 0, *self._fill))  # it has one place
        made: Pixels = Picture(pixels, max(self._most, MOST_PIXELS)).apply([resize, crop], lambda stage: 0.0)
        return np.ascontiguousarray(made.transpose(2, 0, 1)) if self._chw else made

    def _opened(self, data: bytes, name: Any) -> Pixels:
        """The whole picture of a file."""
        try:
            from PIL import Image, ImageOps
        except ImportError:
            others = "no JPEG, PNG or WebP file; other formats need Pillow:"
            why = others if codecs.pixels() else f"{codecs.missing()}. Or:"
            raise NoDecoderError(f"{why} pip install pillow", name) from None
        try:
            with Image.open(io.BytesIO(data)) as picture:
                self._check(*picture.size, name)
                picture.load()
                with contextlib.suppress(Exception):  # damaged EXIF data turn nothing; Pillow raises their error once
                    picture.getexif()
                turned = ImageOps.exif_transpose(picture)
                deep = turned.mode == "I" and picture.format == "PNG"  # older versions of Pillow give this mode
                if deep or turned.mode.startswith("I;16"):  # grey of 16 bits, of which Pillow's RGB has the low ones
                    return np.repeat((np.array(turned) >> 8).astype(np.uint8)[..., None], 3, 2)
                return np.array(turned.convert("RGB"))
        except (MemoryError, DecodeError):
            raise
        except Image.DecompressionBombError as error:
            raise DecodeError(self._beyond_pillow(str(error)), name) from error
        except Exception as error:  # Pillow's decoders raise many kinds of errors
            why = "no picture, or of an unknown format" if "cannot identify" in str(error) else str(error)
            raise DecodeError(why, name) from error

    def _beyond_pillow(self, text: str) -> str:
        """What to say of a picture that Pillow does not open. It has a limit of its own, for the whole program."""
        pixels, limit = (int(number) for number in re.findall(r"\d+", text)[:2])
        if pixels > self._most:
            return f"the picture has {pixels} pixels; max_pixels is {self._most}"
        return (
            f"the picture has {pixels} pixels, and Pillow opens at most {limit}: set PIL.Image.MAX_IMAGE_PIXELS to half "
            "of what you allow, in the program and in its worker processes"
        )


class _OfFile(Picture):
    """The picture of a file. Its first pass decodes what that uses."""

    def __init__(self, decode: Decode, data: bytes, name: Any) -> None:
        self._set(decode._most, False, decode._chw, native.UINT8)
        self._decode, self._data, self._name = decode, data, name
        self._sides = decode.sides_of(data, name)

    @cached_property
    def _pixels(self) -> Pixels:  # type: ignore[override]  # a pass puts its result in its place
        return self._decode.decode(self._data, self._name)

    @property
    def _is_file(self) -> bool:
        return "_pixels" not in vars(self)

    @property
    def sides(self) -> tuple[int, ...]:
        return self._sides if self._is_file else super().sides

    @property
    def _channels(self) -> int:
        return 3

    def _pass(self, how: native.Augment) -> Pixels:
        if not self._is_file:
            return super()._pass(how)
        made, decode, data = self._room(how, 3), self._decode.in_c(0, 0), self._data
        call(native.augment_file, self._name, data, len(data), byref(decode), byref(how), made.ctypes.data, made.nbytes)
        return made


def decode(
    source: Any,
    size: int | Sequence[int] | None = None,
    *,
    short_side: int | None = None,
    fit: str = "crop",
    layout: str = "hwc",
    filter: Any = "bilinear",
    fill: int | Sequence[int] = 0,
    fast: bool = False,
    max_pixels: int | None = None,
) -> npt.NDArray[np.uint8]:
    """A file as a uint8 picture, red, green and blue. The arguments are those of `Decode`."""
    how = Decode(size, short_side, fit, layout, filter, fill, fast, max_pixels)
    return how.decode(*how.read(source))
