"""One table of calls for stocaching's class and for ours: equal results, equal kinds of exceptions,
equal printed text."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import warnings
from typing import Any

import numpy as np
import pytest
from torch_helpers import torch

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        torch is not None and not hasattr(torch.dtype, "itemsize"), reason="stocaching needs torch 2.1 (dtype.itemsize)"
    ),
    pytest.mark.skipif(
        importlib.util.find_spec("stocaching") is None, reason="stocaching is missing: it supports Python before 3.13"
    ),
]

# without bool, which fails in stocaching's constructor since torch refuses `bool *= 0`
DTYPES = ["uint8", "int8", "int16", "int32", "int64", "float32", "float64"]
LENGTH, DIMS = 12, (2, 3)


def values(dtype: str) -> dict[str, Any]:
    dtype = getattr(torch, dtype)
    return {
        "sample": (torch.arange(6) * 3 - 2).reshape(DIMS).to(dtype),
        "other": (torch.arange(6) + 50).reshape(DIMS).to(dtype),
        "float": torch.full(DIMS, 3.7),
        "negative": torch.full(DIMS, -1),
        "large": torch.full(DIMS, 300),
        "row": torch.tensor([1, 2, 3]),
        "column": torch.tensor([[1], [2]]).to(dtype),
        "transposed": (torch.arange(6) + 9).reshape(3, 2).T.to(dtype),
        "grad": torch.ones(DIMS, requires_grad=True),
        "zero-dim": torch.tensor(5),
        "number": 7,
        "fraction": 7.9,
        "true": True,
        "wrong shape": torch.zeros(4, 4),
        "too many dims": torch.zeros(1, 2, 2, 3),
        "one more dim": torch.ones(1, 2, 3),
        "array": np.ones(DIMS, np.uint8),
        "list": [[1, 2, 3], [4, 5, 6]],
        "None": None,
        "text": "a",
        "too large a number": 10**6,
    }


def tensor(value: Any) -> Any:
    return torch.tensor(value) if torch else value  # without torch, tests are only collected


INDICES = {
    "0": 0, "5": 5, "-1": -1, "11": 11, "12": 12, "-12": -12, "-13": -13, "100": 100, "numpy": np.int64(3), "tensor": tensor(4),
    "float": 1.0, "text": "a", "None": None, "huge": 2**62,
}  # fmt: skip

VIEWS = {  # more indices for cache[...]
    "slice": slice(1, 4), "all": slice(None), "empty slice": slice(4, 1), "step": slice(0, 9, 4), "tuple": (1, 0), "tuple of slices": (slice(2, 4), 1),
    "ellipsis": ..., "ellipsis first": (..., 1), "new axis": None, "list": [1, 5, 1], "tensor": tensor([5, 1]),
    "matrix": tensor([[1, 2], [3, 1]]), "mask": tensor([k % 5 == 1 for k in range(12)]), "pairs": (tensor([1, 5]), tensor([0, 1])),
    "empty tuple": (), "too many": (1, 0, 0, 0), "outside": (1, 9), "list outside": [1, 12], "bool": True,
}  # fmt: skip


def script(dtype: str) -> list[tuple[str, Any]]:
    """The calls, in order. Each runs on both caches before the next."""
    calls: list[tuple[str, Any]] = [
        ("len", len),
        ("shape", lambda c: tuple(c.array.shape)),
        ("dtype", lambda c: c.array.dtype),
        ("aux", lambda c: c.aux_array),
    ]
    some = values(dtype)
    for name, index in INDICES.items():
        calls.append((f"get {name} from empty", lambda c, index=index: c.get_slot(index)))
        for flags in (
            {"allow_oob_idx": False},
            {"allow_empty_slot": False},
            {"allow_oob_idx": False, "allow_empty_slot": False},
        ):
            calls.append(
                (f"get {name} from empty {flags}", lambda c, index=index, flags=flags: c.get_slot(index, **flags))
            )
    for slot, (name, value) in enumerate(some.items()):
        slot %= LENGTH
        calls.append(
            (
                f"set {slot} to {name}",
                lambda c, slot=slot, value=value: c.set_slot(slot, value, allow_overwrite=slot % 2 == 0),
            )
        )
        calls.append((f"get {slot}", lambda c, slot=slot: c.get_slot(slot)))
    for name, index in INDICES.items():
        for flags in (
            {},
            {"allow_overwrite": True},
            {"allow_oob_idx": False},
            {"allow_oob_idx": False, "allow_overwrite": True},
        ):
            calls.append(
                (f"set {name} {flags}", lambda c, index=index, flags=flags: c.set_slot(index, some["other"], **flags))
            )
        calls.append((f"get {name}", lambda c, index=index: c.get_slot(index)))
        calls.append((f"read [{name}]", lambda c, index=index: c[index]))
    calls += [
        ("aux", lambda c: c.aux_array),
        ("array", lambda c: c.array.clone()),
        ("clear", lambda c: c.clear()),
        ("aux", lambda c: c.aux_array),
    ]
    calls += [("array", lambda c: c.array.clone()), ("read cleared", lambda c: c[0])]

    def store(index: Any, value: Any) -> Any:
        return lambda c: c.__setitem__(index, value)

    for name, index in INDICES.items():
        calls.append((f"[{name}] = sample", store(index, some["sample"])))
        calls.append((f"get {name}", lambda c, index=index: c.get_slot(index)))  # the state must not have changed
        calls.append((f"read [{name}]", lambda c, index=index: c[index]))
    for name, value in some.items():
        calls += [(f"[-2] = {name}", store(-2, value)), ("read", lambda c: c[-2]), ("read", lambda c: c[10])]
    for name, index in VIEWS.items():
        calls.append((f"read [{name}]", lambda c, index=index: c[index]))
        if name == "list outside":
            continue  # torch stores the valid indices before it raises; ours stores nothing
        for value in ("number", "row", "sample", "wrong shape"):
            calls.append((f"[{name}] = {value}", store(index, some[value])))
            calls.append(("array", lambda c: c.array.clone()))
    calls += [
        ("set 3", lambda c: c.set_slot(3, 9)),
        ("[3] = 4", store(3, 4)),
        ("get 3", lambda c: c.get_slot(3)),
        ("aux", lambda c: c.aux_array),
    ]
    calls += [
        ("iterate", lambda c: [x.sum().item() for x in c]),
        ("reversed", lambda c: [x.sum().item() for x in reversed(c)]),
        ("contains", lambda c: len(list(c))),
    ]
    return calls


def outcome(call: Any, cache: Any) -> tuple[str, Any]:
    """The result of a call in a form that can be compared. For exceptions: their built-in types."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = call(cache)
    except Exception as error:
        for kind in (IndexError, RuntimeError, TypeError, ValueError):
            if isinstance(error, kind):
                return "raises", kind.__name__
        return "raises", type(error).__name__
    if isinstance(result, torch.Tensor):
        return "tensor", (result.dtype, tuple(result.shape), result.flatten().tolist())
    return "value", result


