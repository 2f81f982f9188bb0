"""The native API, call by call: results, and that invalid input changes nothing."""

from __future__ import annotations

import os
import pickle
import threading
import warnings

import numpy as np
import pytest
from helpers import pattern, python
from processes import is_inside, until

import stocached
from stocached import Cache, SetResult, State

SHAPE = (5, 7)


@pytest.fixture
def cache():
    with Cache.create(samples=10, shape=SHAPE, dtype="float32") as cache:
        yield cache


def sample(k: int) -> np.ndarray:
    return (np.arange(35, dtype=np.float32) + 100 * k).reshape(SHAPE)


def test_put_get(cache):
    assert len(cache) == cache.slots == cache.samples == 10
    assert cache.get(3) is None
    assert 3 not in cache
    assert cache.put(3, sample(3)) is SetResult.STORED
    assert cache.put(3, sample(4)) is SetResult.EXISTS
    assert 3 in cache
    view = cache.get(3)
    assert view.dtype == np.float32
    assert view.shape == SHAPE
    np.testing.assert_array_equal(view, sample(3))
    assert cache.states().tolist() == [State.EMPTY] * 3 + [State.READY] + [State.EMPTY] * 6
    assert cache.states().dtype == np.uint8
    assert cache.put(3, sample(5), overwrite=True) is SetResult.STORED
    np.testing.assert_array_equal(cache.get(3), sample(5))


def test_only_stored_is_true():
    assert [bool(result) for result in SetResult] == [True, False, False, False, False]
    assert [result.name for result in SetResult] == ["STORED", "EXISTS", "BUSY", "FULL", "OUT"]


def test_copy_is_the_caller_s_own(cache):
    cache.put(0, sample(0))
    copy = cache.get(0, copy=True)
    copy[:] = -1
    np.testing.assert_array_equal(cache.get(0), sample(0))


def test_view_is_read_only(cache):
    cache.put(0, sample(0))
    view = cache.get(0)
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.flags.writeable = True
    with pytest.raises(ValueError, match="read-only"):
        view += 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.base.flags.writeable = True


@pytest.mark.parametrize("kind", [int, np.int64, np.uint8, np.int16])
def test_any_integer_is_an_index(cache, kind):
    cache.put(kind(1), sample(1))
    np.testing.assert_array_equal(cache.get(kind(1)), sample(1))
    np.testing.assert_array_equal(cache.get(kind(1), copy=True), sample(1))
    assert kind(1) in cache
    assert cache.get(kind(0)) is None


OUTSIDE = [-1, 10, 11, -(2**63), 2**63 - 1, 2**63, 2**64, 2**64 + 1, -(2**64) + 1, 10**30, np.int64(-1)]


@pytest.mark.parametrize("index", OUTSIDE)
def test_index_outside(cache, index):
    cache.put(1, sample(1))
    before = cache.gather(range(10))[0].tobytes()
    for call in (
        lambda: cache.get(index),
        lambda: cache.get(index, copy=True),
        lambda: cache.put(index, sample(0)),
        lambda: cache.get_or_load(index, sample),
        lambda: cache.gather([1, index]),
    ):
        with pytest.raises(IndexError) as caught:
            call()
        assert isinstance(caught.value, stocached.StocachedError)
        assert str(int(index)) in str(caught.value)
    assert index not in cache
    assert cache.gather(range(10))[0].tobytes() == before


@pytest.mark.parametrize("index", [1.0, "1", None, [1], (1,), np.float32(1), np.array([1, 2]), True, False, np.True_])
def test_index_of_another_type(cache, index):
    cache.put(0, sample(0))
    cache.put(1, sample(1))
    for call in (
        lambda: cache.get(index),
        lambda: cache.put(index, sample(0)),
        lambda: cache.get(index, copy=True),
        lambda: cache.get_or_load(index, sample),
        lambda: index in cache,
    ):
        with pytest.raises(TypeError):
            call()
    with pytest.raises((stocached.InvalidError, TypeError)):
        cache.gather([index])


