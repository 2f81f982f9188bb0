"""What worker threads of a loader do in C with the samples of a dataset: read, decode, store, augment
(docs/spec/image.md, Pipelines)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.errors import InvalidError, UnsupportedError
from .._native import _image_header as native
from .._samples import dtypes
from .._samples.batch_layout import Layout
from .._samples.schema import Field
from .decoding import Decode
from .plan import DTYPES
from .workers import Memory

_ROWS = {"uint8": np.uint8, "float32": np.float32, "float16": np.float16}


RANDOM = (
    native.RANDOM_RESIZED_CROP, native.RANDOM_CROP, native.RANDOM_FLIP, native.COLOR_JITTER, native.RANDOM_ERASING
)  # fmt: skip


@dataclass
class Files:
    """The files of samples, and their labels."""

    samples: list[tuple[str, int]]  # of which they were made
    paths: bytes  # each ends with a NUL
    path_at: npt.NDArray[np.uint64]
    labels: npt.NDArray[np.int64]

    @classmethod
    def of(cls, samples: Sequence[tuple[str, int]]) -> Files:
        try:
            pairs = [(path, label) for path, label in samples]
            names = [os.fsencode(path) for path, _ in pairs]
            labels = np.array([label for _, label in pairs], np.int64)
        except (TypeError, ValueError, OverflowError) as error:
            raise UnsupportedError(f"samples are no pairs of a path and a number: {error}") from error
        if {type(label) for _, label in pairs} - {int}:
            raise UnsupportedError("labels are no integers")
        path_at = np.zeros(len(names) + 1, np.uint64)
        np.cumsum([len(name) + 1 for name in names], out=path_at[1:])
        return cls(pairs, b"\0".join(names) + b"\0", path_at, labels)

    def subset(self, indices: Sequence[int]) -> Files:
        chosen = np.array(indices, np.int64)
        return Files(self.samples, self.paths, self.path_at[:-1][chosen], self.labels[chosen])


class Pipeline:
    """Immutable; all workers of a loader use one."""

    def __init__(
        self,
        files: Files,
        decode: Decode,
        steps: list[native.Step],
        fields: Sequence[Field],
        sample_bytes: int,
        encoded: bool,
    ) -> None:
        """fields, sample_bytes: of the cache, if there is one. sample_bytes 0: samples vary in size. encoded: the cache
        has the bytes of files.

        Raises UnsupportedError if samples of the cache are not a picture and a label."""
        self._files, self._decode, self._fixed = files, decode, sample_bytes > 0
        if not fields and decode._sides is None:
            encoded = True  # C decodes only the box of a picture that the steps use
        self._steps = (native.Step * len(steps))(*steps)
        height, width = decode._sides or (0, 0)
        self._how = native.Pipeline(
            struct_bytes=ctypes.sizeof(native.Pipeline),
            paths=files.paths, path_at=_numbers(files.path_at, ctypes.c_uint64),
            labels=_numbers(files.labels, ctypes.c_int64), samples=len(files.labels),
            decode=decode.in_c(width, height), encoded=encoded, extents=not self._fixed,
            step_count=len(steps), steps=self._steps,
        )  # fmt: skip
        if fields:
            self._take_fields(fields, sample_bytes, encoded)

    def _take_fields(self, fields: Sequence[Field], sample_bytes: int, encoded: bool) -> None:
        """Checks that the cache has a picture and a label, and notes where they lie."""
        kinds = [(field.code, len(field.shape)) for field in fields]
        if kinds != [(dtypes.CODES["uint8"], 1 if encoded else 3), (dtypes.CODES["int64"], 0)]:
            raise UnsupportedError(
                f"samples of the cache are ({', '.join(map(str, fields))}), not a picture and a label"
            )
        picture, label = fields
        if not encoded:
            chw, shape = self._decode._chw, [dim or 0 for dim in picture.shape]  # 0: any
            if shape[0 if chw else 2] not in (0, 3):
                raise UnsupportedError(f"pictures of the cache are {picture}; the decoder's have {self._decode.layout}")
            self._how.picture_height, self._how.picture_width = shape[1:] if chw else shape[:2]
        if self._fixed:
            self._how.picture_at, self._how.label_at, self._how.sample_bytes = (
                picture.offset, label.offset, sample_bytes
            )  # fmt: skip

    @property
    def copies(self) -> bool:
        """Whether C needs a copy of a cached sample: a decoder must not read bytes that change."""
        return bool(self._how.encoded)

    def blanks(self) -> list[tuple[Any, int]]:
        """Samples with empty pictures of each size, if the decoder makes one size, else of two sizes of many."""
        sizes = [self._decode._sides] if self._decode._sides else []
        if not sizes:
            short = self._decode.short_side or 480
            sizes = [(short, short + short // 3), (short + short // 3, short)]
        return [(np.zeros((3, *size) if self._decode._chw else (*size, 3), np.uint8), 0) for size in sizes]

    def worker(self, layout: Layout) -> Worker:
        """A worker that makes rows of this layout. UnsupportedError: it cannot."""
        columns = layout.columns
        if len(columns) != 2 or layout.objects or [column.leaf for column in columns] != [0, 1]:
            raise UnsupportedError("rows of a batch are not a picture and a label")
        picture, label = columns
        dtype = next((name for name, one in _ROWS.items() if picture.dtype == one), "bfloat16")
        if len(picture.shape) != 3 or label.shape != () or label.dtype != np.int64:
            raise UnsupportedError(
                f"rows of a batch have pictures of shape {picture.shape} and labels of {label.dtype}"
            )
        how = native.Pipeline.from_buffer_copy(self._how)
        how.row_shape[:], how.row_dtype = picture.shape, DTYPES[dtype]
        how.row_at, how.row_label_at = picture.offset, label.offset
        return Worker(self, how)


def _numbers(array: npt.NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))


class Worker(Memory):
    """One thread's, which follows a pipeline. `load` and `finish` are addresses of C functions."""

    load = ctypes.cast(native.load, ctypes.c_void_p).value
    finish = ctypes.cast(native.finish, ctypes.c_void_p).value

    def __init__(self, pipeline: Pipeline, how: native.Pipeline) -> None:
        super().__init__()
        self._kept = pipeline, how
        if native.follow(self.handle, ctypes.byref(how)) < 0:
            raise InvalidError((native.message(self.handle) or b"").decode())
