"""What worker threads of a loader do in C with the samples of a dataset: read, decode, store, augment
(docs/spec/image.md, Pipelines)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
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
from .steps import Step
from .workers import call

_ROWS = {"uint8": np.uint8, "float32": np.float32, "float16": np.float16}


class Files:
    """The files of samples, and their labels."""

    def __init__(self, samples: Sequence[tuple[str, int]]) -> None:
        try:
            self.samples = list(map(tuple, samples))
            paths, labels = zip(*self.samples)
            names = list(map(os.fsencode, paths))
            self.labels = np.array(labels, np.int64)
        except (TypeError, ValueError, OverflowError) as error:
            raise UnsupportedError(f"samples are no pairs of a path and a number: {error}") from error
        if set(map(type, labels)) != {int}:
            raise UnsupportedError("labels are no integers")
        self.paths = b"\0".join(names) + b"\0"
        self.path_at = np.zeros(len(names) + 1, np.uint64)
        np.cumsum([len(name) + 1 for name in names], out=self.path_at[1:])


class Pipeline:
    """Immutable; all workers of a loader use one."""

    def __init__(
        self, files: Files, decode: Decode, augment: Any, fields: Sequence[Field], sample_bytes: int, encoded: bool
    ) -> None:
        """augment: of the loader, a step or None. fields, sample_bytes: of the cache, if there is one. sample_bytes 0:
        samples vary in size. encoded: the cache has the bytes of files.

        Raises UnsupportedError, which says why C cannot do it."""
        if augment is not None and not isinstance(augment, Step):
            raise UnsupportedError(f"augment={augment!r:.80} is no step of stocached.image")
        self._files, self._decode, self._fixed = files, decode, sample_bytes > 0
        steps = [] if augment is None else augment.in_c()
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
            raise UnsupportedError(f"samples of the cache are ({', '.join(map(str, fields))}), not a picture and a label")
        if not self._fixed:
            return
        picture, label = fields
        rows, columns = self._decode._sides or (0, 0)
        if picture.shape != ((3, rows, columns) if self._decode._chw else (rows, columns, 3)):
            raise UnsupportedError(f"pictures of the cache are {picture}; the decoder makes {rows} x {columns} pixels")
        self._how.picture_at, self._how.label_at = picture.offset, label.offset
        self._how.sample_bytes = sample_bytes

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
            raise UnsupportedError(f"rows of a batch have pictures of shape {picture.shape} and labels of {label.dtype}")
        how = native.Pipeline.from_buffer_copy(self._how)
        how.row_shape[:], how.row_dtype = picture.shape, DTYPES[dtype]
        how.row_at, how.row_label_at = picture.offset, label.offset
        return Worker(self, how)


def _numbers(array: npt.NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))


class Worker:
    """The memory of one thread, which follows a pipeline. `load` and `finish` are addresses of C functions."""

    load = ctypes.cast(native.load, ctypes.c_void_p).value
    finish = ctypes.cast(native.finish, ctypes.c_void_p).value

    def __init__(self, pipeline: Pipeline, how: native.Pipeline) -> None:
        self._kept = pipeline, how
        self.handle = native.worker_new()
        if not self.handle:
            raise MemoryError("stocached.image: too little memory for a worker")
        if native.follow(self.handle, ctypes.byref(how)) < 0:
            raise InvalidError((native.message(self.handle) or b"").decode())

    def __del__(self, free: Any = native.worker_free) -> None:
        if getattr(self, "handle", None):
            free(self.handle)
