"""What samples of a dataset consist of: how one becomes a value of its cache, and is made of it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.errors import SchemaError
from .packing import Packing
from .schema import MAX_FIELDS, Array, Field
from .tree import Tree

# The values of a sample as a cache would store them, each with its name in a message.
Encoded = list[tuple[str, Array]]


class Structure:
    """A sample is a tree of leaves. Each leaf has a field of the cache; if there are too many, all are packed."""

    def __init__(self, tree: Tree, leaves: list[Field]) -> None:
        """leaves: a field for each leaf of the tree."""
        self._tree, self._leaves = tree, leaves
        self._packing = Packing(leaves) if len(leaves) > MAX_FIELDS else None

    def fields(self) -> list[Field]:
        """The fields of a cache for such samples."""
        return self._leaves if self._packing is None else self._packing.fields()

    def gathered_tree(self) -> Tree | None:
        """The tree, if each leaf is a field of the cache."""
        return self._tree if self._packing is None else None

    def value(self, sample: Any, fields: Sequence[Field]) -> Any:
        """What a cache with these fields takes for a sample. Raises SchemaError if it cannot take it."""
        arrays = [leaf.to_cache(value) for leaf, value in zip(self._tree.leaves, self._tree.take(sample))]
        if self._packing is not None:
            arrays = self._packing.pack(arrays)
        return arrays[0] if len(arrays) == 1 else dict(zip((field.name for field in fields), arrays))

    def sample(self, value: Any, fields: Sequence[Field]) -> Any:
        """A sample made of a value of a cache with these fields."""
        values = list(value.values()) if len(fields) > 1 else [value]
        if self._packing is not None:
            values = self._packing.unpack(values)
        return self._tree.give([leaf.from_cache(item) for leaf, item in zip(self._tree.leaves, values)])

    def samples(
        self, arrays: Sequence[npt.NDArray[Any]], hit: npt.NDArray[np.bool_], fields: Sequence[Field]
    ) -> list[Any]:
        """Samples made of rows of arrays, one array for each field; None for a row without a hit."""
        if not hit.any():
            return [None] * len(hit)
        if self._packing is not None:
            return [
                self.sample({k: array[row, ...] for k, array in enumerate(arrays)}, fields) if there else None
                for row, there in enumerate(hit.tolist())
            ]
        columns = [leaf.rows_from_cache(array) for leaf, array in zip(self._tree.leaves, arrays)]
        return [self._tree.give(row) if there else None for there, row in zip(hit.tolist(), zip(*columns))]

    def encode(self, sample: Any) -> Encoded:
        """The values of a sample with their names, to compare it with another one."""
        taken = zip(self._tree.leaves, self._tree.take(sample))
        return [
            (
                f"its {leaf.called} ({leaf.described})" if leaf.path else f"it ({leaf.described})",
                leaf.to_cache(value).copy(),
            )
            for leaf, value in taken
        ]

    def other_shapes(self, sample: Any, fields: Sequence[Field]) -> str:
        """Which values of a sample have another shape than in a cache with these fields; "" if other
        things differ too."""
        own = fields if self._packing is None else fields[:-1]
        differing = []
        try:
            for leaf, field, value in zip(
                self._tree.leaves, (*own, *self._leaves[len(own) :]), self._tree.take(sample)
            ):
                shape = leaf.to_cache(value).shape
                if len(shape) != len(field.shape):
                    return ""
                if not field.admits(shape):
                    wanted = str(field.shape).replace("None", "any")
                    differing.append(f"{leaf.called} has shape {shape}, and the cache takes {wanted}")
        except SchemaError:
            return ""
        return " and ".join(differing)
