"""What worker threads of a loader do in C with the samples of a dataset: read, decode, store, augment
(docs/spec/image.md, Pipelines)."""

from __future__ import annotations

import ctypes
import os
import random
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.errors import InvalidError, UnsupportedError
from .._common.one_line import one_line
from .._common.subsets import as_array
from .._native import _image_header as native
from .._samples import dtypes
from .._samples.batch_layout import Layout
from .._samples.schema import Field
from . import codecs
from .decoding import Decode
from .draws import draw_of
from .passes import DTYPES
from .steps import Compose
from .workers import Memory

_ROWS = {"uint8": np.uint8, "float32": np.float32, "float16": np.float16}
BEFORE = (native.RESIZE, native.CENTER_CROP)  # steps that C does before the cache


PLACE = np.dtype(native.Place)
_STAMP = np.dtype(native.Stamp)


class Descriptors:
    """Files that stay open, for all threads. C opens them."""

    def __init__(self, files: int) -> None:
        self.numbers = np.zeros(files, np.int32)  # 1 + the descriptor

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        for number in self.numbers[self.numbers > 0].tolist():
            close(number - 1)


@dataclass
class Files:
    """The files of samples, and where samples lie in them."""

    made_of: list[Any]  # what the dataset had when this was made
    paths: bytes  # each ends with a NUL
    path_at: npt.NDArray[np.uint64]
    places: npt.NDArray[Any]
    labelled: bool = True
    stamps: npt.NDArray[Any] | None = None  # files with another one are refused
    descriptors: Descriptors | None = None  # None: no file stays open

    @classmethod
    def of(cls, samples: Sequence[tuple[str, int]]) -> Files:
        """Of samples that have a file each, and a label that is known."""
        try:
            pairs = [(path, label) for path, label in samples]
            names = [os.fsencode(path) for path, _ in pairs]
            labels = np.array([label for _, label in pairs], np.int64)
        except (TypeError, ValueError, OverflowError) as error:
            raise UnsupportedError(f"samples are no pairs of a path and a number: {error}") from error
        if {type(label) for _, label in pairs} - {int}:
            raise UnsupportedError("labels are no integers: make their values int")
        places = np.zeros(len(pairs), PLACE)
        places["at"], places["label"], places["file"] = -1, labels, np.arange(len(pairs))
        return cls(pairs, *_joined(names), places)

    @classmethod
    def of_shards(
        cls, shards: list[str], stamps: list[tuple[int, int]], places: npt.NDArray[Any], labelled: bool, most_open: int
    ) -> Files:
        """Of files that hold several samples each. C keeps them open if there are at most most_open."""
        descriptors = Descriptors(len(shards)) if len(shards) <= most_open else None
        names = [os.fsencode(path) for path in shards]
        return cls(list(shards), *_joined(names), places, labelled, np.array(stamps, _STAMP), descriptors)

    def subset(self, indices: Sequence[int]) -> Files:
        """UnsupportedError: these are no indices of samples."""
        return replace(self, places=self.places[as_array(indices, len(self.places))])

    @property
    def in_c(self) -> dict[str, Any]:
        """Members of the pipeline, which refer to this object."""
        numbers = None if self.descriptors is None else self.descriptors.numbers
        return {
            "paths": self.paths,
            "path_at": _pointer(self.path_at, ctypes.c_uint64),
            "stamps": _pointer(self.stamps, native.Stamp),
            "descriptors": _pointer(numbers, ctypes.c_int32),
            "places": _pointer(self.places, native.Place),
            "files": len(self.path_at),
            "samples": len(self.places),
            "labelled": self.labelled,
        }


def _joined(names: list[bytes]) -> tuple[bytes, npt.NDArray[np.uint64]]:
    """The paths one after the other, and where each begins."""
    path_at = np.zeros(len(names) + 1, np.uint64)
    np.cumsum([len(name) + 1 for name in names], out=path_at[1:])
    return b"\0".join(names) + b"\0", path_at[:-1]


def _pointer(array: npt.NDArray[Any] | None, kind: Any) -> Any:
    return None if array is None else ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))


# Of datasets that loaders read. Not an attribute: derived fingerprints and pickles have those.
_files: weakref.WeakKeyDictionary[Any, Files] = weakref.WeakKeyDictionary()


