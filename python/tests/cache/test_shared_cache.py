"""SharedCache beyond stocaching's interface: private copies, views, more dtypes, names,
processes."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from test_cache import DTYPES
from torch_helpers import TORCH_WARNINGS, quiet, run_alone, torch

import stocached
from stocached import Cache, _native

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS]


def make(length: int = 8, dims: Any = (2, 3), dtype: str = "uint8", gib: float = 1, **options: Any) -> Any:
    return quiet(lambda: stocached.SharedCache(gib, length, dims, getattr(torch, dtype), **options))


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
def test_every_dtype(dtype, views):
    if not hasattr(torch, dtype):
        pytest.skip(f"torch {torch.__version__} has no {dtype}")
    cache = make(dtype=dtype, views=views)
    value = torch.arange(6).float().reshape(2, 3).to(getattr(torch, dtype))  # there is no arange of uint16
    cache.set_slot(3, value)
    for got in (cache.get_slot(3), cache[3], cache.array[3]):
        assert got.dtype == value.dtype
        assert got.shape == value.shape
        assert torch.equal(got.view(torch.uint8), value.view(torch.uint8))
    assert cache.get_slot(2) is None
    cache[2] = value
    assert torch.equal(cache[2].view(torch.uint8), value.view(torch.uint8))
    assert cache.get_slot(2) is None
    assert cache.aux_array.tolist() == [0, 0, 0, 1, 0, 0, 0, 0]
    again = pickle.loads(pickle.dumps(cache))
    assert torch.equal(again.get_slot(3).view(torch.uint8), value.view(torch.uint8))


def test_get_slot_is_a_private_copy():
    cache = make()
    cache.set_slot(0, 7)
    cache.get_slot(0).mul_(2)
    cache[0].zero_()
    assert cache.get_slot(0).unique().tolist() == [7]


def test_copies_that_are_held_stay_as_they_are():
    """The memory of a copy is used again only after its tensor, and all that was made from it, have
    gone."""
    cache = make(length=50, dims=(40_000,))
    for k in range(50):
        cache.set_slot(k, k)
    held = [cache.get_slot(k) for k in range(50)]
    parts = [tensor[7:9] for tensor in held]
    shared = held[3].share_memory_()
    assert [int(tensor.sum()) for tensor in held] == [40_000 * k for k in range(50)]
    del held
    for k in range(50):
        cache.get_slot(49 - k)
    assert [part.tolist() for part in parts] == [[k, k] for k in range(50)]
    assert int(shared.sum()) == 120_000
    assert len({cache.get_slot(0).data_ptr() for _ in range(5)}) == 1


@pytest.mark.parametrize("dims", [(2, 3), (), (5,)])
def test_view_owns_a_storage_of_one_slot(dims):
    cache = make(length=100, dims=dims, dtype="float32", views=True)
    for k in range(100):
        cache.set_slot(k, k)
    view = cache.get_slot(42)
    assert view.untyped_storage().nbytes() == view.numel() * 4
    assert view.data_ptr() == cache.array.data_ptr() + 42 * view.numel() * 4
    assert len(pickle.dumps(view)) < 2000
    cache.close()
    del cache
    assert (view == 42).all()


def test_views_are_collated_and_sent():
    cache = make(length=10, dims=(3, 4), views=True)
    for k in range(10):
        cache.set_slot(k, k)
    batch = torch.utils.data.default_collate([cache.get_slot(k) for k in range(10)])
    assert batch[:, 0, 0].tolist() == list(range(10))
    queue = torch.multiprocessing.get_context("fork").SimpleQueue()
    queue.put(cache.get_slot(5))
    assert queue.get().sum() == 60
    assert cache.get_slot(5).sum() == 60


def test_in_place_change_of_a_view_kills_only_its_process(cache_name, warm, tmp_path):
    """torch has no read-only tensors, but the memory is read-only. The process dies, and the cache
    keeps its bytes."""
    cache = make(name=cache_name)
    cache.set_slot(1, 9)
    program = """
        import sys, torch, stocached
        cache = stocached.SharedCache(1, 8, (2, 3), torch.uint8, name=sys.argv[1], views=True)
        view = cache.get_slot(1)
        assert view.sum() == 54
        view.mul_(2)
        print("survived", flush=True)
    """
    result = run_alone(warm, tmp_path, program, cache_name)
    assert result.returncode == -11, result
    assert "survived" not in result.stdout
    assert cache.get_slot(1).unique().tolist() == [9]
    assert cache.cache.verify() == []


def test_array_is_over_the_cache_and_takes_no_memory_by_itself():
    cache = make(length=1000, dims=(1000,))
    before = cache.stats().allocated_bytes
    array = cache.array
    assert array.shape == (1000, 1000)
    cache.set_slot(3, 5)
    assert array[3].sum() == 5000
    assert cache[7].sum() == 0
    assert cache.stats().allocated_bytes <= before + 8192
    assert cache[10:20].sum() == 0
    assert cache.stats().allocated_bytes <= before + 8192


def test_named_is_shared_and_must_agree(cache_name):
    one = make(name=cache_name, fingerprint="v1")
    two = make(name=cache_name, fingerprint="v1", views=True)
    one.set_slot(2, 3)
    assert two.get_slot(2).sum() == 18
    for wrong in ({"length": 9}, {"dims": (3, 2)}, {"dtype": "int8"}, {"gib": (8 + 6 * 5) / 2**30}):
        with pytest.raises(stocached.SchemaError, match=rf"another name.*\(stocached rm {cache_name}\)"):
            make(name=cache_name, fingerprint="v1", **wrong)
    for wrong in ("v2", None):
        with pytest.raises(stocached.FingerprintError):
            make(name=cache_name, fingerprint=wrong)
    one.cache.unlink()
    assert make(name=cache_name).get_slot(2) is None


def test_fraction_of_a_gib():
    cache = make(length=1000, dims=(1024,), gib=0.0005)
    assert len(cache) == int((0.0005 * 2**30 - 1000) / 1024)
    assert cache.stats().slots == len(cache)
    assert cache.aux_array.tolist() == [0] * len(cache) + [2] * (1000 - len(cache))


def test_nothing_cached_at_all():
    cache = make(length=10, gib=12 / 2**30)
    assert len(cache) == 0
    assert cache.cache is None
    assert cache.get_slot(3) is None
    cache.set_slot(3, 1)
    assert cache.stats().samples == 10
    assert pickle.loads(pickle.dumps(cache)).get_slot(0) is None


def test_closed():
    for views in (False, True):
        cache = make(views=views)
        cache.set_slot(0, 1)
        cache.close()
        for call in (
            lambda: cache.get_slot(0),
            lambda: cache.get_slot(1),
            lambda: cache.set_slot(1, 1),
            lambda: cache[0],
            lambda: cache.aux_array,
            lambda: cache.clear(),
        ):
            with pytest.raises(stocached.ClosedError):
                call()


def test_overwrite():
    cache = make()
    cache.set_slot(0, 1)
    with pytest.raises(RuntimeError, match="idx=0.*allow_overwrite"):
        cache.set_slot(0, 2)
    cache.set_slot(0, 2, allow_overwrite=True)
    assert cache.get_slot(0).unique().tolist() == [2]


def test_a_slot_is_empty_while_a_sample_is_written():
    cache, claim = make(), _native.Claim()
    assert _native.claim(cache.cache._handle, 1, cache.cache.sample_bytes, 0, claim) == _native.STORED
    assert cache.aux_array[1] == 0
    assert cache.get_slot(1) is None
    cache.set_slot(1, 5)  # another one stores it: no error
    _native.abort(claim)


class Images:
    """The dataset of stocaching's README."""

    def __init__(self, views: bool = False) -> None:
        self.cache = quiet(lambda: stocached.SharedCache(1, 60, (3, 16, 16), torch.uint8, views=views))

    def __len__(self) -> int:
        return 60

    def __getitem__(self, idx: int) -> Any:
        x = self.cache.get_slot(idx)
        if x is None:
            x = torch.full((3, 16, 16), idx, dtype=torch.uint8)
            self.cache.set_slot(idx, x)
        return x


