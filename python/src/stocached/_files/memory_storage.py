"""A prepared dataset in the memory of this process."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import numpy as np

from .._common.checksum import as_bytes
from .._common.errors import InvalidError, SampleIndexError
from .errors import BusyError, InTheWayError, NotPreparedError
from .info import DatasetInfo, values_of
from .storage import DataStorage


class MemoryStorage(DataStorage):
    """Samples one after the other in memory, for small datasets and for tests. It ends with the process. Forked
    children share it, and other processes get a copy. Any number of threads may load; one thread at a time may
    prepare."""

    _parts_given = ()  # for `only_ours`

    def __init__(self) -> None:
        self._empty()

    def _empty(self) -> None:
        self._info: DatasetInfo | None = None
        self._whole = False
        self._data = bytearray()
        self._ends = array("Q")
        self._values: Any = None

    def is_prepared(self, info: DatasetInfo | None = None) -> bool:
        return self._whole and (info is None or _compared(info) == _compared(self.load_dataset_info()))

    def start_preparation(self, info: DatasetInfo, *, wait: float | None = 0, restart: bool = False) -> int | None:
        info = info.checked()
        if self.is_prepared(info):
            return None
        if self._whole:
            raise InTheWayError(
                f"this storage holds the dataset {self._info and self._info.fingerprint!r}; make another one for {info.fingerprint!r}"
            )
        if self._info is not None:
            raise BusyError("a preparation of this storage is under way; finish or stop it first")
        self._info, self._values = info, values_of(info.schema(), info.variable)
        return 0

    def _writing(self) -> DatasetInfo:
        if self._info is None or self._whole:
            raise InvalidError("no preparation is under way; call start_preparation first")
        return self._info

    def save_sample(self, index: int, sample: Any) -> None:
        self._writing()
        if index != len(self._ends):
            raise InvalidError(f"sample {index} comes where sample {len(self._ends)} is due")
        for part in self._values.parts(sample):
            self._data += as_bytes(part)
        self._ends.append(len(self._data))

    def finish_preparation(self) -> None:
        info = self._writing()
        if not self._ends:
            raise InvalidError("a dataset without samples is impossible; save one at least")
        self._info, self._whole = replace(info, samples=len(self._ends)), True

    def stop_preparation(self) -> None:
        if not self._whole:
            self._empty()

    def load_dataset_info(self) -> DatasetInfo:
        if not self._whole:
            raise NotPreparedError("this storage holds no prepared dataset; call prepare(preparer, storage) first")
        assert self._info is not None
        return self._info

    def load_sample(self, index: int) -> Any:
        if not self._whole:
            self.load_dataset_info()
        if not 0 <= index < len(self._ends):
            raise SampleIndexError(f"index {index} is not in 0..{len(self._ends) - 1}")
        begin = self._ends[index - 1] if index else 0
        raw = np.frombuffer(self._data, np.uint8, self._ends[index] - begin, begin).copy()
        return self._values.decode(raw, True)

    def __repr__(self) -> str:
        return f"<stocached.prepare.MemoryStorage of {len(self._ends)} samples{'' if self._whole else ', not whole'}>"


def _compared(info: DatasetInfo) -> tuple[Any, ...]:
    """What two infos of one dataset have in common."""
    return info.fingerprint, info.kind, info.variable, info.schema()
