"""Samples of a dataset as Python values: tensors, arrays, numbers, strings, and tuples, lists and
dicts of them.

A Tree holds the structure of a sample. It takes other samples of the dataset apart into leaves in
the same order, and makes samples of leaves with the same Python types. Leaves become fields of a
cache or columns of a batch. It needs torch only for tensors. containers.py says what a container
is, and takes it apart."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

from .._common.errors import InvalidError, SchemaError
from . import dtypes as _dtypes
from . import schema
from .containers import Container, Parts, container_of
from .schema import Array, Field

OBJECT = "object"  # the kind of a leaf that cannot be cached: workers pickle it
_NUMBERS = {
    bool: ("bool", "bool"),
    int: ("int", "int64"),
    float: ("float", "float64"),
    complex: ("complex", "complex128"),
}
PLAIN_NUMBERS = {"bool": bool, "int": int, "float": float}
_ARRAYS = (np.ndarray, np.memmap)
_PLAIN = (*_NUMBERS, str, bytes, *_ARRAYS)  # types of leaves


class UnfitError(SchemaError):
    """A sample with another structure than the first sample."""


@dataclass(frozen=True)
class Leaf:
    """One value of a sample: its kind of Python object, its dtype in the cache, and its path in the
    sample."""

    kind: str  # tensor, array, scalar (of NumPy), bool, int, float, complex, bytes, str; object
    code: int  # number in enum stoc_dtype; -1 for an object
    path: str

    @property
    def called(self) -> str:
        return called(self.path)

    @property
    def described(self) -> str:
        return f"{self.kind} of {_dtypes.NAMES[self.code]}" if self.kind in ("tensor", "array", "scalar") else self.kind

    def to_cache(self, value: Any) -> Array:
        """The array to store. UnfitError if the value is of another kind."""
        if self.kind == "tensor" and type(value) is _tensor_type() and value.dtype is _tensor_dtype(self.code):
            return schema.tensor_as_array(value)  # the most frequent case, and the one in most haste
        kind, code = kind_of(value, self.path)
        if (kind, code) != (self.kind, self.code):
            raise UnfitError(f"{called(self.path)} is {_describe(value)}, not {self.described}")
        if kind == "str":
            return np.frombuffer(value.encode(errors="surrogatepass"), np.uint8)
        if kind == "bytes":
            return np.frombuffer(value, np.uint8)
        if kind == "int" and not -(2**63) <= value < 2**63:
            raise UnfitError(f"{called(self.path)} is {value}, which takes more than 64 bits")
        if kind in ("bool", "int", "float", "complex"):
            return np.asarray(value, _dtypes.NUMPY[code])
        return schema.as_array(value)

    def stacked(self, values: list[Any]) -> Any:
        """The values of several samples as one array or a list of numbers; None if they are not all
        alike."""
        types = {*map(type, values)}
        if self.kind == "tensor":
            simple = types == {_tensor_type()} and {value.dtype for value in values} == {_tensor_dtype(self.code)}
            return schema.tensor_as_array(sys.modules["torch"].stack(values)) if simple else None
        if self.kind == "array":
            simple = types == {np.ndarray} and {value.dtype for value in values} == {_dtypes.NUMPY[self.code]}
            return np.stack(values) if simple else None
        return values if types == {PLAIN_NUMBERS.get(self.kind)} else None

    def from_cache(self, value: Any) -> Any:
        """The object made of an array (of bytes for fields of bytes) that is the caller's own."""
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
        """The objects of many samples of fixed size. Tensors and arrays are rows of `rows`, not
        copies."""
        if self.kind == "tensor":
            return list(as_tensor(rows, self.code).unbind(0))
        if self.kind in ("array", "bytes", "str", "scalar"):
            each = [rows[k, ...] for k in range(len(rows))]
            return [self.from_cache(row.tobytes() if self.code == _dtypes.BYTES else row) for row in each]
        numbers: list[Any] = rows.tolist()
        return numbers

    def field(self, name: str, shapes: Sequence[tuple[int, ...]]) -> Field:
        """The field for values of these shapes. A dimension that differs between them, or is 0, may
        differ between samples."""
        if self.kind in ("bytes", "str"):
            return Field(name, (None,), _dtypes.BYTES)
        if len({len(shape) for shape in shapes}) != 1:
            counts = sorted({len(shape) for shape in shapes})
            raise SchemaError(
                f"{called(self.path)} has {counts} dimensions in different samples; it must be one number"
            )
        return Field(
            name, tuple(dims[0] if len(set(dims)) == 1 and dims[0] else None for dims in zip(*shapes)), self.code
        )


