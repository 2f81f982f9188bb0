"""The errors of prepared datasets."""

from __future__ import annotations

from .._common.errors import StocachedError


class NotPreparedError(StocachedError, FileNotFoundError):
    """There is no prepared dataset, or it is not whole yet."""


class InTheWayError(StocachedError, FileExistsError):
    """The place of the dataset has something else: other files, or a dataset of other data or other settings."""


class BusyError(StocachedError, BlockingIOError):
    """Another process prepares the same dataset at this moment."""


class PreparerError(StocachedError, RuntimeError):
    """A DataPreparer did not give what it had announced, or a process that it ran in died."""


for _kind in (NotPreparedError, InTheWayError, BusyError, PreparerError):
    _kind.__module__ = "stocached.prepare"  # where users find them, and what tracebacks show
