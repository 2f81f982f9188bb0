"""Samples of every kind that a cache takes, by name, and a function that compares two of them."""

from __future__ import annotations

import collections
import dataclasses
import enum
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensordict
from torch_helpers import torch
from torchvision import tv_tensors

N = 12


class Level(enum.IntEnum):
    LOW = 0
    HIGH = 5


class Access(enum.IntFlag):
    READ = 1
    WRITE = 2


class Split(str, enum.Enum):
    TRAIN = "train"
    TEST = "test"


class Colour(enum.Enum):
    RED = (255, 0, 0)
    BLUE = (0, 0, 255)


Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Target:
    boxes: Any
    label: int
    name: str = ""


@dataclasses.dataclass(frozen=True)
class Frozen:
    image: Any
    count: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", len(self.image))
        object.__setattr__(self, "more", "no field")


@dataclasses.dataclass
class Slotted:
    __slots__ = ("x", "y")
    x: int
    y: Any


@tensordict.tensorclass
class Step:
    state: torch.Tensor
    action: torch.Tensor


def of(index: int, *shape: int, dtype: Any = torch.float32) -> Any:
    return torch.full(shape, index).to(dtype)


def boxes(index: int, count: int = 2) -> Any:
    return tv_tensors.BoundingBoxes(
        of(index, count, 4), format="XYWH", canvas_size=(100 + index, 50), clamping_mode="hard"
    )


# Kinds that torch's default collate function takes.
COLLATED: dict[str, Callable[[int], Any]] = {
    "Image": lambda k: tv_tensors.Image(of(k, 3, 4, 5, dtype=torch.uint8)),
    "Mask": lambda k: tv_tensors.Mask(of(k, 4, 5, dtype=torch.bool)),
    "Video": lambda k: tv_tensors.Video(of(k, 2, 3, 4, 5, dtype=torch.uint8)),
    "BoundingBoxes": boxes,
    "KeyPoints": lambda k: tv_tensors.KeyPoints(of(k, 3, 2), canvas_size=(k, k + 1)),
    "detection": lambda k: (
        tv_tensors.Image(of(k, 3, 4, 5)),
        {"boxes": boxes(k), "labels": of(k, 2, dtype=torch.int64)},
    ),
    "TensorDict": lambda k: tensordict.TensorDict({"a": of(k, 3), "b": {"c": of(k, 2, 2)}}, []),
    "TensorDict of rows": lambda k: tensordict.TensorDict({"a": of(k, 3), "b": of(k, 3, 2)}, [3]),
    "tensorclass": lambda k: Step(of(k, 3), of(k), batch_size=[]),
    "OrderedDict": lambda k: collections.OrderedDict(z=k, a=of(k, 2)),
    "UserDict": lambda k: collections.UserDict(z=k, a=of(k, 2)),
    "defaultdict": lambda k: collections.defaultdict(int, z=k, a=of(k, 2)),
    "IntEnum": lambda k: Level(5 * (k % 2)),
    "IntFlag": lambda k: Access(k % 4),
    "str_": lambda k: np.str_(f"é{k % 2}"),
    "StrEnum": lambda k: Split("train" if k % 2 else "test"),
    "float8": lambda k: of(k, 3, dtype=torch.float8_e5m2),
    "float8 scalar": lambda k: of(k, dtype=torch.float8_e4m3fn),
    "memmap": lambda k: _mapped()[k],
    "25 values": lambda k: [k + j for j in range(25)],
    "60 values": lambda k: {f"{j}": of(k + j, j % 3 + 1) if j % 2 else (k + j) / 2 for j in range(60)},
    "namedtuple": lambda k: Point(of(k, 2), k),
}
# Kinds that need another collate function.
OTHERS: dict[str, Callable[[int], Any]] = {
    "dataclass": lambda k: Target(boxes(k, k % 3), k, "n" * (k % 4)),
    "frozen dataclass": lambda k: Frozen(of(k, 4)),
    "dataclass with slots": lambda k: Slotted(k, of(k, 2)),
    "dataclasses in it": lambda k: {"targets": [Target(of(k), k), Target(of(k), -k)]},
    "Enum": lambda k: [Colour.RED if k % 2 else Colour.BLUE],
    "TensorDict with a text": lambda k: tensordict.TensorDict(
        {"a": of(k, 3), "t": f"text {k}"}, [3], names=["time"]
    ).lock_(),
    "TensorDict of any length": lambda k: tensordict.TensorDict({"a": of(k, k % 4 + 1, 2)}, [k % 4 + 1]),
    "boxes of any number": lambda k: {"boxes": boxes(k, k % 3)},
    "bytes_": lambda k: np.bytes_(b"b" * (k % 3 + 1)),
    "texts among 40 values": lambda k: [
        f"{k}" * (j % 3) if j % 5 == 0 else of(k, (k + j) % 4) if j % 5 == 1 else k for j in range(40)
    ],
    "every leaf": lambda k: {
        "image": of(k, 2, 3, dtype=torch.float16),
        "nested": (np.arange(4, dtype=np.int16) + k, [k, k / 3, complex(k, -k)], Point(k % 2 == 0, None)),
        "scalar": np.float32(k / 7),
        "bf16": torch.tensor([k, -k], dtype=torch.bfloat16),
        "zero-dim": (torch.tensor(k * 1.5), np.array(k)),
        3: {"b": (k,)},
    },
    "leaves of any size": lambda k: [
        "é" * k,
        os.fsdecode(bytes([0xF0 + k])),
        b"\0" * k,
        of(k, k % 4, 4),
        np.zeros((2, k), np.uint32) + k,
    ],
    "transposed": lambda k: torch.zeros(3, 5).T + k,
    "no rows": lambda k: torch.zeros(0, 4),
    "text": lambda k: f"text {k}",
    "bool": lambda k: k % 2 == 1,
    "float": float,
}


