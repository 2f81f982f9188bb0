"""An error that one process finds, and that all processes raise from then on."""

from __future__ import annotations

from .._common.errors import FingerprintError, NondeterministicDatasetError, StocachedError

_TEXT_AT = 8  # after the flag
_ERRORS: tuple[type[StocachedError], ...] = (FingerprintError, NondeterministicDatasetError)


class SharedError:
    def __init__(self, memory: memoryview) -> None:
        """memory: bytes that the processes share, zeros at first."""
        self.flag = memory[:1]  # 0: no process has found an error
        self._text = memory[_TEXT_AT:]

    def publish(self, error: FingerprintError | NondeterministicDatasetError) -> None:
        text = str(error).encode()[: len(self._text)]
        self._text[: len(text)] = text
        self.flag[0] = 1 + _ERRORS.index(type(error))  # after the text

    def check(self) -> None:
        """Raises the error, if a process has found one."""
        flag = self.flag[0]
        if flag:
            raise _ERRORS[flag - 1](bytes(self._text).rstrip(b"\0").decode(errors="replace"))
