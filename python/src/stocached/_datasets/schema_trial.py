"""Learns the schema of a dataset from a few samples, before a cache is made: their structure, their
dtypes, and whether their shapes differ."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .._common.errors import InvalidError, SchemaError
from .._samples import dtypes, schema
from .._samples.schema import Field
from .._samples.tree import Leaf, Tree, UnfitError, kind_of
from .probe import PROBES, spread

MOST = 17  # samples that are loaded to see whether shapes differ
_PART = 16  # a small dataset: one in 16 samples
_TIMEOUT = 1.0  # seconds after which only the first samples count


class _Seen(NamedTuple):
    """What a trial keeps of a value."""

    shape: tuple[int, ...]
    code: int
    nbytes: int


@dataclass
class _Alike:
    """Samples with the same structure. Their dtypes and shapes may differ."""

    tree: Tree
    rows: dict[int, list[_Seen]] = field(default_factory=dict)  # by index of the sample

    def add(self, index: int, sample: Any) -> None:
        """Adds a sample. UnfitError if it has another structure."""
        self.rows[index] = [_seen(leaf, value) for leaf, value in zip(self.tree.leaves, self.tree.take(sample))]


def _seen(leaf: Leaf, value: Any) -> _Seen:
    kind, code = kind_of(value, leaf.path)
    array = schema.as_array(value) if kind == leaf.kind and code != leaf.code else leaf.to_cache(value)
    return _Seen(array.shape, code, array.nbytes)


class Trial:
    """Some samples of a dataset, and the structure that most of them have."""

    def __init__(self, samples: dict[int, Any], load: Callable[[int], Any], n: int, most: int = MOST) -> None:
        """samples: loaded samples, by index. load: loads another one of the n samples. most: how many there may be.

        Raises SchemaError if they cannot be cached, have different dtypes, or too many
        structures."""
        self._groups: list[_Alike] = []
        self._unlike: dict[int, str] = {}  # how the first sample of each later group differs from the first group
        self._refused: dict[int, SchemaError] = {}
        for index, sample in samples.items():
            self._add(index, sample)
        end = time.monotonic() + _TIMEOUT
        # An odd number, so that it includes the middle one, which is loaded already.
        for index in spread(n, max(PROBES, min(most, n // _PART | 1))):
            if index not in samples and time.monotonic() < end:
                # Only its shape is needed; the program gets the error when it reads this sample.
                with suppress(Exception):
                    self._add(index, load(index))
        self._most = self._largest_group()
        self.tree = self._most.tree
        self._check_dtypes()

    def _add(self, index: int, sample: Any) -> None:
        try:
            unlike: list[str] = []
            for group in self._groups:
                try:
                    return group.add(index, sample)
                except UnfitError as error:
                    unlike.append(str(error))
            group = _Alike(Tree(sample))
            group.add(index, sample)
            self._groups.append(group)
            if unlike:
                self._unlike[index] = unlike[0]
        except SchemaError as error:
            self._refused[index] = error

    def _largest_group(self) -> _Alike:
        if not self._groups:
            index, error = next(iter(self._refused.items()))
            raise SchemaError(f"sample {index} of the dataset: {error}")
        most = max(self._groups, key=lambda group: len(group.rows))
        if 2 * len(most.rows) < len(self._refused) + sum(len(group.rows) for group in self._groups):
            raise SchemaError(self._too_many())
        if not most.tree.leaves:
            raise SchemaError(
                f"sample {next(iter(most.rows))} of the dataset is {most.tree.described}: it holds no value that can be cached. "
                "Is a return missing in the function that makes it?"
            )
        return most

    def _too_many(self) -> str:
        first, *others = self._groups
        kinds = [f"sample {next(iter(first.rows))} is {first.tree.described}"]
        for index, group in ((next(iter(group.rows)), group) for group in others):
            # Of the same kind, they differ in what they hold.
            alike = group.tree.described == first.tree.described
            kinds.append(
                f"in sample {index}, {self._unlike[index]}" if alike else f"sample {index} is {group.tree.described}"
            )
        return (
            f"samples of the dataset have too many structures: {'; '.join(kinds)}. Make them alike in the dataset: "
            "arrays and strings may differ in length, lists may not"
        )

    def _check_dtypes(self) -> None:
        """A field of a cache has one dtype."""
        (first, like), *others = self._most.rows.items()
        for index, row in others:
            for leaf, a, b in zip(self.tree.leaves, like, row):
                if a.code != b.code:
                    one, other = dtypes.NAMES[a.code], dtypes.NAMES[b.code]
                    convert = {"tensor": f".to(torch.{one})", "array": f'.astype("{one}")'}.get(
                        leaf.kind, f"numpy.{one}(...)"
                    )
                    raise SchemaError(
                        f"{leaf.called} is {one} in sample {first} of the dataset and {other} in sample {index}; a cache has one dtype for each value. "
                        f"Convert it in the dataset, for example with {convert}"
                    )

    # ------------------------------------------------------------ the cache to make

    def fields(self, variable: bool | None) -> list[Field]:
        """A field for each leaf. variable: whether shapes may differ; None: as in these samples."""
        rows = [tuple(seen.shape for seen in row) for row in self._most.rows.values()]
        if variable is False:
            rows = [Counter(rows).most_common(1)[0][0]]
        fields = [
            leaf.field(name, [row[k] for row in rows])
            for k, (leaf, name) in enumerate(zip(self.tree.leaves, self.tree.names()))
        ]
        if variable:
            return [Field(made.name, (None,) * len(made.shape), made.code) for made in fields]
        differing = [leaf.called for leaf, made in zip(self.tree.leaves, fields) if not made.fixed]
        if variable is False and differing:
            raise InvalidError(
                f"variable=False is for samples of one size; {', '.join(differing)} may differ in size. Leave variable= out"
            )
        return fields

    def bytes(self) -> list[int]:
        """The most bytes that each of these samples takes in a variable-size cache, in rising order."""
        return sorted(
            sum(-(-seen.nbytes // 64) * 64 for seen in row) + 64 * len(row) for row in self._most.rows.values()
        )