def _mapped() -> Any:
    return np.memmap("/proc/self/exe", np.uint8, "c", shape=(N, 100))


class Kind:
    """A dataset of samples of one kind."""

    def __init__(self, make: Callable[[int], Any], n: int = N) -> None:
        self.make, self.n, self.loads = make, n, []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        self.loads.append(index)
        return self.make(index)


def alike(a: Any, b: Any) -> bool:
    """Whether types, values and settings are equal. A row of a memmap comes back as an array."""
    if type(a) is not type(b) and {type(a), type(b)} != {np.memmap, np.ndarray}:
        return False
    if isinstance(a, torch.Tensor):
        x, y = ((t.view(torch.uint8) if t.element_size() == 1 else t).as_subclass(torch.Tensor) for t in (a, b))
        return a.dtype == b.dtype and torch.equal(x, y) and alike(vars(a), vars(b))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, tensordict.TensorDict):
        settings = [(t.batch_size, t.names, t.is_locked, t.device) for t in (a, b)]
        return (
            settings[0] == settings[1]
            and list(a.keys()) == list(b.keys())
            and all(alike(a.get(key), b.get(key)) for key in a.keys())  # noqa: SIM118
        )
    if isinstance(a, Step):
        return alike(a.to_tensordict(), b.to_tensordict())
    if isinstance(a, tensordict.NonTensorData):
        return bool(a.data == b.data and a.batch_size == b.batch_size)
    if isinstance(a, Mapping):
        return (
            list(a) == list(b)
            and getattr(a, "default_factory", None) == getattr(b, "default_factory", None)
            and all(alike(a[key], b[key]) for key in a)
        )
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(alike, a, b))
    if dataclasses.is_dataclass(a):
        names = [field.name for field in dataclasses.fields(a)]
        return all(alike(getattr(a, name), getattr(b, name)) for name in names) and alike(
            getattr(a, "__dict__", {}), getattr(b, "__dict__", {})
        )
    return bool(a == b)
