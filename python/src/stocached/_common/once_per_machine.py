"""Computes a text once for all programs of a machine. The ranks of a job start together, and all
need the times of the same files."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable

# The folder of named caches, which are regular files; this module makes a folder in it.
_FOLDER = f"/dev/shm/stocached-{os.geteuid()}"
_FRESH = 30.0  # seconds
_OLD = 3600.0  # seconds after which a file of this module is removed


def once_a_machine(key: str, compute: Callable[[], str]) -> str:
    """The text of `compute`, which this program or another program of this user has called for this
    key.

    An answer is good for 30 seconds, and only for programs that ran when its computation began. So
    a program that starts after files have changed gets a new answer. A program that asks a second
    time computes the text again."""
    try:
        file = _opened(key)
    except OSError:
        return compute()
    try:
        fcntl.flock(file, fcntl.LOCK_EX)  # waits for the program that computes
        found = re.fullmatch(r"(\d+\.\d+) (.+)\n", os.pread(file, 4096, 0).decode(errors="replace"))
        if found is not None and key not in _asked and _good(float(found[1])):
            return found[2]
        began, text = _now(), compute()
        with contextlib.suppress(OSError):  # a full /dev/shm
            os.ftruncate(file, 0)
            os.pwrite(file, f"{began:.6f} {text}\n".encode(), 0)
        return text
    finally:
        _asked.add(key)
        os.close(file)


_asked: set[str] = set()


def _opened(key: str) -> int:
    folder = f"{_FOLDER}/.lookups"
    for path in (_FOLDER, folder):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        status = os.lstat(path)
        if status.st_uid != os.geteuid() or status.st_mode & 0o170077 != 0o040000:
            raise PermissionError(f"{path} is not a folder of this user alone")
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if time.time() - entry.stat(follow_symlinks=False).st_mtime > _OLD:
                    os.unlink(entry.path)
    return os.open(f"{folder}/{key}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _good(began: float) -> bool:
    return _started() < began <= _now() <= began + _FRESH


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _started() -> float:
    """When this process began, in seconds since the machine started, rounded up to a tick of the
    kernel's clock."""
    with open("/proc/self/stat") as file:
        return (int(file.read().rpartition(")")[2].split()[19]) + 1) / os.sysconf("SC_CLK_TCK")
