"""Containers in samples: how each kind is taken apart into values, and made again.

A value of a special type that is stored as a plain one (an Image of torchvision, an IntEnum, a
float8 tensor) is a container of one value. This imports no library: a value of torchvision or
tensordict exists only if the program has imported the library."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import inspect
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Parts(NamedTuple):
    """A container that was taken apart."""

    names: Sequence[Any]  # names of the values: keys, numbers, attributes; "": the value has no name of its own
    values: Sequence[Any]
    form: Any = None  # its other settings, which must be the same in all samples


class Container:
    """A kind of container. `kind` in its methods is the exact type of the value."""

    columns = True
    """Whether a batch of them is made from batches of their values. If not, from whole samples."""
    ordered = True
    """Whether the order of the values matters."""

    def parts(self, value: Any) -> Parts:
        raise NotImplementedError

    def make(self, kind: Any, names: Sequence[Any], form: Any, values: Sequence[Any]) -> Any:
        """A container of these values."""
        raise NotImplementedError

    def make_batch(self, kind: Any, names: Sequence[Any], form: Any, values: Sequence[Any]) -> Any:
        """A batch as a default collate function makes it, from the batches of the values."""
        return self.make(kind, names, form, values)


class _Sequence(Container):
    """list and tuple."""

    def parts(self, value: Any) -> Parts:
        return Parts(range(len(value)), value)

    def make(self, kind: Any, names: Sequence[Any], form: Any, values: Sequence[Any]) -> Any:
        return kind(values)


class _NamedTuple(Container):
    def parts(self, value: Any) -> Parts:
        return Parts(value._fields, value)

    def make(self, kind: Any, names: Sequence[Any], form: Any, values: Sequence[Any]) -> Any:
        return kind(*values)


class _Mapping(Container):
    """dict, UserDict and defaultdict, and OrderedDict, whose order matters."""

    def __init__(self, ordered: bool = False) -> None:
        self.ordered = ordered

    def parts(self, value: Any) -> Parts:
        return Parts(tuple(value), list(value.values()), getattr(value, "default_factory", None))

    def make(self, kind: Any, names: Sequence[Any], form: Any, values: Sequence[Any]) -> Any:
        items = zip(names, values)
        return kind(form, items) if kind is collections.defaultdict else kind(items)


class _Dataclass(Container):
    """A dataclass, with its fields and other attributes. `make` does not call its constructor."""

    columns = False  # torch's default collate function refuses them

    def parts(self, value: Any) -> Parts:
        attributes = dict(getattr(value, "__dict__", {}))
        for field in dataclasses.fields(value):
            # A field that is a slot of the class.
            if inspect.ismemberdescriptor(getattr(type(value), field.name, None)) and hasattr(value, field.name):
                attributes[field.name] = getattr(value, field.name)
        return Parts(tuple(attributes), list(attributes.values()))

    def make(self, kind: Any, names: Sequence[Any], form: Any, values: Sequence[Any]) -> Any:
        made = object.__new__(kind)
        for name, value in zip(names, values):
            object.__setattr__(made, name, value)  # works for a frozen dataclass too
        return made


class _TensorDict(Container):
    """A TensorDict. Its batch size may differ between samples, so these numbers are values too."""

    columns = False  # versions of tensordict make different batches
    ordered = False

    def parts(self, value: Any) -> Parts:
        keys = tuple(value.keys())
        values = [value.get(key) for key in keys]
        plain = tuple(type(child).__name__ == "NonTensorData" for child in values)
        values = [child.data if bare else child for child, bare in zip(values, plain)]
        sizes = list(value.batch_size)
        form = (dict(zip(keys, plain)), tuple(value.names), value.is_locked)
        return Parts((*keys, *(f"batch_size.{k}" for k in range(len(sizes)))), [*values, *sizes], form)

    def make(self, kind: Any, names: Sequence[Any], form: Any, values: Sequence[Any]) -> Any:
        plain, dims, locked = form
        sizes = list(values[len(plain) :])
        data = sys.modules["tensordict"].NonTensorData
        children = {
            key: data(value, batch_size=sizes) if plain[key] else value
            for key, value in zip(names[: len(plain)], values)
        }
        made = kind(children, batch_size=sizes, names=list(dims) if any(dims) else None)
        return made.lock_() if locked else made


class _TVTensor(Container):
    """An Image, Mask, Video, BoundingBoxes, ... of torchvision: its tensor, and attributes that are
    whole numbers, such as the size of the canvas."""

    def parts(self, value: Any) -> Parts:
        names, values, form = [""], [_plain_tensor(value)], []
        for name, more in vars(value).items():
            if isinstance(more, tuple) and all(type(number) is int for number in more):
                names += [f"{name}.{k}" for k in range(len(more))]
                values += more
                form.append((name, len(more), None))
            else:
                form.append((name, 0, more))
        return Parts(tuple(names), values, tuple(form))

    def make(self, kind: Any, names: Sequence[Any], form: Any, values: Sequence[Any]) -> Any:
        made, at = _torch().Tensor.as_subclass(values[0], kind), 1
        for name, count, constant in form:
            setattr(made, name, tuple(values[at : at + count]) if count else constant)
            at += count
        return made

    def make_batch(self, kind: Any, names: Sequence[Any], form: Any, values: Sequence[Any]) -> Any:
        batch, torch = values[0], sys.modules.get("torch")
        if isinstance(batch, np.ndarray) or torch is None:
            return batch
        # A plain tensor. After torchvision's set_return_type("TVTensor"): as the first sample.
        numbers = [column[0].item() for column in values[1:]]
        stacked = torch.stack([self.make(kind, names, form, [batch.new_empty(0), *numbers])])
        return batch if type(stacked) is torch.Tensor else self.make(type(stacked), names, form, [batch, *numbers])


class _Bits(Container):
    """A tensor of float8, which NumPy lacks: bytes of the same bits."""

    def parts(self, value: Any) -> Parts:
        return Parts(("",), [value.detach().view(_torch().uint8)], str(value.dtype).removeprefix("torch."))

    def make(self, kind: Any, names: Sequence[Any], form: Any, values: Sequence[Any]) -> Any:
        return values[0] if isinstance(values[0], np.ndarray) else values[0].view(getattr(_torch(), form))


class _Wrapped(Container):
    """A number or text of a subclass: an IntEnum, a StrEnum, np.str_."""

    def __init__(self, base: type) -> None:
        self._base = base
        self.columns = base in (int, float)  # a batch of texts is a list of the samples' texts

    def parts(self, value: Any) -> Parts:
        plain = self._base.__str__(value) if self._base is str else self._base(value)
        return Parts(("",), [plain])

    def make(self, kind: Any, names: Sequence[Any], form: Any, values: Sequence[Any]) -> Any:
        return kind(values[0])

    def make_batch(self, kind: Any, names: Sequence[Any], form: Any, values: Sequence[Any]) -> Any:
        return values[0]


class _Member(Container):
    """A member of an Enum that is neither number nor text: its name."""

    columns = False

    def parts(self, value: Any) -> Parts:
        return Parts(("",), [value.name])

    def make(self, kind: Any, names: Sequence[Any], form: Any, values: Sequence[Any]) -> Any:
        return kind[values[0]]


_SEQUENCE, _NAMED_TUPLE, _DATACLASS, _TENSOR_DICT, _TV_TENSOR, _BITS, _MEMBER = (
    _Sequence(), _NamedTuple(), _Dataclass(), _TensorDict(), _TVTensor(), _Bits(), _Member(),
)  # fmt: skip
_EXACT: dict[type, Container] = {
    dict: _Mapping(),
    list: _SEQUENCE,
    tuple: _SEQUENCE,
    collections.UserDict: _Mapping(),
    collections.defaultdict: _Mapping(),
    collections.OrderedDict: _Mapping(ordered=True),
    np.str_: _Wrapped(str),
    np.bytes_: _Wrapped(bytes),
}
_PLAIN = frozenset((bool, int, float, complex, str, bytes, np.ndarray, type(None)))
_BASES = (int, float, str, bytes)


def container_of(value: Any) -> Container | None:
    """The container of a value. None: the value is a leaf, or cannot be cached."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return None
    container = _EXACT.get(kind)
    if container is not None:
        return container
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
        if kind is torch.Tensor:
            return _BITS if _has_other_bits(value) else None
        tv = sys.modules.get("torchvision.tv_tensors")
        return _TV_TENSOR if tv is not None and isinstance(value, tv.TVTensor) else None
    return _container_of_type(kind)


@functools.lru_cache(maxsize=1024)
def _container_of_type(kind: Any) -> Container | None:
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _NAMED_TUPLE
    if issubclass(kind, enum.Enum):
        return next((_Wrapped(base) for base in _BASES if issubclass(kind, base)), _MEMBER)
    # A class with another __new__ also is a dict, or another type in C.
    if dataclasses.is_dataclass(kind) and kind.__new__ is object.__new__:
        return _DATACLASS
    if kind.__name__ == "TensorDict" and kind.__module__.partition(".")[0] == "tensordict":
        return _TENSOR_DICT
    return None


def _torch() -> Any:
    return sys.modules["torch"]


def _plain_tensor(value: Any) -> Any:
    torch = _torch()
    with torch._C.DisableTorchFunctionSubclass():
        return value.as_subclass(torch.Tensor)


def _has_other_bits(tensor: Any) -> bool:
    return bool(
        tensor.dtype.is_floating_point
        and tensor.element_size() == 1
        and tensor.layout is _torch().strided
        and not tensor.is_meta
    )
