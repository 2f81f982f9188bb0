"""Datasets of stocached.image as preparers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from .._common.errors import InvalidError
from .._common.one_line import one_line
from .._common.subsets import unwrapped
from .._prepared.fingerprint import fingerprint
from .._prepared.info import DatasetInfo
from .._samples import dtypes

_VERSION = 1  # version of what this module prepares


def preparer_of(given: Any) -> Any:
    """A preparer of a Folder or Shards of stocached.image, or of torch's Subset of one; anything else as it is.

    Raises InvalidError if functions of the user make the samples: a fingerprint cannot name them."""
    dataset, indices = unwrapped(given)
    if not any(base.__module__ == "stocached._image.folder" for base in type(dataset).__mro__):
        return given
    try:
        decoding = dataset.decoding
        if dataset.target_transform is not None:
            raise InvalidError(f"target_transform={one_line(dataset.target_transform)} is a function")
    except InvalidError as error:
        raise InvalidError(
            f"prepare: {error}; give functions to PreparedDataset(transform=), or write a DataPreparer"
        ) from None
    return _Pictures(dataset, decoding, indices)


class _Pictures:
    """Pictures and labels; the files in place of pictures if the dataset says no size and has no steps."""

    def __init__(self, dataset: Any, decoding: Any, indices: Any) -> None:
        self._dataset = dataset
        self._decoding = None if decoding is dataset.decode and decoding.keeps_size else decoding
        self._indices = np.arange(len(dataset)) if indices is None else np.array(indices, np.int64)

    def dataset_info(self) -> DatasetInfo:
        dataset, n = self._dataset, len(self._indices)
        if n < 1:
            raise InvalidError("prepare: the dataset is empty")
        fields = {"image": self._image()}
        labels = [dataset.read(self._indices[k])[1:] for k in sorted({0, n // 2, n - 1})]
        if labels[0]:
            fields["label"] = _label([np.asarray(label) for (label,) in labels])
        names, files = _listed(dataset)
        how = [_VERSION, type(dataset).__qualname__, repr(self._decoding)]
        classes = getattr(dataset, "classes", None)
        return DatasetInfo(
            fields,
            samples=n,
            fingerprint=fingerprint(*how, self._indices, *names, files=files),
            variable=None in fields["image"][0],
            notes={} if classes is None else {"classes": json.dumps(classes)},
            kind="pictures",
        )

    def _image(self) -> tuple[tuple[int | None, ...], str]:
        if self._decoding is None:
            return (None,), "bytes"
        from .._image.pipeline import blank_pictures  # needs the library for pictures

        pictures = blank_pictures(self._decoding)
        shape = tuple(sides[0] if len(set(sides)) == 1 else None for sides in zip(*(p.shape for p in pictures)))
        return shape, dtypes.NAMES[dtypes.code_of(pictures[0].dtype)]

    def samples(self, first: int, stop: int | None) -> Iterator[Any]:
        for index in self._indices[first:stop].tolist():
            picture, *labels = self._dataset.read(index) if self._decoding is None else _sample(self._dataset, index)
            yield {"image": picture, "label": labels[0]} if labels else picture


def _sample(dataset: Any, index: int) -> tuple[Any, ...]:
    sample = dataset[index]
    return sample if isinstance(sample, tuple) else (sample,)


def _label(labels: list[Any]) -> tuple[tuple[int, ...], str]:
    kinds = {(label.shape, str(label.dtype)) for label in labels}
    shape, dtype = next(iter(kinds))
    if len(kinds) > 1 or dtype not in dtypes.NAMES:
        raise InvalidError(
            f"prepare: labels are {' and '.join(sorted(f'{one} {kind}' for one, kind in kinds))}; "
            "they must be numbers, or arrays of one shape; write a DataPreparer that makes such"
        )
    return shape, dtype


def _listed(dataset: Any) -> tuple[list[Any], list[str]]:
    """What names the samples besides the contents of their files, and the files."""
    if hasattr(dataset, "shards"):
        return [dataset._places], dataset.shards
    paths, root = [path for path, _ in dataset.samples], os.fspath(dataset.root)
    return ["\n".join(path.removeprefix(root) for path in paths), json.dumps(dataset.targets)], paths