WRONG = {
    "dtype": (np.zeros(SHAPE, np.float64), ["float64", "float32", "astype"]),
    "integers": (np.zeros(SHAPE, np.uint8), ["uint8", "float32"]),
    "shape": (np.zeros((7, 5), np.float32), ["(7, 5)", "5x7"]),
    "dimensions": (np.zeros(35, np.float32), ["(35,)", "5x7"]),
    "too large": (np.zeros((6, 7), np.float32), ["(6, 7)", "5x7"]),
    "scalar": (np.float32(1), ["()", "5x7"]),
    "empty": (np.zeros((0, 7), np.float32), ["(0, 7)"]),
    "objects": (np.zeros(SHAPE, object), ["objects"]),
    "strings": (np.full(SHAPE, "a"), ["<U1"]),
    "ragged": ([[1.0], [2.0, 3.0]], []),
    "bytes": (b"abc", ["3 raw bytes"]),
    "None": (None, ["object"]),
    "mapping": ({"data": 1}, ["object"]),
    "big-endian": (np.zeros(SHAPE, ">f4"), [">f4"]),
    "structured": (np.zeros(SHAPE, [("a", "f4")]), []),
}


@pytest.mark.parametrize("what", WRONG)
def test_value_that_does_not_fit(cache, what):
    value, words = WRONG[what]
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        cache.put(0, value)
    if what != "ragged":  # NumPy raises its own error
        assert isinstance(caught.value, stocached.SchemaError)
    for word in words:
        assert word in str(caught.value)
    assert 0 not in cache
    assert cache.stats().stored == 0


def test_numbers_convert_only_without_loss():
    with Cache.create(samples=1, shape=(3,), dtype="int16") as cache:
        for value in ([1, 2, 40000], [1.5, 2, 3], [1, 2, float("nan")], [1j, 0, 0], [2**80, 0, 0]):
            with pytest.raises(stocached.SchemaError):
                cache.put(0, value)
        assert cache.put(0, [1, -2.0, 3]) is SetResult.STORED
        assert cache.get(0).tolist() == [1, -2, 3]
    with Cache.create(samples=2, shape=(), dtype="int64") as cache:
        assert cache.put(0, 7)
        assert cache.put(1, np.int32(-7))
        assert [int(cache.get(k)) for k in (0, 1)] == [7, -7]
    with Cache.create(samples=2, shape=(2,), dtype="bool") as cache:
        with pytest.raises(stocached.SchemaError):
            cache.put(0, [1, 0])
        assert cache.put(0, [True, False])
    with Cache.create(samples=2, shape=(2,), dtype="float32") as cache:
        with pytest.raises(stocached.SchemaError):
            cache.put(0, [2**24 + 1, 0])
        assert cache.put(0, [2.5, float("nan")])
    with Cache.create(samples=2, shape=(2,), dtype="uint64") as cache:
        for value in ([-1, 2**63], [2**64, 0], [0.5, 2**63], [2**63, float("nan")]):
            with pytest.raises(stocached.SchemaError):
                cache.put(0, value)
        assert cache.put(0, [2**63 + 1, 3])  # NumPy makes floats of it
        assert cache.get(0).tolist() == [2**63 + 1, 3]
        assert cache.put(1, (2.0**63, 3))
        assert cache.get(1).tolist() == [2**63, 3]
    for dtype in ("float64", "complex128"):
        with Cache.create(samples=2, shape=(2,), dtype=dtype) as cache:
            for value in ([2**53 + 1, 0], [2**64 - 1, 0], [2**64 - 1, 2**63]):
                with pytest.raises(stocached.SchemaError):
                    cache.put(0, value)
            assert cache.put(0, [2**53 + 2, 2**63])
            assert cache.get(0).tolist() == [2**53 + 2, 2**63]