def _tensor_type() -> Any:
    """torch.Tensor; None until the program imports torch, as it has no tensors before."""
    torch = sys.modules.get("torch")
    return None if torch is None else getattr(torch, "Tensor", None)


def _tensor_dtype(code: int, dtypes: dict[int, Any] = {}) -> Any:  # noqa: B006 (a cache: the attribute of torch takes longer)
    dtype = dtypes.get(code)
    if dtype is None:
        dtype = dtypes[code] = getattr(sys.modules["torch"], _dtypes.NAMES[code], None)
    return dtype


def as_tensor(array: Array, code: int) -> torch.Tensor:
    """A tensor over the memory of an array, with items of the field's code."""
    module: Any = sys.modules.get("torch") or importlib.import_module("torch")
    tensor: torch.Tensor = module.from_numpy(array.view(np.int16) if code == _dtypes.BFLOAT16 else array)
    return tensor.view(module.bfloat16) if code == _dtypes.BFLOAT16 else tensor


def kind_of(value: Any, path: str) -> tuple[str, int]:
    """The kind of a leaf and its dtype. SchemaError if it cannot be cached."""
    kind = type(value)
    if kind in _NUMBERS:
        name, dtype = _NUMBERS[kind]
        return name, _dtypes.CODES[dtype]
    if (
        kind is _tensor_type()
        and value.layout is sys.modules["torch"].strided
        and not value.is_quantized
        and not value.is_meta
    ):
        return "tensor", _code_of(value, path)
    if kind in _ARRAYS and not value.dtype.hasobject:
        return "array", _code_of(value, path)
    if isinstance(value, np.generic) and not value.dtype.hasobject and value.dtype.kind in "biufcmM":
        return "scalar", _code_of(value, path)
    if kind is bytes or kind is str:
        return kind.__name__, _dtypes.BYTES
    raise SchemaError(f"{called(path)} is {_describe(value)}, which cannot be cached; {_remedy(value)}")


def _remedy(value: Any) -> str:
    """What the dataset should give instead."""
    kind, library = type(value), type(value).__module__.partition(".")[0]
    if library == "PIL":
        return "convert the picture in the dataset's transform, for example with torchvision.transforms.functional.pil_to_tensor or numpy.asarray"
    if library == "tensordict":
        return "give a TensorDict, for example with .to_tensordict()"
    if isinstance(value, (set, frozenset)):
        return "give a sorted list of its values"
    if isinstance(value, _tensor_type() or ()):
        if kind is not _tensor_type():
            return "give a plain tensor, for example with .detach().as_subclass(torch.Tensor)"
        return (
            "give a tensor that has values"
            if value.is_meta
            else "give a dense tensor, for example with .to_dense() or .dequantize()"
        )
    if hasattr(value, "to_numpy"):
        return "convert it in the dataset, for example with .to_numpy()"
    if isinstance(value, np.ndarray):
        return "give an array of numbers, or a list of strings"
    return "give tensors, arrays, numbers, strings, bytes, or tuples, lists, dicts and dataclasses of them"


# Cached: NumPy takes 5 us for the name of a dtype, and each stored value needs one.
_code_of_dtype = functools.lru_cache(256)(_dtypes.code_of)


