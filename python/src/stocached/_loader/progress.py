"""Progress bars with the stats of a loader."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from .._common.errors import InvalidError, UnsupportedError

_REFRESH = 0.1  # seconds between two reads of the stats


def progress(loader: Any, **options: Any) -> Iterator[Any]:
    """The batches of an epoch, `for batch in progress(loader):`, with a bar that shows samples a
    second and the hit rate of this epoch.

    loader: an object with `stats()` as stocached.Loader has it. options: of tqdm, such as
    desc="epoch 3" or disable=True.
    Raises UnsupportedError if tqdm is not installed, InvalidError for other loaders; both now, not
    at the first batch."""
    if not callable(getattr(loader, "stats", None)):
        raise InvalidError(
            f"progress() shows the stats of a stocached loader, and a {type(loader).__qualname__} has none; use tqdm itself"
        )
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise UnsupportedError("progress() needs tqdm: pip install tqdm") from None
    options.setdefault("unit", "batch")
    if "total" not in options:
        try:
            options["total"] = len(loader)
        except TypeError:  # an iterable dataset without a length
            options["total"] = None
    return _run(loader, tqdm, options)


def _run(loader: Any, tqdm: Any, options: dict[str, Any]) -> Iterator[Any]:
    before = loader.stats()
    with tqdm(**options) as bar:
        due = 0.0
        for batch in loader:
            now = time.monotonic()
            if now >= due and not bar.disable:
                due = now + _REFRESH
                bar.set_postfix_str(_text(loader.stats() - before), refresh=False)
            bar.update()
            yield batch
        if not bar.disable:
            bar.set_postfix_str(_text(loader.stats() - before), refresh=False)


def _text(stats: Any) -> str:
    return f"{stats.samples_per_second:,.0f} samples/s, {stats.hit_rate:.0%} hits, waiting {stats.waiting:.0%}"