def test_any_order_in_memory(cache):
    turned = np.asfortranarray(sample(1))
    sliced = np.zeros((5, 14), np.float32)[:, ::2]
    sliced[:] = sample(2)
    backwards = sample(3)[::-1, ::-1]
    for k, value in enumerate((turned, sliced, backwards)):
        assert not value.flags.c_contiguous
        assert cache.put(k, value)
        np.testing.assert_array_equal(cache.get(k), value)


def test_read_only_and_memoryview_values(cache):
    value = sample(1)
    value.flags.writeable = False
    assert cache.put(0, value)
    with Cache.create(samples=3, sample_bytes=4) as raw:
        assert raw.put(0, b"abcd")
        assert raw.put(1, memoryview(b"a-b-c-d-")[::2])
        assert raw.put(2, bytearray(b"wxyz"))
        assert [raw.get(k).tobytes() for k in range(3)] == [b"abcd", b"abcd", b"wxyz"]
        with pytest.raises(stocached.SchemaError, match="5 bytes do not fit, it has 4"):
            raw.put(0, b"abcde")


DTYPES = [
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(dtype):
    value = np.frombuffer(pattern(1, 6 * np.dtype(dtype).itemsize).tobytes(), np.uint8)
    value = (value[:6] > 127).reshape(2, 3) if dtype == "bool" else value.view(dtype).reshape(2, 3)
    with Cache.create(samples=2, shape=(2, 3), dtype=dtype) as cache:
        assert cache.put(0, value)
        got, (out, hit) = cache.get(0), cache.gather([0, 1])
        assert got.dtype == np.dtype(dtype)
        assert got.tobytes() == value.tobytes() == cache.get(0, copy=True).tobytes() == out[0].tobytes()
        assert hit.tolist() == [True, False]
        assert not out[1].any()


def test_bfloat16_is_its_bits_or_ml_dtypes():
    with Cache.create(samples=1, shape=(4,), dtype="bfloat16") as cache:
        dtype = cache.fields[0].dtype
        assert dtype.itemsize == 2
        assert dtype.name in ("uint16", "bfloat16")
        bits = np.array([0x3F80, 0x4000, 0x7F80, 0], np.uint16)
        assert cache.put(0, bits.view(dtype))
        assert cache.get(0).view(np.uint16).tolist() == bits.tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.dtype("float32"), "float32", "f4", "torch.float32"])
def test_spellings_of_a_dtype(dtype):
    with Cache.create(samples=1, shape=2, dtype=dtype) as cache:
        assert cache.fields[0].dtype == np.float32
        assert cache.fields[0].shape == (2,)


FIELDS = {"image": ((2, 3), "uint8"), "label": ((), "int64"), "box": ((4,), "float32"), "flag": ((), "bool")}


def fields_sample(k: int) -> dict:
    return {
        "image": np.full((2, 3), k, np.uint8),
        "label": -k,
        "box": np.full(4, k / 2, np.float32),
        "flag": k % 2 == 0,
    }


def test_several_fields():
    with Cache.create(samples=6, fields=FIELDS) as cache:
        assert cache.get(0) is None
        for k in (1, 4):
            assert cache.put(k, dict(reversed(fields_sample(k).items())))
        for got in (cache.get(4), cache.get(4, copy=True)):
            assert list(got) == list(FIELDS)
            for name, value in fields_sample(4).items():
                np.testing.assert_array_equal(got[name], value)
                assert got[name].shape == FIELDS[name][0]
        with pytest.raises(ValueError, match="read-only"):
            cache.get(4)["label"][...] = 1
        cache.get(4, copy=True)["label"][...] = 1
        out, hit = cache.gather([4, 0, 1, 4])
        assert hit.tolist() == [True, False, True, True]
        assert out["label"].tolist() == [-4, 0, -1, -4]
        assert out["box"][:, 3].tolist() == [2, 0, 0.5, 2]
        assert out["image"].shape == (4, 2, 3)
        labels = np.full(3, 99, np.int64)
        cache.gather([1, 2, 4], out={"label": labels})
        assert labels.tolist() == [-1, 99, -4]  # the row of a miss stays unchanged


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros(3), ["mapping", "image"]),
        ({"image": np.zeros((2, 3), np.uint8)}, ["fields", "label"]),
        ({**fields_sample(1), "more": 1}, ["more"]),
        ({**fields_sample(1), "image": np.zeros((3, 2), np.uint8)}, ["image", "(3, 2)", "2x3"]),
        ({**fields_sample(1), "label": 1.5}, ["label", "int64", "loss"]),
        ({**fields_sample(1), "flag": 1}, ["flag", "bool"]),
    ],
)
def test_fields_that_do_not_fit(value, words):
    with Cache.create(samples=1, fields=FIELDS) as cache:
        with pytest.raises(stocached.SchemaError) as caught:
            cache.put(0, value)
        for word in words:
            assert word in str(caught.value)
        assert 0 not in cache


