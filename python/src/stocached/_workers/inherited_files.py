"""Files that a forked worker has from its parent. Both share one position in them, so a dataset that seeks and reads gets
bytes of other samples. In torch's loader they pass with the batch; a cache would keep them."""

from __future__ import annotations

import fcntl
import os
import stat

_STANDARD = 2  # the last of the standard streams
_MOST = 256  # files that are looked at
_LAST = 256  # rounds of tasks until the last look


class InheritedFiles:
    """Tells whether one of them is read by its position. Of one worker; made before it runs code of the user."""

    def __init__(self) -> None:
        # A copy of a descriptor: its number, and the position then. The dataset may close the file, and open its own.
        self._files: dict[int, tuple[int, int]] = {}
        self._rounds = 0
        try:
            numbers = sorted(map(int, os.listdir("/proc/self/fd")))
        except OSError:  # no descriptor is left for the listing
            return
        for number in numbers:
            try:
                if number > _STANDARD and len(self._files) < _MOST and _is_read(number):
                    position = os.lseek(number, 0, os.SEEK_CUR)
                    self._files[fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 0)] = number, position
            except OSError:  # it was that of the listing, or none is left for a copy
                continue

    def moved(self) -> int:
        """After a round of tasks: the number of a descriptor whose position has changed; 0: of none. It looks after 1, 2, 4,
        ... rounds."""
        self._rounds += 1
        if not self._files or self._rounds & (self._rounds - 1):
            return 0
        for copy, (number, position) in self._files.items():
            if os.lseek(copy, 0, os.SEEK_CUR) != position:
                self._close()
                return number
        if self._rounds >= _LAST:
            self._close()
        return 0

    def _close(self) -> None:
        for copy in self._files:
            os.close(copy)
        self._files = {}


def _is_read(number: int) -> bool:
    """Whether it is a regular file that is only read: the position of a log changes with each line."""
    return stat.S_ISREG(os.fstat(number).st_mode) and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
