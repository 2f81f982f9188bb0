"""The options of a cache: Python and C refuse what Go refuses, with the same texts (docs/spec/options.md)."""

from __future__ import annotations

import ctypes
import inspect
import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest

import stocached
from stocached import Cache, InvalidError, _native
from stocached._cache import policies
from stocached._cache.option_table import NUMBERS

ROOT = Path(__file__).parents[3]
CASES = json.loads((ROOT / "shm/testdata/options.json").read_text())
MEMBERS = dict(re.findall(r"^\| `(\w+)` \| `(\w+)`", (ROOT / "docs/spec/options.md").read_text(), re.MULTILINE))


def cases(language: str) -> list[Any]:
    return [pytest.param(case, id=case["error"][:60]) for case in CASES if language not in case.get("not", ())]


@pytest.mark.parametrize("case", cases("python"))
def test_python(case):
    given = dict(case["given"])
    if "unlink" in given:
        given["unlink"] = "last"
    if "fields" in given:
        given["fields"] = {"abcdefgh"[k]: ((n,), "uint8") for k, n in enumerate(given["fields"])}
    error = stocached.CacheMemoryError if case.get("memory") else InvalidError
    with pytest.raises(error) as caught:
        Cache.create(**given)
    assert str(caught.value) == case["error"]


@pytest.mark.parametrize("case", cases("c"))
def test_c(case):
    given = dict(case["given"])
    name = given.pop("name", None)
    options = _native.Options(struct_bytes=ctypes.sizeof(_native.Options))
    if "fields" in given:
        lengths = given.pop("fields")
        fields = (_native.Field * max(len(lengths), 1))()
        for k, n in enumerate(lengths):
            fields[k].name, fields[k].dtype, fields[k].ndim, fields[k].dims[0] = (
                b"abcdefgh"[k : k + 1],
                _native.UINT8,
                1,
                n,
            )
        options.fields, options.field_count = fields, len(lengths)
    for option, value in given.items():
        if option == "policy" and isinstance(value, str):
            value = policies.number_of(value)
        setattr(options, MEMBERS[option], value.encode() if isinstance(value, str) else value)
    handle, error = _native.Cache(), _native.Error()
    code = _native.create(None if name is None else name.encode(), options, handle, error)
    assert code == (_native.EMEMORY if case.get("memory") else _native.EINVAL)
    assert error.message.decode() == case["error"]


def test_every_option_is_a_parameter_and_a_member():
    parameters = set(inspect.signature(Cache.create).parameters)
    assert set(MEMBERS) <= parameters
    assert parameters - set(MEMBERS) == {"name", "shape", "dtype", "progress"}
    members = {name for name, *_ in _native.Options._fields_}
    assert set(MEMBERS.values()) <= members
    for option in MEMBERS:
        assert f"\n        {option}: " in inspect.getsource(Cache.create)
    assert {name: member for name, (member, *_) in NUMBERS.items()}.items() <= MEMBERS.items()


@pytest.mark.parametrize(
    ("option", "value"),
    [(option, value) for option in NUMBERS for value in (-1, 0, 2**64, 2**64 + 8)]
    + [(option, value) for option in NUMBERS if option != "size" for value in ("ten", 0.5)],
)
def test_numbers_out_of_range(option, value):
    with pytest.raises(InvalidError, match=rf"^{option}: {value} is not "):
        Cache.create(**{"samples": 9, "sample_bytes": 8, option: value})


def test_policies_have_the_numbers_of_the_library():
    for name in get_args(policies.Policy):
        assert policies.number_of(name) == getattr(_native, "POLICY_" + name.upper().replace("-", "_")), name