def test_gather(cache):
    for k in (0, 2, 9):
        cache.put(k, sample(k))
    indices = [9, 1, 0, 9, 2]
    out, hit = cache.gather(indices)
    assert hit.dtype == np.bool_
    assert hit.tolist() == [True, False, True, True, True]
    for k, index in enumerate(indices):
        np.testing.assert_array_equal(out[k], sample(index) if hit[k] else 0)
    own = np.full((5, *SHAPE), -7, np.float32)
    again, _ = cache.gather(np.array(indices, np.int32), out=own, threads=2)
    assert again is own
    assert (own[1] == -7).all()
    np.testing.assert_array_equal(own[[0, 2, 3, 4]], out[[0, 2, 3, 4]])
    wide = np.full((5, 8, 7), -1, np.float32)
    cache.gather(indices, out=wide[:, :5])
    np.testing.assert_array_equal(wide[0, :5], sample(9))
    assert (wide[:, 5:] == -1).all()


def test_gather_nothing(cache):
    for nothing in ([], (), np.empty(0, np.int64), np.empty(0), range(0)):
        out, hit = cache.gather(nothing)
        assert out.shape == (0, *SHAPE)
        assert hit.shape == (0,)


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (np.zeros((2, *SHAPE)), ["float64", "float32"]),
        (np.zeros((3, *SHAPE), np.float32), ["(3, 5, 7)", "(2, 5, 7)"]),
        (np.zeros((2, 7, 5), np.float32).transpose(0, 2, 1), ["strides"]),
        (np.zeros((4, *SHAPE), np.float32)[::-2], ["strides"]),
        (np.broadcast_to(np.zeros(SHAPE, np.float32), (2, *SHAPE)), ["read-only"]),
        ([[0.0] * 35] * 2, ["list"]),
        ("text", ["str"]),
    ],
)
def test_gather_into_what_does_not_fit(cache, out, words):
    with pytest.raises(stocached.SchemaError) as caught:
        cache.gather([0, 1], out=out)
    for word in words:
        assert word in str(caught.value)


def test_gather_over_its_own_indices():
    # Indices that change during a call must not become addresses. Runs in its own interpreter,
    # which a failure would kill.
    python(
        """
        import threading
        import numpy as np
        from stocached import Cache

        cache = Cache.create(samples=300, shape=(64,), dtype="int64")
        for k in range(300):
            cache.put(k, np.full(64, 2**50 + k))
        memory = np.zeros((200, 64), np.int64)
        indices = memory.reshape(-1)[:200]
        indices[:] = range(200)
        out, hit = cache.gather(indices, out=memory)
        assert hit.all() and (out == 2**50 + np.arange(200)[:, None]).all()

        good, stop = np.arange(300), threading.Event()
        changing = good.copy()

        def change():
            while not stop.is_set():
                changing[:] = 2**50
                changing[:] = good

        thread = threading.Thread(target=change)
        thread.start()
        for _ in range(500):
            try:
                cache.gather(changing, out=np.empty((300, 64), np.int64))
            except IndexError:
                pass
        stop.set()
        thread.join()
        """
    )