def both(*arguments: Any) -> tuple[Any, Any, str, str]:
    """stocaching's cache and ours, and what they printed."""
    import stocaching

    import stocached

    caches, printed = [], []
    for kind in (stocaching.SharedCache, stocached.SharedCache):
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            caches.append(outcome(lambda kind: kind(*arguments), kind))
        printed.append(text.getvalue())
    return *caches, *printed


@pytest.mark.parametrize("limit", ["all", "some"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_same_answers(dtype, limit):
    slot = 6 * getattr(torch, dtype).itemsize
    # "some": space for seven slots and the state bytes. stocaching documents whole GiB, but accepts
    # fractions.
    gib = 1 if limit == "all" else (7 * slot + LENGTH) / 2**30
    (_, theirs), (_, ours), their_text, our_text = both(gib, LENGTH, DIMS, getattr(torch, dtype))
    assert len(theirs) == len(ours) == (LENGTH if limit == "all" else 7)
    assert re.findall(r"[\d.]+ GiB|\d+ ", their_text)[:2] == re.findall(r"[\d.]+ GiB|\d+ ", our_text)[:2]
    assert ("exceeds" in our_text) == ("exceeds" in their_text) == (limit == "some")
    differences = []
    for name, call in script(dtype):
        want, got = outcome(call, theirs), outcome(call, ours)
        if want != got:
            differences.append(f"{name}: stocaching {want}, here {got}")
    assert not differences, "\n".join(differences)


@pytest.mark.parametrize(
    "arguments",
    [
        (1, 10, ()), (1, 10, (4,)), (1, 10, [2, 2]), (0.5, 10, (3,)), (1, 10, 4), (1, 10, (3,), np.uint8), (1, 10, (3,), "uint8"), (0, 10, (3,)),
        (-1, 10, (3,)),
        (1, 0, (3,)), (12 / 2**30, 12, (3,)), (13 / 2**30, 12, (3,)), (15 / 2**30, 12, (3,)), (11 / 2**30, 12, (2,)), (48 / 2**30, 12, (3,)), ("1", 10, (3,)),
    ],
)  # fmt: skip
def test_same_sizes_and_refusals(arguments):
    theirs, ours, their_text, our_text = both(*arguments)
    assert theirs[0] == ours[0], (theirs, ours)
    if theirs[0] == "raises":
        assert theirs == ours
    else:
        assert len(theirs[1]) == len(ours[1])
        assert tuple(theirs[1].array.shape) == tuple(ours[1].array.shape)
        assert theirs[1].aux_array.tolist() == ours[1].aux_array.tolist()
        assert ("exceeds" in their_text) == ("exceeds" in our_text)
        if len(ours[1]) == 0:
            for call in (
                lambda c: c.get_slot(0),
                lambda c: c.set_slot(0, 1),
                lambda c: c[0],
                lambda c: c.clear(),
                lambda c: c[:],
            ):
                assert outcome(call, theirs[1]) == outcome(call, ours[1])
            ours[1].stats()


def test_shm_size_is_the_same():
    import stocaching

    import stocached

    assert stocached.get_shm_size() == stocaching.get_shm_size()