def _code_of(value: Any, path: str) -> int:
    try:
        return _code_of_dtype(value.dtype)
    except InvalidError as error:
        raise SchemaError(f"{called(path)}: {error}; convert it before, such as by .astype or .tolist") from None


def _describe(value: Any) -> str:
    dtype = getattr(value, "dtype", None)
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.") + (
        f" of {dtype}" if dtype is not None else ""
    )


@dataclass(frozen=True)
class _Branch:
    kind: type
    container: Container
    names: Any  # names of the children
    form: Any
    path: str
    children: tuple[Any, ...]  # each a _Branch, the number of a leaf, or None for the value None

    def values(self, value: Any) -> Sequence[Any]:
        """The values of another sample's container, in the order of the children. UnfitError if it
        has another kind, settings or names."""
        if type(value) is not self.kind:
            raise UnfitError(f"{called(self.path)} is {_describe(value)}, not {self.described}")
        parts = self.container.parts(value)
        if parts.form != self.form:
            raise UnfitError(
                f"{called(self.path)} is a {self.kind.__name__} with the settings {parts.form}, not {self.form}"
            )
        return parts.values if parts.names == self.names else self._reordered(parts)

    def _reordered(self, parts: Parts) -> Sequence[Any]:
        by_name = dict(zip(parts.names, parts.values))
        if self.container.ordered or len(by_name) != len(self.names) or any(name not in by_name for name in self.names):
            raise UnfitError(
                f"{called(self.path)} is a {self.kind.__name__} {_listed(parts.names)}, not {_listed(self.names)}"
            )
        return [by_name[name] for name in self.names]

    @property
    def described(self) -> str:
        return f"a {self.kind.__name__} {_listed(self.names)}"


def _listed(names: Sequence[Any]) -> str:
    return f"of {len(names)} values" if isinstance(names, range) else f"with {', '.join(repr(name) for name in names)}"