@pytest.mark.parametrize("indices", [[1.0], ["a"], [[1, 2]], 3, np.array([True, False]), None])
def test_gather_what_are_no_indices(cache, indices):
    with pytest.raises(stocached.InvalidError):
        cache.gather(indices)


def test_full_and_out():
    with Cache.create(samples=10, sample_bytes=64, slots=3) as cache:
        assert [cache.put(k, bytes(64)) for k in (9, 5, 1)] == [SetResult.STORED] * 3
        assert cache.put(0, bytes(64)) is SetResult.FULL
        assert cache.get(0) is None
        assert len(cache) == 3
    with Cache.create(samples=10, sample_bytes=64, slots=3, policy="first-indices") as cache:
        assert cache.put(9, bytes(64)) is SetResult.OUT
        assert cache.put(2, bytes(64)) is SetResult.STORED
        assert cache.states().tolist() == [State.EMPTY] * 2 + [State.READY] + [State.OUT] * 7


def test_get_or_load(cache):
    calls = []

    def load(index):
        calls.append(index)
        return sample(index)

    first = cache.get_or_load(2, load)
    assert (cache.stats().hits, cache.stats().misses) == (0, 1)
    second = cache.get_or_load(2, load)
    assert calls == [2]
    np.testing.assert_array_equal(first, second)
    assert first.ctypes.data == second.ctypes.data  # memory of the cache both times
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1
    with pytest.raises(KeyError):
        cache.get_or_load(3, {}.__getitem__)
    assert 3 not in cache
    with pytest.raises(stocached.SchemaError):
        cache.get_or_load(3, lambda index: np.zeros(3))
    np.testing.assert_array_equal(cache.get_or_load(3, sample), sample(3))  # after the failures
    nested = cache.get_or_load(5, lambda index: cache.get_or_load(5, sample))  # no deadlock
    np.testing.assert_array_equal(nested, sample(5))


def test_the_creator_is_shown_as_python():
    with Cache.create(f"kind-{os.getpid()}", samples=1, shape=1) as cache:
        with open(cache.path, "rb") as segment:
            segment.seek(8192 + 4)  # docs/spec/segment.md: kind of client record 0
            assert segment.read(4) == b"\3\0\0\0"
        cache.unlink()


def test_get_or_load_where_nothing_fits_any_more():
    with Cache.create(samples=4, fields=FIELDS, slots=1) as cache:
        cache.put(0, fields_sample(0))
        loaded = cache.get_or_load(3, fields_sample)
        assert 3 not in cache
        assert loaded["label"] == -3
        with pytest.raises(ValueError, match="read-only"):
            loaded["image"][0] = 1


def started(target) -> threading.Thread:
    thread = threading.Thread(target=target)
    thread.start()
    return thread


def test_get_or_load_loads_once_for_all_threads(cache):
    calls, results = [], []
    entered, go = threading.Event(), threading.Event()

    def load(index):
        calls.append(index)
        entered.set()
        go.wait(60)
        return sample(index)

    threads = [started(lambda: results.append(cache.get_or_load(4, load))) for _ in range(8)]
    assert entered.wait(60)
    until(lambda: all(is_inside(thread, "stocached") for thread in threads), "the others wait")
    go.set()
    for thread in threads:
        thread.join(60)
    assert calls == [4]
    np.testing.assert_array_equal(results, [sample(4)] * 8)


def test_get_or_load_who_waits_for_a_load_that_fails_loads_by_itself(cache):
    entered, go, got = threading.Event(), threading.Event(), []

    def fails(index):
        entered.set()
        go.wait(60)
        raise OSError("the first fails")

    def first():
        with pytest.raises(OSError, match="the first fails"):
            cache.get_or_load(4, fails)

    loading = started(first)
    assert entered.wait(60)
    waiting = started(lambda: got.append(cache.get_or_load(4, sample)))
    until(lambda: is_inside(waiting, "stocached"), "the other waits")
    go.set()
    for thread in (loading, waiting):
        thread.join(60)
    np.testing.assert_array_equal(got, [sample(4)])


