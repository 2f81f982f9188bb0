"""Samples of a dataset as Python values: tensors, arrays, numbers, strings, and tuples, lists and dicts of them.

A Tree remembers how a sample is put together, takes other samples of the dataset apart into their leaves in the same order, and puts samples
together again with the Python types that they had. Leaves become fields of a cache, or columns of a batch. Works without torch until a tensor comes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

from . import _dtypes, _schema
from ._errors import InvalidError, SchemaError
from ._schema import Array, Field

OBJECT = "object"  # the kind of a leaf that no cache holds: a batch carries it pickled
_NUMBERS = {bool: ("bool", "bool"), int: ("int", "int64"), float: ("float", "float64"), complex: ("complex", "complex128")}
PLAIN_NUMBERS = {"bool": bool, "int": int, "float": float}
_PLAIN = (*_NUMBERS, str, bytes, np.ndarray)  # types of leaves


class UnfitError(SchemaError):
    """A sample that is put together otherwise than the first one was."""


@dataclass(frozen=True)
class Leaf:
    """One value of a sample: which kind of Python object, its field in the cache, and where it stands in the sample, for messages."""

    kind: str  # tensor, array, scalar (of NumPy), bool, int, float, complex, bytes, str; object
    code: int  # of enum stoc_dtype; -1 of an object
    path: str

    def to_cache(self, value: Any) -> Array:
        """The array to store. UnfitError if the value is of another kind."""
        if self.kind == "tensor" and type(value) is _tensor_type() and value.dtype is _tensor_dtype(self.code):
            return _schema.tensor_as_array(value)  # what comes most often and has the least time
        kind, code = _kind_of(value, self.path)
        if (kind, code) != (self.kind, self.code):
            raise UnfitError(f"{self.path or 'the sample'} is {_describe(value)}, not {self.kind} of {_dtypes.NAMES[self.code]}")
        if kind == "str":
            return np.frombuffer(value.encode(errors="surrogatepass"), np.uint8)
        if kind == "bytes":
            return np.frombuffer(value, np.uint8)
        if kind == "int" and not -(2**63) <= value < 2**63:
            raise UnfitError(f"{self.path or 'the sample'} is {value}, which takes more than 64 bits")
        if kind in ("bool", "int", "float", "complex"):
            return np.asarray(value, _dtypes.NUMPY[code])
        return _schema.as_array(value)

    def stacked(self, values: list[Any]) -> Any:
        """Those of several samples in one array, or a list of numbers; None if that is not as simple as it is for most."""
        types = {*map(type, values)}
        if self.kind == "tensor":
            simple = types == {_tensor_type()} and {value.dtype for value in values} == {_tensor_dtype(self.code)}
            return _schema.tensor_as_array(sys.modules["torch"].stack(values)) if simple else None
        if self.kind == "array":
            simple = types == {np.ndarray} and {value.dtype for value in values} == {_dtypes.NUMPY[self.code]}
            return np.stack(values) if simple else None
        return values if types == {PLAIN_NUMBERS.get(self.kind)} else None

    def from_cache(self, value: Any) -> Any:
        """The object again, from an array (bytes for fields of bytes) that is the caller's own."""
        if self.kind == "tensor":
            return as_tensor(value, self.code)
        if self.kind == "array":
            return value
        if self.kind == "bytes":
            return value
        if self.kind == "str":
            return value.decode(errors="surrogatepass")
        return value[()] if self.kind == "scalar" else value.item()

    def rows_from_cache(self, rows: Array) -> list[Any]:
        """The objects of many samples of fixed size at once; tensors and arrays are rows of the one they came in."""
        if self.kind == "tensor":
            return list(as_tensor(rows, self.code).unbind(0))
        if self.kind in ("array", "bytes", "str", "scalar"):
            each = [rows[k, ...] for k in range(len(rows))]
            return [self.from_cache(row.tobytes() if self.code == _dtypes.BYTES else row) for row in each]
        numbers: list[Any] = rows.tolist()
        return numbers

    def field(self, name: str, shapes: Sequence[tuple[int, ...]]) -> Field:
        """The field that holds values of these shapes: a dimension that differs between them (or is 0) differs between samples."""
        if self.kind in ("bytes", "str"):
            return Field(name, (None,), _dtypes.BYTES)
        if len({len(shape) for shape in shapes}) != 1:
            counts = sorted({len(shape) for shape in shapes})
            raise SchemaError(f"{self.path or 'the sample'} has {counts} dimensions in different samples; it must be one number")
        return Field(name, tuple(dims[0] if len(set(dims)) == 1 and dims[0] else None for dims in zip(*shapes)), self.code)


