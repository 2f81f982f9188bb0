"""Exceptions of workers on their way to the process that started them."""

from __future__ import annotations

import contextlib
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class RemoteTraceback(Exception):
    """Shows the traceback of another process, as the cause of an exception."""


@dataclass(frozen=True)
class RemoteError:
    """An exception of a worker as a record that can be pickled, also if the exception cannot."""

    where: str  # the exception was raised, such as "in worker 1, which prepared sample 60"
    summary: str  # its class and message
    trace: str
    data: bytes | None  # the exception pickled; None: it cannot be, or cannot be read again

    @classmethod
    def of(cls, error: BaseException, where: str) -> RemoteError:
        summary = "".join(traceback.format_exception_only(type(error), error)).strip()
        return cls(where, summary, "".join(traceback.format_exception(error)), pickled(error))

    def rebuilt(self, instead: Callable[[str], BaseException] = RuntimeError) -> BaseException:
        """The exception, with the traceback of the worker as its cause. instead: makes an exception
        of a message, for one that cannot be pickled."""
        error = None
        if self.data is not None:
            with contextlib.suppress(Exception):
                error = pickle.loads(self.data)
        if not isinstance(error, BaseException):
            error = instead(f"{self.summary}, {self.where}")
        error.__cause__ = RemoteTraceback(f"\n\n{self.where}:\n{self.trace}")
        return error

    def reraise(self) -> None:
        raise self.rebuilt()


def pickled(value: Any) -> bytes | None:
    """None: it cannot be pickled, or not be read again, as an exception whose constructor takes
    other arguments."""
    try:
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        pickle.loads(data)
    except Exception:
        return None
    return data