def test_stats(cache):
    cache.put(0, sample(0))
    cache.put(0, sample(0))
    cache.get(0), cache.get(1), cache.get(0, copy=True), cache.gather([0, 1, 2])
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.stored, stats.exists) == (3, 3, 1, 1)
    assert stats.hit_rate == 0.5
    assert stats.cached_fraction == 0.1
    assert (stats.samples, stats.slots, stats.ready, stats.ready_bytes) == (10, 10, 1, 140)
    assert stats.clients_live == 1
    assert stats.stored_bytes == 140


def test_clear(cache):
    for k in range(10):
        cache.put(k, sample(k))
    view = cache.get(3)
    cache.clear()
    assert not cache.states().any()
    assert cache.get(3) is None
    view.sum()  # it has old bytes or new ones, but is still valid memory
    assert cache.put(3, sample(4))
    np.testing.assert_array_equal(cache.get(3), sample(4))
    assert cache.stats().clears == 1


def test_verify_finds_damage(folder):
    cache = Cache.create("verified", samples=10, sample_bytes=100, dir=folder)
    for k in range(10):
        cache.put(k, pattern(k, 100))
    assert cache.verify() == []
    info = cache._handle.info()
    with open(folder / "verified", "r+b") as file:
        for k in (2, 7):  # first-come: slots are in the order of the puts
            file.seek(info.payload_offset + k * 100 + 50)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 1]))
    assert cache.verify() == [2, 7]
    cache.close()


def test_closed(cache):
    cache.put(0, sample(0))
    cache.close()
    cache.close()
    assert cache.closed
    for call in (
        lambda: cache.get(0),
        lambda: cache.get(0, copy=True),
        lambda: cache.put(0, sample(0)),
        lambda: cache.gather([0]),
        lambda: cache.get_or_load(0, sample),
        lambda: cache.states(),
        lambda: cache.stats(),
        lambda: cache.clear(),
        lambda: cache.verify(),
        lambda: cache.recover(),
        lambda: 0 in cache,
        lambda: pickle.dumps(cache),
    ):
        with pytest.raises(stocached.ClosedError, match="closed"):
            call()
    assert "closed" in repr(cache)


def test_a_cache_of_another_version_is_replaced_with_a_warning(folder):
    def of_another_version() -> None:
        Cache.create("old", samples=4, sample_bytes=8, dir=folder).close()
        with open(folder / "old", "r+b") as file:
            file.seek(8)  # layout_version
            file.write(b"\2")

    of_another_version()
    with pytest.warns(UserWarning, match=r"old: layout 2, .*an empty cache has replaced it") as said:
        Cache.create("old", samples=4, sample_bytes=8, dir=folder).unlink()
    assert said[0].filename == __file__
    of_another_version()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="layout 2"):
            Cache.create("old", samples=4, sample_bytes=8, dir=folder)
    assert not (folder / "old").exists()


def test_named(folder):
    with Cache.create("a.name-1", samples=4, shape=(2,), dtype="int32", dir=folder, fingerprint="set v1") as cache:
        assert cache.path == str(folder / "a.name-1")
        assert (cache.name, cache.fingerprint) == ("a.name-1", "set v1")
        cache.put(1, [5, 6])
        with pytest.raises(FileExistsError, match=r"a\.name-1"):
            Cache.create("a.name-1", samples=4, shape=(2,), dir=folder)
        with Cache.attach(folder / "a.name-1", fingerprint="set v1") as other:
            assert other.get(1).tolist() == [5, 6]
            assert other.fields == cache.fields
            other.put(2, [7, 8])
        assert cache.get(2).tolist() == [7, 8]
        with pytest.raises(stocached.FingerprintError, match="set v1"):
            Cache.attach(str(folder / "a.name-1"), fingerprint="set v2")
        with Cache.attach(str(folder / "a.name-1"), read_only=True) as reader:
            assert reader.read_only
            assert reader.get(1).tolist() == [5, 6]
            with pytest.raises(stocached.ReadOnlyError):
                reader.put(3, [1, 2])
        cache.unlink()
        with pytest.raises(FileNotFoundError):
            cache.unlink()
        with pytest.raises(FileNotFoundError):
            Cache.attach(folder / "a.name-1")
        assert cache.get(1).tolist() == [5, 6]