def files_of(dataset: Any, made_of: list[Any], make: Callable[[list[Any]], Files]) -> Files:
    """The files of a dataset, made again if what they are made of has changed: programs may change lists of a dataset,
    so each epoch of a loader looks."""
    files = _files.get(dataset)
    if files is None or files.made_of != made_of:
        files = _files[dataset] = make(made_of)
    return files


def blank_pictures(decoding: Decode | Compose) -> list[Any]:
    """Empty pictures after the steps: of each size, if the decoder makes one size, else of two sizes of many."""
    decode = decoding if isinstance(decoding, Decode) else decoding.decode
    assert decode is not None
    sizes = [decode._sides] if decode._sides else []
    if not sizes:
        short = decode.short_side or 480
        sizes = [(short, short + short // 3 + 1), (short + short // 3 + 1, short)]
    pictures = [np.zeros((3, *size) if decode._chw else (*size, 3), np.uint8) for size in sizes]
    if isinstance(decoding, Decode):
        return pictures
    return [decode.made(picture).apply(decoding.in_c(), draw_of(random.Random(0))) for picture in pictures]


class Pipeline:
    """Immutable; all workers of a loader use one."""

    def __init__(
        self,
        files: Files,
        decoding: Decode | Compose,
        augment: list[native.Step],
        fields: Sequence[Field],
        sample_bytes: int,
        encoded: bool,
        blanks: list[Any] | None = None,
        sample: Callable[[Any, list[Any]], Any] | None = None,
        augment_decodes: Compose | None = None,
    ) -> None:
        """decoding: a Compose begins with Decode. fields, sample_bytes: of the cache, if there is one. sample_bytes 0:
        samples vary in size. encoded: the cache has the bytes of files. blanks: as the method; None: sample makes
        them, as that of `Decoded`. augment_decodes: augment= of the loader, if it begins with Decode.

        Raises UnsupportedError if samples of the cache are neither a picture and a label nor a picture alone. Also if
        the decoding has other steps than those of BEFORE, or if C has to decode and was built without decoders."""
        kept = [] if isinstance(decoding, Decode) else decoding.in_c()
        cached = bool(fields) and not encoded  # pictures
        if cached and any(step.kind not in BEFORE for step in kept):
            raise UnsupportedError(
                f"{one_line(decoding, 150)} has other steps than Resize and CenterCrop before the cache: move them to augment="
            )
        decode = decoding if isinstance(decoding, Decode) else decoding.decode
        assert decode is not None
        self._files, self._decode, self._fixed = files, decode, sample_bytes > 0
        self._decoding, self._blanks = decoding, blanks
        self._sample = sample
        self.augment = augment_decodes  # the loader's function; blanks are after it then
        if not fields and decode._sides is None:
            encoded = True  # C decodes only the box of a picture that the steps use
        if (encoded or self.loads) and not codecs.pixels():
            raise UnsupportedError(codecs.missing())
        steps = kept + augment
        self._steps = (native.Step * len(steps))(*steps)
        height, width = decode._sides or (0, 0)
        self._how = native.Pipeline(
            struct_bytes=ctypes.sizeof(native.Pipeline),
            decode=decode.in_c(width, height), encoded=encoded, extents=not self._fixed,
            step_count=len(steps), before_count=len(kept) if cached else 0, steps=self._steps, **files.in_c,
        )  # fmt: skip
        if fields:
            self._take_fields(fields, sample_bytes, encoded)

    def _take_fields(self, fields: Sequence[Field], sample_bytes: int, encoded: bool) -> None:
        """Checks that the cache has what samples have, and notes where it lies."""
        uint8 = dtypes.CODES["uint8"]  # bytes lie in the cache as an array of it
        codes = [uint8 if encoded and field.code == dtypes.CODES["bytes"] else field.code for field in fields]
        kinds = [(code, len(field.shape)) for code, field in zip(codes, fields)]
        wanted = [(uint8, 1 if encoded else 3), (dtypes.CODES["int64"], 0)]
        if kinds != wanted[: self._parts]:
            raise UnsupportedError(f"samples of the cache are ({', '.join(map(str, fields))}), not {self._described}")
        picture = fields[0]
        if not encoded:
            chw, shape = self._decode._chw, [dim or 0 for dim in picture.shape]  # 0: any
            if shape[0 if chw else 2] not in (0, 3):
                raise UnsupportedError(f"pictures of the cache are {picture}; the decoder's have {self._decode.layout}")
            self._how.picture_height, self._how.picture_width = shape[1:] if chw else shape[:2]
        if self._fixed:
            self._how.picture_at, self._how.label_at, self._how.sample_bytes = (
                picture.offset, fields[-1].offset, sample_bytes
            )  # fmt: skip

    @property
    def _parts(self) -> int:
        return 2 if self._files.labelled else 1

    @property
    def _described(self) -> str:
        return "a picture and a label" if self._files.labelled else "a picture alone"

    @property
    def loads(self) -> bool:
        """Whether C loads samples that are not in the cache."""
        return len(self._files.places) > 0

    @property
    def copies(self) -> bool:
        """Whether C needs a copy of a cached sample: a decoder must not read bytes that change."""
        return bool(self._how.encoded)

    def blanks(self) -> list[Any]:
        """Samples with empty pictures, as augment= gets them. Raises InvalidError if a step does not fit them."""
        if self._blanks is not None:
            return self._blanks
        assert self._sample is not None
        labels = [0] if self._files.labelled else []
        return [self._sample(picture, labels) for picture in blank_pictures(self.augment or self._decoding)]

    def worker(self, layout: Layout) -> Worker:
        """A worker that makes rows of this layout. UnsupportedError: it cannot."""
        columns = layout.columns
        if [column.leaf for column in columns] != list(range(self._parts)) or layout.objects:
            raise UnsupportedError(f"rows of a batch are not {self._described}")
        picture, label = columns[0], columns[-1]
        dtype = next((name for name, one in _ROWS.items() if picture.dtype == one), "bfloat16")
        if len(picture.shape) != 3 or (self._files.labelled and (label.shape or label.dtype != np.int64)):
            raise UnsupportedError(
                f"rows of a batch have pictures of shape {picture.shape} and labels of {label.dtype}"
            )
        how = native.Pipeline.from_buffer_copy(self._how)
        how.row_shape[:], how.row_dtype = picture.shape, DTYPES[dtype]
        how.row_at, how.row_label_at = picture.offset, label.offset
        return Worker(self, how)


def of_served(
    steps: list[native.Step], fields: Sequence[Field], sample_bytes: int, decode: Decode | None, blank: Any
) -> Pipeline:
    """For samples of a cache that another process fills, and steps after it. fields, sample_bytes: of the cache.
    decode: of its files. None: it has pictures of one size. blank: a sample as `Pipeline.blanks` has it.

    UnsupportedError: C cannot do it; it says why."""
    sides = () if decode is None or decode._sides is None else decode._sides
    shape = fields[0].shape if decode is None else (3, *sides) if decode._chw else (*sides, 3)
    chw = shape[:1] == (3,)
    other = shape[2:] if chw else shape[:1]  # a side; 1 or 3 would be channels, too
    if len(fields) > 2 or len(shape) != 3 or not (chw or shape[2] == 3) or other[0] in (1, 3):
        raise UnsupportedError(
            f"samples of the cache are ({', '.join(map(str, fields))}), not a picture of one size, (3, height, width) or "
            "(height, width, 3), alone or with a label"
        )
    files = replace(Files.of([]), labelled=len(fields) == 2)
    height, width = shape[1:] if chw else shape[:2]
    how = decode or Decode((int(height or 0), int(width or 0)), layout="chw" if chw else "hwc")
    return Pipeline(files, how, steps, fields, sample_bytes, decode is not None, [blank])


class Worker(Memory):
    """One thread's, which follows a pipeline. `load` and `finish` are addresses of C functions."""

    load = ctypes.cast(native.load, ctypes.c_void_p).value
    finish = ctypes.cast(native.finish, ctypes.c_void_p).value

    def __init__(self, pipeline: Pipeline, how: native.Pipeline) -> None:
        super().__init__()
        self._kept = pipeline, how
        if native.follow(self.handle, ctypes.byref(how)) < 0:
            raise InvalidError((native.message(self.handle) or b"").decode())