def _tensor_type() -> Any:
    """torch.Tensor; None as long as nobody has imported torch, and so there are no tensors."""
    torch = sys.modules.get("torch")
    return None if torch is None else getattr(torch, "Tensor", None)


def _tensor_dtype(code: int, dtypes: dict[int, Any] = {}) -> Any:  # noqa: B006 (a cache: the attribute of torch takes longer)
    dtype = dtypes.get(code)
    if dtype is None:
        dtype = dtypes[code] = getattr(sys.modules["torch"], _dtypes.NAMES[code], None)
    return dtype


def as_tensor(array: Array, code: int) -> torch.Tensor:
    """The tensor over the memory of an array, with items as the field's code says."""
    module: Any = sys.modules.get("torch") or importlib.import_module("torch")
    tensor: torch.Tensor = module.from_numpy(array.view(np.int16) if code == _dtypes.BFLOAT16 else array)
    return tensor.view(module.bfloat16) if code == _dtypes.BFLOAT16 else tensor


def _kind_of(value: Any, path: str) -> tuple[str, int]:
    """The kind of a leaf and its dtype. SchemaError if it cannot be cached."""
    kind = type(value)
    if kind in _NUMBERS:
        name, dtype = _NUMBERS[kind]
        return name, _dtypes.CODES[dtype]
    if kind is _tensor_type() and value.layout is sys.modules["torch"].strided and not value.is_quantized:
        return "tensor", _code_of(value, path)
    if kind is np.ndarray and not value.dtype.hasobject:
        return "array", _code_of(value, path)
    if isinstance(value, np.generic) and not value.dtype.hasobject and value.dtype.kind in "biufc":
        return "scalar", _code_of(value, path)
    if kind is bytes or kind is str:
        return kind.__name__, _dtypes.BYTES
    raise SchemaError(
        f"{path or 'the sample'} is {_describe(value)}, which cannot be cached; the dataset must give tensors, arrays, numbers, strings, bytes, "
        "or tuples, lists and dicts of them (convert images to tensors in its transform)"
    )


def _code_of(value: Any, path: str) -> int:
    try:
        return _dtypes.code_of(value.dtype)
    except InvalidError as error:
        raise SchemaError(f"{path or 'the sample'}: {error}") from None


def _describe(value: Any) -> str:
    dtype = getattr(value, "dtype", None)
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.") + (f" of {dtype}" if dtype is not None else "")


@dataclass(frozen=True)
class _Branch:
    kind: type
    keys: tuple[Any, ...]  # of a dict
    children: tuple[Any, ...]  # _Branch, or the number of a leaf, or None for a None