def test_unlink_last(folder):
    one = Cache.create("last", samples=4, shape=2, dir=folder, unlink="last")
    two = Cache.attach(folder / "last")
    one.close()
    assert (folder / "last").exists()
    two.close()
    assert not (folder / "last").exists()


def test_unlink_last_at_exit(folder):
    # Daemon threads that the interpreter stops in the middle of a call never release their handle.
    code = """
        import sys, threading, time
        import numpy as np
        from stocached import Cache, ClosedError

        cache = Cache.create("last", samples=2, shape=100_000, dir=sys.argv[1], unlink="last")

        def work():
            while True:
                try:
                    cache.put(0, np.ones(100_000, np.uint8), overwrite=True)
                    cache.gather([0] * 100)
                except ClosedError:
                    pass

        for _ in range(3):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.1)
        """
    for _ in range(2):
        python(code, folder)
        assert not (folder / "last").exists()


def test_unlink_without_a_name(cache):
    with pytest.raises(stocached.InvalidError, match="no name"):
        cache.unlink()


BAD_CREATE = [
    (dict(samples=1.5, shape=2), ["samples", "1.5"]),
    (dict(samples="4", shape=2), ["samples", "4"]),
    (dict(samples=4), ["shape="]),
    (dict(samples=4, shape=(2, -1)), ["-1"]),
    (dict(samples=4, shape=(2, None)), ["variable=True"]),
    (dict(samples=4, shape=(2, 1.5)), ["1.5"]),
    (dict(samples=4, shape=(1,) * 9), ["9 dimensions"]),
    (dict(samples=4, shape=2, dtype="float31"), ["float31", "float32"]),
    (dict(samples=4, shape=2, dtype=object), ["object"]),
    (dict(samples=4, shape=2, dtype=">i4"), [">i4"]),
    (dict(samples=4, shape=2, fields=FIELDS), ["fields="]),
    (dict(samples=4, fields={}), ["0 fields"]),
    (dict(samples=4, fields={str(k): ((), "uint8") for k in range(25)}), ["25 fields"]),
    (dict(samples=4, fields={"x" * 40: ((), "uint8")}), ["39"]),
    (dict(samples=4, fields={"a": "uint8"}), ["(shape, dtype)"]),
    (dict(samples=4, fields={1: ((), "uint8")}), ["field name 1"]),
    (dict(samples=4, shape=2, size="2 parsecs"), ["2 parsecs", "GiB"]),
    (dict(samples=4, shape=2, size=1.5), ["1.5"]),
    (dict(samples=4, shape=2, unlink="never"), ["never", "last"]),
    (dict(samples=4, shape=2, fingerprint="x" * 65), ["64"]),
    (dict(samples=4, shape=2, fingerprint=7), ["fingerprint", "7"]),
    (dict(samples=4, sample_bytes=3, dtype="int16"), ["3", "multiple of the 2"]),
    (dict(samples=4, shape=(65536,) * 4, variable=True, size="64MiB", name="dims"), ["larger than 4294967295"]),
    (dict(samples=4, shape=(None, 65536, 65536), variable=True, size="64MiB", name="dims"), ["larger than 4294967295"]),
    (dict(samples=4, shape=(65536,) * 4), ["larger than 4294967295"]),
    (dict(samples=4, shape=(2**70,), variable=True, size="64MiB"), ["1180591620717411303424"]),
    (dict(samples=4, shape=(1000, 1000), variable=True, size="64MiB", sample_bytes=1000), ["1000", "1000064"]),
    (dict(samples=4, shape=2, name="a/b"), ["a/b"]),
    (dict(samples=4, shape=2, name=""), [""]),
    (dict(samples=4, shape=2, name="-x"), ["-x"]),
    (dict(samples=4, shape=2, name="x" * 101), ["100"]),
    (dict(samples=4, shape=2, name="nul\0"), ["NUL"]),
    (dict(samples=4, shape=2, name=b"bytes"), ["string"]),
    (dict(samples=4, shape=2, name="x", dir="/nowhere/at/all"), ["/nowhere/at/all"]),
]


