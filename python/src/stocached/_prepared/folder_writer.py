"""The folder in which a dataset is written: until it is whole, it has another name, and one process writes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
import weakref
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from .._common.errors import InvalidError
from .errors import BusyError, InTheWayError, NotPreparedError

if TYPE_CHECKING:
    from typing_extensions import Self

PART = ".part"  # ends the names of what is not whole
_POLL = 0.05  # seconds between two looks at a lock that another process has
# Seconds to wait for a lock in any case: a process that was killed keeps it until its last write
# is done.
_LEAST_WAIT = 1.0


class Name(NamedTuple):
    """Tells datasets apart. id: of data, form and options. fingerprint: for people."""

    id: bytes
    fingerprint: str


class FolderWriter(ABC):
    """Takes samples in the order of their indices, then `finish`. Until then the folder does not exist, and the files
    lie in a folder beside it, with ".part" after its name. The next writer of the same data continues there: `next`
    is the first sample that is missing. For one thread.

    kind: of its files, for people. ours: the names that it gives files."""

    kind: ClassVar[str]
    ours: ClassVar[re.Pattern[str]]

    def __init__(self, folder: str, name: Name, *, wait: float | None = 0, restart: bool = False) -> None:
        """wait: seconds to wait for another writer; None: no limit. restart: discards what an interrupted writer of
        other data left.

        The parent of the folder must exist. `whole`: the dataset was there, or another writer has finished it during
        the wait. Then there is nothing to write, and nothing is open. Raises InTheWayError, BusyError, OSError."""
        self.folder, self.part, self.name = os.path.abspath(folder), os.path.abspath(folder) + PART, name
        self.next = 0
        self._file = self._lock = -1
        self._file_path = ""
        self._error: BaseException | None = None
        self.whole = self._check_target()
        if self.whole:
            return
        self._take_lock(wait)
        if self.whole:
            return
        try:
            self._go_on(restart)
        except BaseException:
            self._let_go()
            raise

    @staticmethod
    @abstractmethod
    def name_of(folder: str) -> Name:
        """Of the dataset in a folder. Raises NotPreparedError."""

    @abstractmethod
    def _keep(self, restart: bool) -> bool:
        """Takes over the next file of an interrupted writer, if it is whole and follows on those before. Raises
        InTheWayError if it is of other data."""

    @abstractmethod
    def _kept(self) -> set[str]:
        """The names of the files that are whole."""

    @abstractmethod
    def _write_rest(self) -> None:
        """Writes what is left of the last file, and the document of the dataset."""

    def _check_usable(self) -> None:
        if self._error is not None or self._lock < 0:
            raise InvalidError(f"{self.part}: nothing can be written any more: {self._error or 'it was closed'}")

    def _of_other_data(self) -> InTheWayError:
        return InTheWayError(
            f"{self.part} was left by an interrupted writer of other data, or with other options; begin again "
            "(restart=True), or remove it"
        )

    def _check_target(self) -> bool:
        """True if the dataset is there, False if it can be made. InTheWayError."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return False
        except NotADirectoryError:
            raise InTheWayError(f"{self.folder} is not a folder; write elsewhere") from None
        if not names:
            self._check_empty()
            return False
        try:
            there = self.name_of(self.folder)
        except NotPreparedError:
            raise InTheWayError(f"{self.folder} is a folder with something in it; write elsewhere") from None
        if there.id == self.name.id:
            return True
        raise InTheWayError(
            f"{self.folder} is a dataset in {self.kind} files made from other data or otherwise (fingerprint "
            f"{there.fingerprint!r}, want {self.name.fingerprint!r}); remove it, or write elsewhere"
        )

    def _check_empty(self) -> None:
        """Raises InTheWayError now, not after the work, if the empty folder cannot be replaced."""
        if os.path.islink(self.folder):
            raise InTheWayError(f"{self.folder} is a symbolic link; write to where it leads")
        if os.path.ismount(self.folder):
            raise InTheWayError(f"{self.folder} is a mount point; write to a folder in it")

    def _take_lock(self, wait: float | None) -> None:
        """Becomes the only writer of the folder that is written to, and makes it."""
        began = time.monotonic()
        limit = max(_LEAST_WAIT, wait) if wait is not None else None
        while True:
            try:
                os.mkdir(self.part)
            except FileExistsError:
                pass
            except FileNotFoundError as error:
                above = os.path.dirname(self.part)
                raise type(error)(
                    error.errno, "make this folder first, on a disk with room for the dataset", above
                ) from None
            try:
                self._lock = os.open(self.part, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                continue  # renamed or removed since
            except OSError as error:
                if error.errno in (errno.ENOTDIR, errno.ELOOP):
                    raise InTheWayError(f"{self.part} is not a folder; write elsewhere, or remove it") from None
                raise
            _locks.add(self)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The folder may have been renamed before the lock.
                if os.path.samestat(os.fstat(self._lock), os.stat(self.part)):
                    break
            except (BlockingIOError, FileNotFoundError):
                pass
            except BaseException:
                self._let_go()
                raise
            self._let_go()
            if limit is not None and time.monotonic() - began > limit:
                raise BusyError(f"another process is preparing {self.folder}; wait for it (wait=True), or come back")
            time.sleep(_POLL)
            self.whole = self._check_target()
            if self.whole:
                return
        try:
            # Now that no other process can write: the one before may have finished.
            self.whole = self._check_target()
        except BaseException:
            self._remove_empty()
            self._let_go()
            raise
        if self.whole:
            self._remove_empty()
            self._let_go()

    def _remove_empty(self) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(self.part)

    def _let_go(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        _locks.discard(self)

    def _go_on(self, restart: bool) -> None:
        """Keeps what an interrupted writer left whole, and removes the rest of it."""
        left = list(os.scandir(self.part))
        for entry in left:
            if not self.ours.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
                raise InTheWayError(
                    f"{entry.path} is not of an interrupted writer; write elsewhere, or remove {self.part}"
                )
        while self._keep(restart):
            pass
        kept = self._kept()
        for entry in left:
            if entry.name not in kept:
                os.unlink(entry.path)
        os.fsync(self._lock)

    def _create(self, name: str) -> None:
        """Begins a file of the folder, under another name until `_finish_file`."""
        self._file_path = os.path.join(self.part, name + PART)
        self._file = os.open(self._file_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            error.filename = self._file_path
            raise

    def _finish_file(self, name: str) -> None:
        """The file is whole, also after a crash of the machine."""
        os.fsync(self._file)
        done, self._file = self._file, -1
        os.close(done)
        path = os.path.join(self.part, name)
        os.rename(path + PART, path)
        os.fsync(self._lock)

    def finish(self) -> None:
        """Makes the dataset whole: its folder appears. InvalidError when no sample was written,
        InTheWayError when something came in the way; OSError."""
        if self._error is not None or self._lock < 0:
            raise InvalidError(f"{self.part}: it cannot be finished: {self._error or 'it was closed'}")
        if self.next == 0:
            raise InvalidError("a dataset without samples is impossible; write one at least")
        try:
            self._write_rest()
            self._appear()
        except BaseException as error:
            self._error = error
            raise
        self.whole = True
        self._let_go()

    def _appear(self) -> None:
        try:
            # Over an empty folder perhaps, never over anything else.
            os.rename(self.part, self.folder)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise InTheWayError(
                    f"another program made {self.folder}; the dataset is whole in {self.part}, and can be renamed"
                ) from None
            raise
        above = os.open(os.path.dirname(self.folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(above)
        finally:
            os.close(above)

    def discard(self) -> None:
        """Removes what is written, also by an interrupted writer before; it ends."""
        for name in self._kept():
            os.unlink(os.path.join(self.part, name))
        self.close()

    def close(self) -> None:
        """Gives up, unless it is finished: what is whole of the dataset stays beside its folder,
        for the next writer."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            with contextlib.suppress(OSError):
                os.unlink(self._file_path)  # the next writer does it otherwise
        if self._lock >= 0:
            self._remove_empty()
            self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


_locks: weakref.WeakSet[FolderWriter] = weakref.WeakSet()


def _forget() -> None:
    """A forked child must not keep the lock when its parent is gone: it belongs to the open
    description, which both have. Closing it here does not unlock it there."""
    for writer in list(_locks):
        for name in ("_lock", "_file"):
            if getattr(writer, name) >= 0:
                os.close(getattr(writer, name))
                setattr(writer, name, -1)


os.register_at_fork(after_in_child=_forget)