@pytest.mark.parametrize(("workers", "method", "views"), [(0, None, True), (2, "fork", False)])
def test_in_a_dataloader(workers, method, views):
    dataset = Images(views)
    loader = torch.utils.data.DataLoader(dataset, 8, shuffle=True, num_workers=workers, multiprocessing_context=method)
    for _ in range(2):
        assert sorted(int(x) for batch in loader for x in batch[:, 0, 0, 0]) == list(range(60))
    assert dataset.cache.aux_array.tolist() == [1] * 60
    stats = dataset.cache.stats()
    assert (stats.hits, stats.misses, stats.stored) == (60, 60, 60)


def test_gather_from_the_cache_underneath():
    cache = make(length=20, dims=(3,), dtype="bfloat16")
    for k in range(20):
        cache.set_slot(k, k)
    assert isinstance(cache.cache, Cache)
    out = torch.zeros(4, 3, dtype=torch.bfloat16)
    same, hit = cache.cache.gather([3, 1, 19, 3], out=out)
    assert same is out
    assert hit.all()
    assert out[:, 0].tolist() == [3, 1, 19, 3]
    with pytest.raises(stocached.SchemaError, match="contiguous"):
        cache.cache.gather([3], out=torch.zeros(3, 2, dtype=torch.bfloat16).T[:1])
    with pytest.raises(stocached.SchemaError, match="meta"):
        cache.cache.gather([3], out=torch.zeros(1, 3, dtype=torch.bfloat16, device="meta"))


def test_native_cache_takes_tensors():
    with Cache.create(samples=4, shape=(2, 3), dtype=torch.bfloat16) as cache:
        value = torch.arange(6).reshape(3, 2).T.to(torch.bfloat16)
        assert cache.put(0, value)
        assert cache.put(1, value.requires_grad_())
        got = torch.from_numpy(cache.get(0, copy=True).view("int16")).view(torch.bfloat16)
        assert torch.equal(got, value)
        with pytest.raises(stocached.SchemaError, match="float32"):
            cache.put(2, torch.zeros(2, 3))
        out, hit = cache.gather(torch.tensor([0, 2, 1]))
        assert hit.tolist() == [True, False, True]
