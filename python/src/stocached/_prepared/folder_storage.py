"""A storage whose samples lie in files of a folder."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from .._common.errors import InvalidError
from .errors import InTheWayError, NotPreparedError
from .folder_writer import FolderWriter
from .info import DatasetInfo
from .storage import DataStorage


class FolderStorage(DataStorage):
    """A writer writes the files, of its class `writes`. One thread at a time may prepare."""

    folder: str
    writes: ClassVar[type[FolderWriter]]
    _writer: Any = None  # while a preparation is under way

    @abstractmethod
    def _document(self, info: DatasetInfo) -> Any:
        """What is known of the dataset before its first sample. It has a `name`."""

    @abstractmethod
    def _new_writer(self, info: DatasetInfo, wait: float | None, restart: bool) -> FolderWriter:
        """Begins to write, or goes on."""

    def is_prepared(self, info: DatasetInfo | None = None) -> bool:
        try:
            there = self.writes.name_of(self.folder)
        except NotPreparedError:
            return False
        return info is None or there.id == self._document(info).name.id

    def start_preparation(self, info: DatasetInfo, *, wait: float | None = 0, restart: bool = False) -> int | None:
        if self._writer is not None:
            raise InvalidError("a preparation of this storage is under way; finish or stop it first")
        writer = self._new_writer(info, wait, restart)
        if writer.whole:
            return None
        if info.samples is not None and writer.next > info.samples:
            writer.close()
            raise InTheWayError(
                f"{writer.part} has {writer.next} samples, and the dataset has {info.samples}; "
                f"the fingerprint {info.fingerprint!r} must change when the data does"
            )
        self._writer = writer
        return writer.next

    def finish_preparation(self) -> None:
        self._writing().finish()
        self._writer = None

    def stop_preparation(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def discard_preparation(self) -> None:
        self._writing().discard()
        self.stop_preparation()

    def _writing(self, index: int | None = None) -> Any:
        """The writer. index: of the sample that it gets next."""
        if self._writer is None:
            raise InvalidError("no preparation is under way; call start_preparation first")
        if index not in (None, self._writer.next):
            raise InvalidError(f"sample {index} comes where sample {self._writer.next} is due")
        return self._writer
