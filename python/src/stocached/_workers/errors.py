"""Exceptions of workers on their way to the process that started them."""

from __future__ import annotations

import pickle
import traceback
from typing import Any


class WorkerError:
    """An exception of a worker on its way to the parent, where it is raised again with the worker's
    traceback in its message."""

    def __init__(self, error: BaseException, where: str) -> None:
        self.kind = type(error)
        self.text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self.where = where

    def reraise(self) -> None:
        message = f"Caught {self.kind.__name__} {self.where}.\nOriginal {self.text}"
        if self.kind is KeyError:
            message = _Shown(message)
        try:
            error = self.kind(message)
        except Exception:  # an exception that takes other arguments
            raise RuntimeError(message) from None
        raise error


class _Shown(str):
    """KeyError shows the repr of its message, which would make one line of a traceback."""

    def __repr__(self) -> str:
        return str(self)


class RemoteTraceback(Exception):
    """Shows the traceback of another process, as the cause of an exception."""

    def __str__(self) -> str:
        return str(self.args[0])


def pickled(value: Any) -> bytes | None:
    """None: it cannot be pickled, or not be read again, as an exception whose constructor takes
    other arguments."""
    try:
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        pickle.loads(data)
    except Exception:
        return None
    return data