@pytest.mark.parametrize(("arguments", "words"), BAD_CREATE, ids=[str(k) for k in range(len(BAD_CREATE))])
def test_bad_create(arguments, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        Cache.create(**arguments)
    assert isinstance(caught.value, stocached.InvalidError)
    for word in words:
        assert word in str(caught.value)
    if arguments.get("name") == "dims":
        with pytest.raises(stocached.CacheNotFoundError):  # no file stays
            Cache.attach("dims", timeout=0.1)


def test_nothing_is_left_of_a_cache_that_cannot_be_shown(folder, monkeypatch):
    def fail(*_):
        raise RuntimeError("stop")

    monkeypatch.setattr("stocached._cache.attachment.VariableValues", fail)
    with pytest.raises(RuntimeError, match="stop"):
        Cache.create("left", samples=4, variable=True, size="64MiB", dir=folder)
    assert list(folder.iterdir()) == []


def test_create_too_large():
    with pytest.raises(MemoryError) as caught:
        Cache.create(samples=2**30, sample_bytes=2**20)
    assert isinstance(caught.value, stocached.CacheMemoryError)
    assert any(letter.isdigit() for letter in str(caught.value))
    with pytest.raises(MemoryError, match="4096|limit"):
        Cache.create(samples=10, sample_bytes=2**20, size=4096)


def test_attach_to_other_files(folder):
    (folder / "text").write_text("no segment, but long enough" * 1000)
    (folder / "short").write_bytes(b"STOCACHE")
    (folder / "empty").touch()
    (folder / "directory").mkdir()
    (folder / "link").symlink_to(folder / "text")
    for name in ("text", "short", "empty", "directory", "link"):
        with pytest.raises(stocached.StocachedError) as caught:
            Cache.attach(folder / name)
        assert isinstance(caught.value, (stocached.FormatError, stocached.CachePermissionError))
    assert (folder / "text").read_text().startswith("no segment")
    with pytest.raises(FileNotFoundError):
        Cache.attach(folder / "missing")
    for wrong in ("", 7, "nul\0"):
        with pytest.raises((stocached.StocachedError, TypeError)):
            Cache.attach(wrong)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("1KiB", 1024),
        ("2GiB", 2**31),
        ("1.5 GiB", 3 * 2**29),
        ("500MB", 500_000_000),
        (" 3 kB ", 3000),
        ("1TiB", 2**40),
        ("7B", 7),
        (12, 12),
    ],
)
def test_sizes(text, size):
    assert stocached._common.sizes.parse_size(text) == size


def test_reserve_reports_progress():
    calls = []
    with Cache.create(
        samples=100, sample_bytes=2**20, reserve=True, progress=lambda done, total: calls.append((done, total))
    ) as cache:
        assert cache.stats().allocated_bytes >= 100 * 2**20
    assert calls[-1][0] == calls[-1][1] >= 100 * 2**20

    def fail(done, total):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        Cache.create(samples=10, sample_bytes=100, reserve=True, progress=fail)


def test_truth_and_no_iteration():
    with Cache.create(samples=5, variable=True, size="64MiB") as cache:
        assert cache
        assert len(cache) == 5
        with pytest.raises(TypeError):
            iter(cache)
