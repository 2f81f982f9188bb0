"""Says which sample an error of `augment=` is about: steps get a picture, and know neither its number nor its file."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from .._common.errors import InvalidError
from .._common.subsets import is_subset
from .cache_backed import CacheBacked


def of_sample(error: InvalidError, dataset: Any, index: Any) -> InvalidError:
    """The error with the sample of the dataset, and with its file if that is known."""
    file = _file_of(dataset, index)
    return InvalidError(f"sample {index}: {error}" if file is None else f"sample {index}: {file}: {error}")


def _file_of(dataset: Any, index: Any) -> str | None:
    folder = sys.modules.get("stocached._image.folder")
    with contextlib.suppress(Exception):  # the error of the step counts
        while True:
            if is_subset(dataset):
                dataset, index = dataset.dataset, dataset.indices[index]
            elif isinstance(dataset, CacheBacked) and not dataset.served:
                dataset = dataset.dataset  # type: ignore[attr-defined]
            else:
                break
        if folder is not None and isinstance(dataset, folder.Decoded):
            return str(dataset.name(index))
    return None