class Tree:
    """The structure of a dataset's samples, taken from one of them. Can be pickled.

    objects: a value that cannot be cached is a leaf of kind OBJECT, and no SchemaError."""

    def __init__(self, sample: Any, *, objects: bool = False) -> None:
        self.leaves: list[Leaf] = []
        self.in_sequences: set[int] = set()  # leaves in a tuple or list: torch puts their texts into a tuple
        self._objects = objects
        self._root = self._learn(sample, "")
        # Type and keys, if samples are a plain tuple, list or dict of leaves.
        self._flat: tuple[Any, tuple[Any, ...]] | None = None
        root: Any = self._root
        if (
            isinstance(root, _Branch)
            and root.kind in (tuple, list, dict)
            and root.children == tuple(range(len(self.leaves)))
        ):
            self._flat = root.kind, root.names if root.kind is dict else ()
        tensor = _tensor_type()
        self._plain = frozenset((*_PLAIN, tensor) if tensor is not None else _PLAIN)

    def _learn(self, value: Any, path: str) -> Any:
        if value is None and not self._objects:
            return None
        container = container_of(value)
        if container is None or (self._objects and not container.columns):
            self.leaves.append(self._leaf(value, path) if container is None else Leaf(OBJECT, -1, path))
            return len(self.leaves) - 1
        names, values, form = container.parts(value)
        children = tuple(self._learn(child, _joined(path, name)) for name, child in zip(names, values))
        if isinstance(value, (tuple, list)):
            self.in_sequences.update(child for child in children if isinstance(child, int))
        return _Branch(type(value), container, names, form, path, children)

    def _leaf(self, value: Any, path: str) -> Leaf:
        try:
            return Leaf(*kind_of(value, path), path)
        except SchemaError:
            if not self._objects:
                raise
            return Leaf(OBJECT, -1, path)

    def take(self, sample: Any) -> list[Any]:
        """The leaves of a sample in order. UnfitError if it has another structure."""
        if self._root == 0 and type(sample) in self._plain:
            return [sample]  # the leaf is the sample
        flat = self._take_flat(sample)
        if flat is not None:
            return flat
        leaves: list[Any] = []
        self._walk(self._root, sample, leaves)
        return leaves

    def _take_flat(self, sample: Any) -> list[Any] | None:
        """The leaves of a flat sample, in a quarter of the time of `_walk`; None: use `_walk`."""
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

    # Methods, not closures: a closure that names itself is a cycle, and would keep the leaves until
    # the next garbage collection.

    def _walk(self, node: Any, value: Any, leaves: list[Any]) -> None:
        if isinstance(node, _Branch):
            for child, part in zip(node.children, node.values(value)):
                self._walk(child, part, leaves)
        elif node is None:
            if value is not None:
                raise UnfitError(f"a None became {_describe(value)}")
        elif (
            type(value) in self._plain
            or self.leaves[node].kind == OBJECT
            or (value is not None and container_of(value) is None)
        ):
            leaves.append(value)
        else:
            raise UnfitError(f"{self.leaves[node].called} is {_describe(value)}, not {self.leaves[node].described}")

    def give(self, leaves: Sequence[Any]) -> Any:
        """A sample with these leaves."""
        if self._flat is not None:
            kind, keys = self._flat
            return dict(zip(keys, leaves)) if kind is dict else kind(leaves)
        return self._build(self._root, leaves)

    def _build(self, node: Any, leaves: Sequence[Any]) -> Any:
        if not isinstance(node, _Branch):
            return None if node is None else leaves[node]
        return node.container.make(
            node.kind, node.names, node.form, [self._build(child, leaves) for child in node.children]
        )

    def give_batch(self, columns: Sequence[Any], tuples: type) -> Any:
        """The batch of samples whose leaves are these columns. tuples: the type to make of plain
        tuples."""
        if self._flat is not None:
            kind, keys = self._flat
            return dict(zip(keys, columns)) if kind is dict else (tuples if kind is tuple else kind)(columns)
        return self._build_batch(self._root, columns, tuples)

    def _build_batch(self, node: Any, columns: Sequence[Any], tuples: type) -> Any:
        if not isinstance(node, _Branch):
            return None if node is None else columns[node]
        children = [self._build_batch(child, columns, tuples) for child in node.children]
        return node.container.make_batch(tuples if node.kind is tuple else node.kind, node.names, node.form, children)

    @property
    def by_columns(self) -> bool:
        """Whether a batch is made from batches of the leaves."""
        return _by_columns(self._root)

    @property
    def described(self) -> str:
        """The kind of samples, for messages."""
        return (
            self._root.described
            if isinstance(self._root, _Branch)
            else self.leaves[0].described
            if self.leaves
            else "None"
        )

    def names(self) -> list[str]:
        """A field name for each leaf: its path, or a number if paths are too long or not unique."""
        paths = [leaf.path or schema.DEFAULT_NAME for leaf in self.leaves]
        good = len(set(paths)) == len(paths) and all(
            len(path.encode()) <= schema.MAX_NAME and "\0" not in path for path in paths
        )
        return paths if good else [f"f{k}" for k in range(len(paths))]


def _by_columns(node: Any) -> bool:
    if not isinstance(node, _Branch):
        return node is not None  # collate functions make a list of None, or refuse it
    return node.container.columns and all(map(_by_columns, node.children))


def called(path: str) -> str:
    """The name of a value in messages: the number of an item of a tuple or list, else the path."""
    if path.isdigit():
        return f"item {path}"
    return f"value {path!r}" if path else "the sample"


def _joined(path: str, name: Any) -> str:
    return f"{path}.{name}" if path and name != "" else path or str(name)


def same(a: Any, b: Any) -> bool:
    """Whether two leaves have one type and the same bits; NaN equals NaN. A memmap counts as an
    array."""
    if type(a) is not type(b) and not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return False
    if isinstance(a, (str, bytes)):
        return bool(a == b)
    x, y = schema.as_array(a), schema.as_array(b)
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    return x.tobytes() == y.tobytes() or (x.dtype.kind in "fc" and bool(np.array_equal(x, y, equal_nan=True)))
