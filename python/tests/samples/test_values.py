"""Values of every schema come back unchanged: fixed and variable size, one field and several,
views, copies and gathers. Random values, and examples."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import stocached
from stocached import Cache, CorruptError, SetResult
from stocached._samples.schema import make_fields
from stocached._samples.values import VariableValues

DTYPES = ["bool", "uint8", "int16", "uint32", "int64", "float16", "float32", "float64", "complex64", "complex128"]
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def schemas(draw, variable: bool):
    dims = st.one_of(st.none(), st.integers(1, 4)) if variable else st.integers(1, 4)
    fields = draw(
        st.dictionaries(
            st.text("abcxyz.µ", min_size=1, max_size=6),
            st.tuples(st.lists(dims, max_size=3).map(tuple), st.sampled_from(DTYPES)),
            min_size=1,
            max_size=5,
        )
    )
    return fields


@st.composite
def value_of(draw, fields):
    values = {}
    for name, (shape, dtype) in fields.items():
        exact = tuple(draw(st.integers(0, 5)) if dim is None else dim for dim in shape)
        values[name] = draw(hnp.arrays(dtype, exact))
    return values


def same(got, want) -> bool:
    if len(want) == 1:
        got = dict.fromkeys(want, got)
    return list(got) == list(want) and all(
        np.asarray(got[name]).dtype == want[name].dtype
        and np.asarray(got[name]).shape == want[name].shape
        and np.asarray(got[name]).tobytes() == want[name].tobytes()
        for name in want
    )


def as_sample(value):
    return value if len(value) > 1 else next(iter(value.values()))


@given(st.data(), st.booleans())
@QUICK
def test_what_goes_in_comes_out(data, variable):
    fields = data.draw(schemas(variable))
    values = {k: data.draw(value_of(fields)) for k in (0, 3)}
    with Cache.create(samples=5, fields=fields, variable=variable, size="64MiB" if variable else None) as cache:
        for k, value in values.items():
            assert cache.put(k, as_sample(value)) is SetResult.STORED
        for k, value in values.items():
            assert same(cache.get(k), value)
            assert same(cache.get(k, copy=True), value)
            assert same(cache.get_or_load(k, lambda k: 1 / 0), value)
        out, hit = cache.gather([3, 1, 0])
        assert hit.tolist() == [True, False, True]
        for row, k in ((0, 3), (2, 0)):
            got = (
                out[row]
                if variable
                else {name: column[row] for name, column in out.items()}
                if len(fields) > 1
                else out[row]
            )
            assert same(got, values[k])
        loaded = data.draw(value_of(fields))
        assert same(cache.get_or_load(4, lambda k: as_sample(loaded)), loaded)
        assert same(cache.get(4), loaded)
        assert cache.verify() == []


@given(st.binary(max_size=2000), st.binary(max_size=2000))
@QUICK
def test_bytes_of_any_length(first, second):
    with Cache.create(samples=3, variable=True, size="64MiB") as cache:
        assert cache.put(1, first)
        assert cache.get(1) == first
        assert cache.get(1).readonly
        assert cache.get(1, copy=True) == first
        assert isinstance(cache.get(1, copy=True), bytes)
        assert cache.put(1, second, overwrite=True)
        assert bytes(cache.get(1)) == second
        assert cache.gather([1, 0, 1])[0] == [second, None, second]
        assert cache.get_or_load(2, lambda k: bytearray(first)) == first
        assert cache.get(0) is None
        assert cache.get(0, copy=True) is None


def test_variable_arrays():
    with Cache.create(samples=4, shape=(None, 3), dtype="float32", variable=True, size="64MiB") as cache:
        for k in range(4):
            assert cache.put(k, np.full((k, 3), k, np.float32))
        for k in range(4):
            assert cache.get(k).shape == (k, 3)
            with pytest.raises(ValueError, match="read-only"):
                cache.get(k)[...] = 0
        with pytest.raises(stocached.SchemaError, match=r"\(2, 4\).*|\?x3"):
            cache.put(0, np.zeros((2, 4), np.float32))
        with pytest.raises(stocached.InvalidError, match="out="):
            cache.gather([0], out=np.zeros((1, 3)))
    with Cache.create(samples=4, shape=(None, None), dtype="int16", variable=True, size="64MiB") as cache:
        with pytest.raises(stocached.SchemaError, match="below"):
            cache.put(0, np.zeros((0, 2**32), np.int16))
        assert cache.put(0, np.zeros((0, 2**32 - 1), np.int16))
        assert cache.get(0).shape == (0, 2**32 - 1)
    with Cache.create(samples=4, shape=(-1,), dtype="int16", variable=True, size="64MiB") as cache:
        assert cache.put(0, np.arange(5, dtype=np.int16))
        assert cache.get(0).tolist() == list(range(5))


def test_variable_is_full_and_too_large():
    with Cache.create(samples=1000, variable=True, size="16MiB", sample_bytes=2**20) as cache:
        with pytest.raises(stocached.SchemaError, match=str(2**20 + 1)):
            cache.put(0, bytes(2**20 + 1))
        results = [cache.put(k, bytes([k % 256]) * 2**20) for k in range(20)]
        stored = results.count(SetResult.STORED)
        assert results == [SetResult.STORED] * stored + [SetResult.FULL] * (20 - stored)
        assert 5 < stored < 16
        assert cache.get(stored - 1)[-1] == stored - 1
        assert cache.stats().full == 20 - stored


def test_gather_many_variable_in_threads():
    rng = np.random.default_rng(3)
    values = [rng.integers(0, 256, int(size), np.uint8).tobytes() for size in rng.integers(0, 50_000, 100)]
    with Cache.create(samples=100, variable=True, size="64MiB") as cache:
        for k, value in enumerate(values):
            cache.put(k, value)
        order = rng.permutation(100)
        got, hit = cache.gather(order, threads=3)
        assert hit.all()
        assert got == [values[k] for k in order]


def test_fixed_bytes_are_bytes():
    with Cache.create(samples=2, shape=(5,), dtype="bytes") as cache:
        assert cache.put(0, b"abcde")
        assert cache.get(0) == b"abcde"
        assert isinstance(cache.get(0), memoryview)
        assert cache.get(0, copy=True) == b"abcde"
        assert isinstance(cache.get(0, copy=True), bytes)


def test_invalid_headers_are_an_error_and_never_an_array():
    """A view of a sample that is being overwritten may have any bytes."""
    fields = make_fields(
        fields={
            "text": ((None,), "bytes"),
            "box": ((2, 3), "int16"),
            "id": ((), "int64"),
            "none": ((None, 4), "float32"),
        },
        variable=True,
    )
    values = VariableValues(fields)
    sample = {
        "text": b"abc" * 30,
        "box": np.arange(6, dtype=np.int16).reshape(2, 3),
        "id": np.int64(-7),
        "none": np.zeros((0, 4), np.float32),
    }
    good = np.frombuffer(b"".join(memoryview(part).tobytes() for part in values.parts(sample)), np.uint8)
    for copy in (False, True):
        got = values.decode(good, copy)
        assert list(got) == list(sample)
        assert bytes(got["text"]) == sample["text"]
        assert all(
            np.array_equal(got[name], sample[name]) and got[name].dtype == sample[name].dtype
            for name in ("box", "id", "none")
        )
    extent = 40  # bytes: the number of bytes, then 8 dimensions of 4 bytes
    wrong = [
        ("text", 0, [91]),
        ("text", 0, [2**40]),
        ("text", 8, [89]),
        ("box", extent, [14]),
        ("box", extent + 8, [3]),
        ("box", extent + 8, [3, 2]),
    ]
    wrong += [("id", 2 * extent, [0]), ("none", 3 * extent + 12, [5])]
    for field, at, numbers in wrong:
        bad = bytearray(good.tobytes())
        struct.pack_into(f"<{len(numbers)}{'I' if at % extent else 'Q'}", bad, at, *numbers)
        with pytest.raises(CorruptError, match=rf"^{field}: .*: an extent of \d+ bytes and shape .* is impossible"):
            values.decode(np.frombuffer(bad, np.uint8), True)
    for size, match in (
        (values.header_bytes - 1, "shorter than its extent header of 192"),
        (values.header_bytes + 64, "an extent of 90 bytes and shape .* at 192 of 256 bytes"),
    ):
        with pytest.raises(CorruptError, match=match):
            values.decode(good[:size], True)
