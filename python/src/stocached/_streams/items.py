"""What an item of a stream is made of: arrays of fixed shape, or tuples, lists and dicts of them;
and how rows of them lie in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.cached import cached_property
from .._common.errors import SchemaError

Array = npt.NDArray[Any]
_ALIGN = 64  # bytes: of each field in a batch
_NUMPY = (np.ndarray, np.generic)


@dataclass(frozen=True)
class Field:
    """One array of an item. path: where it stands in the item, for messages. offset: of its rows in
    a batch."""

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.path or 'the item'} of {self.dtype}{list(self.shape)}"

    @cached_property
    def bytes(self) -> int:
        return int(self.dtype.itemsize * np.prod(self.shape, dtype=np.int64))


def _parts(value: Any) -> tuple[Any, Sequence[Any]] | None:
    """Keys and values of a tuple, list or dict; None for anything else."""
    if isinstance(value, dict):
        return tuple(value), list(value.values())
    if isinstance(value, (tuple, list)):
        return (getattr(value, "_fields", None) or tuple(range(len(value)))), value
    return None


class Items:
    """The structure of the items of a stream, learnt from one of them. Can be pickled; two are
    equal when every item of the one is one of the other."""

    def __init__(self, item: Any) -> None:
        self.fields: list[Field] = []
        self._root = self._learn(item, "")
        if not self.fields:
            raise SchemaError(f"an item {item!r} has no arrays in it")
        self._kinds = [(field.dtype, field.shape) for field in self.fields]

    def _learn(self, value: Any, path: str) -> Any:
        parts = _parts(value)
        if parts is None:
            array = _array(value, path)
            self.fields.append(Field(path, array.dtype, array.shape))
            return len(self.fields) - 1
        keys, values = parts
        paths = [f"{path}.{key}" if path else str(key) for key in keys]
        return type(value), keys, [self._learn(child, at) for child, at in zip(values, paths)]

    def take(self, item: Any) -> list[Any]:
        """The arrays (or NumPy's scalars) of an item, one a field. SchemaError if it is put
        together otherwise, or one has another shape or dtype."""
        leaves: list[Any] = []
        if type(self._root) is int:
            leaves.append(item)
        else:
            self._flatten(self._root, item, leaves)
        for k, leaf in enumerate(leaves):
            dtype, shape = self._kinds[k]
            if not (isinstance(leaf, _NUMPY) and leaf.dtype == dtype and leaf.shape == shape):
                leaves[k] = self._fitted(self.fields[k], leaf)
        return leaves

    def _flatten(self, node: Any, value: Any, leaves: list[Any]) -> None:
        kind, keys, children = node
        if type(value) is not kind or len(value) != len(keys):
            raise self._unlike(node, value)
        if isinstance(value, dict):
            try:
                value = [value[key] for key in keys]
            except KeyError:
                raise self._unlike(node, value) from None
        for child, part in zip(children, value):
            if type(child) is int:
                leaves.append(part)
            else:
                self._flatten(child, part, leaves)

    def _unlike(self, node: Any, value: Any) -> SchemaError:
        parts = _parts(value)
        what = f"a {type(value).__name__} of {list(parts[0])}" if parts else f"{type(value).__name__}"
        return SchemaError(f"{what}, where the first item had a {node[0].__name__} of {list(node[1])}")

    def _fitted(self, field: Field, leaf: Any) -> Array:
        """A leaf that is no array of NumPy's, as one."""
        array = _array(leaf, field.path)
        if array.dtype != field.dtype or array.shape != field.shape:
            raise SchemaError(f"{Field(field.path, array.dtype, array.shape)}, where the first item had {field}")
        return array

    def give(self, arrays: Sequence[Any]) -> Any:
        """An item of these arrays; also of those of a whole batch, or of tensors."""
        return self._build(self._root, arrays)

    def _build(self, node: Any, arrays: Sequence[Any]) -> Any:
        """A method, as a function within `give` that calls itself would keep the arrays till the
        garbage collector comes."""
        if isinstance(node, int):
            return arrays[node]
        kind, keys, children = node
        values = [self._build(child, arrays) for child in children]
        if issubclass(kind, dict):
            return dict(zip(keys, values))
        return kind(*values) if hasattr(kind, "_fields") else kind(values)

    def nbytes(self, rows: int) -> int:
        """Of a batch of so many rows."""
        return sum(-(-field.bytes * rows // _ALIGN) * _ALIGN for field in self.fields)

    def arrays(self, memory: Any, rows: int) -> list[Array]:
        """The fields of a batch that lies in `memory`, each contiguous over the rows and
        aligned."""
        arrays: list[Array] = []
        offset = 0
        for field in self.fields:
            arrays.append(np.ndarray((rows, *field.shape), field.dtype, memory, offset))
            offset += -(-field.bytes * rows // _ALIGN) * _ALIGN
        return arrays


def _array(value: Any, path: str) -> Array:
    """The array that a leaf is; a tensor shares its memory with it, a number becomes an array
    without dimensions."""
    array = np.asarray(value)
    if array.dtype.hasobject or array.dtype.kind in "USVmM":
        what = f"{type(value).__name__} of {array.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
        items = "arrays and numbers, or tuples, lists and dicts of them"
        raise SchemaError(f"{path or 'the item'} is {what}; items are {items}")
    return array