class Tree:
    """How the samples of a dataset are put together, learnt from one of them. Can be pickled.

    objects: what cannot be cached is a leaf of kind OBJECT, instead of a SchemaError."""

    def __init__(self, sample: Any, *, objects: bool = False) -> None:
        self.leaves: list[Leaf] = []
        self._objects = objects
        self._root = self._learn(sample, "")
        self._flat: tuple[Any, tuple[Any, ...]] | None = None  # of samples that are a plain tuple, list or dict of leaves: which, and the keys
        root: Any = self._root
        if isinstance(root, _Branch) and root.kind in (tuple, list, dict) and root.children == tuple(range(len(self.leaves))):
            self._flat = root.kind, root.keys
        tensor = _tensor_type()
        self._plain = frozenset((*_PLAIN, tensor) if tensor is not None else _PLAIN)

    def _learn(self, value: Any, path: str) -> Any:
        if value is None and not self._objects:
            return None
        items = _items(value)
        if items is None:
            self.leaves.append(self._leaf(value, path))
            return len(self.leaves) - 1
        keys, values = items
        children = tuple(self._learn(child, f"{path}.{key}" if path else str(key)) for key, child in zip(keys, values))
        return _Branch(type(value), tuple(keys) if isinstance(value, dict) else (), children)

    def _leaf(self, value: Any, path: str) -> Leaf:
        try:
            return Leaf(*_kind_of(value, path), path)
        except SchemaError:
            if not self._objects:
                raise
            return Leaf(OBJECT, -1, path)

    def take(self, sample: Any) -> list[Any]:
        """The leaves of a sample in their order. UnfitError if it is put together otherwise."""
        if self._root == 0 and _items(sample) is None and sample is not None:
            return [sample]  # the leaf is the sample
        flat = self._take_flat(sample)
        if flat is not None:
            return flat
        leaves: list[Any] = []
        self._walk(self._root, sample, leaves)
        return leaves

    def _take_flat(self, sample: Any) -> list[Any] | None:
        """The leaves of a sample as most are, in a quarter of the time."""
        if self._flat is None:
            return None
        kind, keys = self._flat
        if type(sample) is not kind or len(sample) != len(self.leaves):
            return None
        try:
            leaves = [sample[key] for key in keys] if keys else list(sample)
        except KeyError:
            return None
        plain = self._plain
        for value in leaves:
            if type(value) not in plain:
                return None
        return leaves

    # Methods, not closures: a function that names itself is a cycle, which would keep the leaves until the next garbage collection.

    def _walk(self, node: Any, value: Any, leaves: list[Any]) -> None:
        if node is None or isinstance(node, int):
            if node is not None and self.leaves[node].kind == OBJECT:
                leaves.append(value)
                return
            if (node is None) != (value is None) or (node is not None and _items(value) is not None):
                raise UnfitError(f"{self.leaves[node].path if node is not None else 'a None'} became {_describe(value)}")
            if node is not None:
                leaves.append(value)
            return
        items = _items(value)
        if items is None or type(value) is not node.kind or len(items[1]) != len(node.children) or (node.keys and set(items[0]) != set(node.keys)):
            raise UnfitError(f"a {node.kind.__name__} of {len(node.children)} became {_describe(value)}")
        for k, child in enumerate(node.children):
            self._walk(child, value[node.keys[k]] if node.keys else items[1][k], leaves)

    def give(self, leaves: Sequence[Any], *, tuples: type = tuple) -> Any:
        """A sample with these leaves. tuples: what plain tuples are made."""
        if self._flat is not None:
            kind, keys = self._flat
            return dict(zip(keys, leaves)) if kind is dict else tuples(leaves) if kind is tuple else list(leaves)
        return self._build(self._root, leaves, tuples)

    def _build(self, node: Any, leaves: Sequence[Any], tuples: type) -> Any:
        if node is None:
            return None
        if isinstance(node, int):
            return leaves[node]
        children = [self._build(child, leaves, tuples) for child in node.children]
        if node.keys:
            return dict(zip(node.keys, children))
        if node.kind is tuple:
            return tuples(children)
        return node.kind(*children) if hasattr(node.kind, "_fields") else node.kind(children)

    def names(self) -> list[str]:
        """A field name for each leaf: its path, or if that is too long or not unique a number."""
        paths = [leaf.path or _schema.DEFAULT_NAME for leaf in self.leaves]
        good = len(set(paths)) == len(paths) and all(len(path.encode()) <= _schema.MAX_NAME and "\0" not in path for path in paths)
        return paths if good else [f"f{k}" for k in range(len(paths))]


def _items(value: Any) -> tuple[Sequence[Any], Sequence[Any]] | None:
    """Keys and values of a container that samples are put together from, None for anything else."""
    kind = type(value)
    if kind is dict:
        return list(value), list(value.values())
    if kind is list or kind is tuple:
        return range(len(value)), value
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return kind._fields, value
    return None


def same(a: Any, b: Any) -> bool:
    """Whether two leaves are equal, bit for bit but for NaN, which equals NaN."""
    if isinstance(a, (str, bytes)):
        return bool(a == b)
    x, y = _schema.as_array(a), _schema.as_array(b)
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    return x.tobytes() == y.tobytes() or (x.dtype.kind in "fc" and bool(np.array_equal(x, y, equal_nan=True)))
