"""What caches of pictures keep: decoded pictures, encoded files, or what store="auto" chooses."""

from __future__ import annotations

import json
import logging
import pickle
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_samples import tar_of
from pictures import encoded, folder_of, picture

from stocached import FingerprintError, InvalidError, Loader, NondeterministicDatasetError, advise, image
from stocached._checks.derived_fingerprint import derive
from stocached._datasets import store_trial
from stocached._datasets.cached_samples import CachedSamples
from stocached._datasets.stores import _CONTROL, Measured, choose, epochs

REPOSITORY = Path(__file__).resolve().parents[3]
AUGMENT = image.Compose([image.RandomResizedCrop(24), image.RandomHorizontalFlip(), image.ToDtype("float32")])


@pytest.fixture
def root(tmp_path) -> Path:
    return folder_of(tmp_path / "train", {"cat": 20, "ant": 16, "bee": 12})


@pytest.fixture
def shards(tmp_path) -> str:
    for shard in range(2):
        members = {}
        for k in range(10 * shard, 10 * shard + 10):
            members |= {f"{k:03}.jpg": encoded(picture(60, 50, k)), f"{k:03}.cls": str(k % 5).encode()}
        tar_of(tmp_path / f"train-{shard}.tar", members)
    return str(tmp_path / "train-{0..1}.tar")


def arrays(value: Any) -> list[np.ndarray]:
    return [np.asarray(value)] if not isinstance(value, (tuple, list)) else [np.asarray(item) for item in value]


def same(a: list[Any], b: list[Any]) -> bool:
    pairs = [(x, y) for one, other in zip(a, b, strict=True) for x, y in zip(arrays(one), arrays(other), strict=True)]
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in pairs)


def epochs_of(dataset: Any, count: int = 2, **settings: Any) -> list[Any]:
    loader = Loader(dataset, 8, shuffle=True, seed=3, **({"size": "16MiB"} | settings))
    try:
        return [batch for _ in range(count) for batch in loader]
    finally:
        loader.close()


# ------------------------------------------------------------ encoded


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("augment", [None, AUGMENT], ids=["plain", "augmented"])
def test_batches_are_those_of_decoded_samples(root, workers, augment):
    for settings in ({"size": 32}, {"short_side": 40, "layout": "chw", "size": (36, 32)}):
        want = epochs_of(image.Folder(root, **settings), augment=augment)
        got = epochs_of(image.Folder(root, **settings), augment=augment, store="encoded", num_workers=workers)
        assert same(want, got)


@pytest.mark.parametrize(
    "transform",
    [
        image.Compose([image.Decode(), image.Resize(40), image.CenterCrop(32), image.ToDtype("float32")]),
        image.Compose([image.Resize((31, 33)), image.CenterCrop(30)]),
        image.CenterCrop(20),
        image.Resize(24),
    ],
    ids=["files", "pictures", "crop", "resize"],
)
def test_steps_of_the_dataset(root, transform):
    dataset = image.Folder(root, transform, lambda label: label + 0.5)
    shape = {"variable": True} if isinstance(transform, image.Resize) else {}
    loaded = [dataset[k] for k in range(len(dataset))]
    for store in ("decoded", "encoded"):
        cached = CachedSamples(
            image.Folder(root, transform, lambda label: label + 0.5), size="16MiB", store=store, **shape
        )
        for _ in range(2):
            assert same(loaded, [cached[k] for k in range(len(cached))])
            assert same(loaded, cached.__getitems__(range(len(cached))))


def test_shards(shards):
    for settings in ({}, {"label": ""}, {"target_transform": float}):
        want = epochs_of(image.Shards(shards, size=32, **settings))
        for workers in (0, 2):
            got = epochs_of(image.Shards(shards, size=32, **settings), store="encoded", num_workers=workers)
            assert same(want, got)


def test_threads_and_workers_that_are_not_forked(root):
    want = epochs_of(image.Folder(root, size=32), augment=AUGMENT)
    for settings in ({"worker": "thread"}, {"multiprocessing_context": "forkserver", "persistent_workers": True}):
        dataset = image.Folder(root, size=32)
        assert same(want, epochs_of(dataset, augment=AUGMENT, store="encoded", num_workers=2, **settings))


def test_the_source_is_never_read_again(root):
    dataset = image.Folder(root, size=32)
    loader = Loader(dataset, 8, shuffle=True, seed=3, num_workers=2, size="16MiB", store="encoded")
    first = list(loader)
    assert loader.stats().misses == len(dataset)
    assert loader.stats().hits == 0
    assert loader.stats().store == "encoded"
    shutil.rmtree(root)
    second = list(loader)
    stats = loader.stats()
    assert (stats.misses, stats.hits) == (len(dataset), len(dataset))
    assert sum(int(pictures.sum()) for pictures, _ in first) == sum(int(pictures.sum()) for pictures, _ in second)
    loader.close()


def test_more_samples_in_the_same_memory(root):
    ready = {}
    for store in ("decoded", "encoded"):
        cached = CachedSamples(image.Folder(root, size=224), size=_CONTROL + 10 * 224 * 224 * 3, store=store)
        for k in range(len(cached)):
            cached[k]
        ready[store] = cached.stats().ready
    assert 5 < ready["decoded"] < 12
    assert ready["encoded"] == 48


def test_resumes_in_the_middle_with_the_other_store(root):
    def loader(store: Any, workers: int) -> Loader:
        dataset = image.Folder(root, size=32)
        return Loader(dataset, 8, shuffle=True, seed=5, num_workers=workers, size="16MiB", store=store, augment=AUGMENT)

    want = list(loader("decoded", 0))
    for before, after in (("encoded", "decoded"), ("decoded", "encoded"), ("encoded", "encoded")):
        first = loader(before, 2)
        batches = iter(first)
        got = [next(batches) for _ in range(2)]
        state = first.state_dict()
        first.close()
        second = loader(after, 0)
        second.load_state_dict(state)
        assert same(want, got + list(second))


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_name_the_file_also_from_the_cache(root, workers):
    (root / "bee" / "003.jpg").write_bytes(b"not a picture")
    (root / "bee" / "005.jpg").write_bytes(b"")
    loader = Loader(image.Folder(root, size=32), 48, num_workers=workers, size="16MiB", store="encoded")
    for _ in range(2):
        with pytest.raises(image.DecodeError, match=r"bee/00[35]\.jpg: no picture"):
            list(loader)
        assert loader.cache.stats().ready == 48
        shutil.rmtree(root, ignore_errors=True)
    loader.close()


def test_errors_name_the_member_of_a_shard(tmp_path, shards):
    data = (tmp_path / "train-0.tar").read_bytes()
    at = data.index(b"\xff\xd8", data.index(b"004.jpg"))
    (tmp_path / "train-0.tar").write_bytes(data[:at] + b"no" + data[at + 2 :])
    cached = CachedSamples(image.Shards(shards, size=32), size="16MiB", store="encoded")
    for _ in range(2):
        with pytest.raises(image.DecodeError, match=r"train-0\.tar: 004\.jpg \(sample 4\): no picture"):
            cached[4]
    cached = pickle.loads(pickle.dumps(cached))
    shutil.rmtree(tmp_path)
    with pytest.raises(image.DecodeError, match=r"train-0\.tar \(sample 4\): no picture"):
        cached[4]


def test_the_cost_of_an_encoded_sample_is_its_read(root):
    class Slow(image.Folder):
        def read(self, index: int) -> Any:
            time.sleep(0.02 if index % 4 == 0 else 0.006)
            return super().read(index)

    cached = CachedSamples(Slow(root, size=600), size="16MiB", store="encoded", policy="cost")
    for k in range(len(cached)):
        cached[k]
    costs = cached.cache.costs()
    assert np.nanmedian(costs[::4]) > 0.015
    assert np.nanmedian(np.delete(costs, np.s_[::4])) < 0.012


def test_pickled(root):
    cached = CachedSamples(image.Folder(root, size=32), size="16MiB", store="encoded")
    want = [cached[k] for k in range(6)]
    again = pickle.loads(pickle.dumps(cached))
    assert same(want, [again[k] for k in range(6)])
    assert again.store == "encoded"
    assert "store='encoded'" in repr(again)
    loader = Loader(image.Folder(root, size=32), 8, seed=1, size="16MiB", store="encoded")
    first = list(loader)
    copied = pickle.loads(pickle.dumps(loader))
    assert same(first, list(copied))
    assert copied.stats().store == "encoded"
    assert copied.cache.uuid == loader.cache.uuid


@pytest.mark.parametrize("store", ["encoded", "auto"])
def test_a_loader_that_a_framework_makes_again(root, store):
    dataset = image.Folder(root, size=32)
    loader = Loader(dataset, 8, size="16MiB", store=store)
    first = list(loader)
    for more in ({}, {"cache": loader.cache}):
        made = Loader(dataset, 8, size="16MiB", store=store, **more)
        assert made.cache is loader.cache
        assert made.stats().store == loader.stats().store != ""
        assert same(first, list(made))
    given = Loader(image.Folder(root, size=32), 8, cache=loader.cache, store=store)
    assert given.stats().store == loader.stats().store
    assert same(first, list(given))


def test_another_decoding_of_the_same_dataset(root):
    dataset = image.Folder(root, size=32)
    first = Loader(dataset, 8, size="16MiB", store="encoded")
    assert next(iter(first))[0].shape == (8, 32, 32, 3)
    dataset.decode = image.Decode(20)
    assert next(iter(Loader(dataset, 8, size="16MiB", store="encoded")))[0].shape == (8, 20, 20, 3)


# ------------------------------------------------------------ named caches


def test_a_named_cache_has_one_store(root, cache_name):
    CachedSamples(image.Folder(root, size=32), name=cache_name, size="16MiB", store="encoded")[0]
    for dataset in (image.Folder(root, size=32), image.Folder(root, size=64)):
        with pytest.raises(InvalidError, match=r"exists with store='encoded', and store='decoded' was asked for"):
            CachedSamples(dataset, name=cache_name)
    other = CachedSamples(image.Folder(root, size=64), name=cache_name, store="encoded")  # the same files
    assert other[0][0].shape == (64, 64, 3)
    auto = CachedSamples(image.Folder(root, size=32), name=cache_name, store="auto")
    assert auto.store == "encoded"
    assert auto.why == "the cache exists"


def test_a_named_cache_of_decoded_samples(root, cache_name):
    cached = CachedSamples(image.Folder(root, size=32), name=cache_name, size="16MiB", fingerprint="v1")
    want = cached[0]
    with pytest.raises(InvalidError, match=r"exists with store='decoded', and store='encoded' was asked for"):
        CachedSamples(image.Folder(root, size=32), name=cache_name, fingerprint="v1", store="encoded")
    auto = CachedSamples(image.Folder(root, size=32), name=cache_name, fingerprint="v1", store="auto")
    assert auto.store == "decoded"
    assert same([want], [auto[0]])


def test_auto_takes_the_store_of_a_cache_that_appears_meanwhile(root, cache_name, monkeypatch):
    for there, chosen in (("decoded", "encoded"), ("encoded", "decoded")):
        made = []

        def measure(self: Any, *_: Any, there: Any = there, chosen: str = chosen, made: list[Any] = made) -> Any:
            made.append(CachedSamples(image.Folder(root, size=32), name=cache_name, size="16MiB", store=there))
            self.store, self.why = chosen, "measured"

        monkeypatch.setattr(CachedSamples, "_measure", measure)
        cached = CachedSamples(image.Folder(root, size=32), name=cache_name, size="16MiB", store="auto")
        assert cached.store == there
        assert not cached.made
        assert same([image.Folder(root, size=32)[7]], [cached[7]])
        made.pop().cache.unlink()
        cached.cache.close()


def test_fingerprints(root, cache_name):
    decoded = [derive(image.Folder(root, size=size)) for size in (32, 64)]
    files = [derive(image.Folder(root, size=size).encoded()) for size in (32, 64)]
    assert "?" not in str(decoded[0]) + str(files[0])
    assert files[0] == files[1]
    assert str(decoded[0]) != str(decoded[1])
    assert decoded[0].changed(files[0]) is not None
    cached = CachedSamples(image.Folder(root, size=32), name=cache_name, size="16MiB", store="encoded")
    [cached[k] for k in range(48)]
    (root / "bee" / "003.jpg").write_bytes(encoded(picture(90, 80, 7)))
    with pytest.raises(FingerprintError, match="the data of the dataset changed"):
        CachedSamples(image.Folder(root, size=32), name=cache_name, store="encoded")


def test_the_command_shows_the_files_of_a_cache(root, cache_name):
    CachedSamples(image.Folder(root, size=32), name=cache_name, size="16MiB", store="encoded")[0]
    command = REPOSITORY / "bin" / "stocached"
    if not command.exists():
        pytest.skip("the command is not built")
    shown = subprocess.run([command, "inspect", cache_name], capture_output=True, text=True, check=True).stdout
    assert "uint8" in shown
    assert "auto1" in shown


# ------------------------------------------------------------ mistakes


class Own(image.Folder):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)


def test_datasets_without_an_encoded_form(root):
    for dataset, why in (
        ([np.zeros(3)] * 4, "list is none of them"),
        (image.Folder(root, transform=np.asarray, size=32), "is no step of stocached.image"),
        (Own(root, size=32), "Own has a __getitem__ of its own"),
    ):
        for store in ("encoded", "auto"):
            with pytest.raises(InvalidError, match="Folder or Shards.*" + why):
                Loader(dataset, 4, size="16MiB", store=store)


def test_mistakes(root):
    dataset = image.Folder(root, size=32)
    with pytest.raises(InvalidError, match="store='files'; it must be one of decoded, encoded, auto"):
        Loader(dataset, 4, size="16MiB", store="files")
    with pytest.raises(InvalidError, match="store= is for a cache"):
        Loader(dataset, 4, store="encoded")
    with pytest.raises(InvalidError, match="leave variable=False out"):
        CachedSamples(dataset, size="16MiB", store="encoded", variable=False)
    random = image.Folder(root, transform=image.Compose([image.RandomHorizontalFlip()]), size=32)
    for store in ("decoded", "encoded"):
        with pytest.raises(NondeterministicDatasetError, match="augment="):
            CachedSamples(random, size="16MiB", store=store)
    assert CachedSamples(random, size="16MiB", store="encoded", allow_random=True)[0][0].shape == (32, 32, 3)


# ------------------------------------------------------------ auto


def test_the_cases_that_the_server_has_too():
    """source/decode/store_test.go reads the same file, so that both have one rule."""
    said = json.loads((REPOSITORY / "source/testdata/stores.json").read_text())
    assert len(said["cases"]) >= 15
    for case in said["cases"]:
        values = said["measured"][case["measured"]]
        costs, reads = tuple(values.get("costs", ())), float("inf") if values["reads"] is None else values["reads"]
        measured = Measured(**(values | {"costs": costs, "reads": reads}))
        terms = case["size"], case["workers"], case["processors"], case["costliest"]
        for name, value in epochs(measured, *terms)._asdict().items():
            assert value == pytest.approx(case[name]), (name, case)
        chosen, why = choose(measured, *terms)
        assert chosen == case["store"], case
        assert "\n" not in why
        assert "cached" in why


def test_auto_with_a_real_measurement(root, caplog):
    class Slow(image.Folder):
        def read(self, index: int) -> Any:
            time.sleep(0.01)
            return super().read(index)

    size = _CONTROL + 24 * 224 * 224 * 3  # half of the pictures, all files
    caplog.set_level(logging.INFO, "stocached")
    loader = Loader(Slow(root, size=224), 8, shuffle=True, seed=3, num_workers=2, size=size, store="auto")
    assert loader.stats().store == "encoded"
    (record,) = [record for record in caplog.records if record.levelname == "INFO"]
    assert "store='encoded': an epoch takes about" in record.getMessage()
    assert "an epoch takes about" in repr(loader._cached)
    held = loader.cache.stats().ready
    assert 4 <= held <= 8  # the measured files are in the cache
    got = [batch for _ in range(2) for batch in loader]
    assert same(epochs_of(image.Folder(root, size=224)), got)
    stats = loader.stats()
    assert (stats.misses, stats.hits) == (48 - held, 48 + held)
    loader.close()

    loader = Loader(image.Folder(root, size=224), 8, seed=3, num_workers=2, size="16MiB", store="auto")
    assert loader.stats().store == "decoded"
    assert loader.cache.stats().ready >= 4
    assert same(list(Loader(image.Folder(root, size=224), 8, seed=3)), list(loader))
    again = pickle.loads(pickle.dumps(loader))
    assert again.stats().store == "decoded"
    assert again.cache.uuid == loader.cache.uuid
    loader.close()


def test_the_part_of_times_that_grows_with_files():
    for constant, slope, grows in ((0, 2e-8, 1.0), (1e-3, 1e-8, 0.5), (1e-3, 0, 0.0), (2e-3, -1e-8, 0.0)):
        times = [(count, constant + slope * count) for count in (50_000, 100_000, 150_000)]
        assert store_trial._grows(times) == pytest.approx(grows)
    assert store_trial._grows([(5, 1.0), (5, 2.0)]) == 0


def test_augmentation_is_measured(root):
    dataset, calls = image.Folder(root, size=64), []
    form = dataset.encoded()
    for augment in (AUGMENT, calls.append):
        measured = store_trial.Files(form, len(dataset), 2, augment).measured()
        assert measured is not None
        assert (measured.augment > 0) == (augment is AUGMENT)
    assert not calls


def test_advice_needs_decoded_samples(root):
    loader = Loader(image.Folder(root, size=32), 8, size="16MiB", store="encoded", policy="cost")
    list(loader)
    with pytest.raises(InvalidError, match="an epoch also decodes"):
        advise(loader, 0.1)


def test_a_measurement_takes_at_most_about_a_second(root):
    class VerySlow(image.Folder):
        def read(self, index: int) -> Any:
            time.sleep(0.15)
            return super().read(index)

    dataset = VerySlow(root, size=32)
    form = dataset.encoded()
    start = time.monotonic()
    files = store_trial.Files(form, len(dataset), 2)
    took = time.monotonic() - start
    assert took < limit(1.3)
    measured = files.measured()
    assert measured is not None
    assert 0.15 <= measured.read < limit(0.2)
    assert max(one.read_busy for one in files.alone) < limit(0.05)
    assert measured.reads >= 1 / measured.read
    assert measured.costs == tuple(sorted(measured.costs))
    assert np.mean(measured.costs) == pytest.approx(1)


def limit(seconds: float) -> float:
    return seconds


def test_auto_without_a_readable_file(root):
    for file in root.rglob("*.jpg"):
        file.write_bytes(b"no picture")
    cached = CachedSamples(image.Folder(root, size=32), size="16MiB", store="encoded")
    with pytest.raises(image.DecodeError):
        cached[0]
    with pytest.raises(image.DecodeError, match="no picture"):
        CachedSamples(image.Folder(root, size=32), size="16MiB", store="auto")


# ------------------------------------------------------------ torch


@pytest.mark.torch
def test_torch_loaders_and_subsets(root):
    import torch

    from stocached.torch import CachedDataset, DataLoader

    half = list(range(0, 48, 2))
    want = list(DataLoader(torch.utils.data.Subset(image.Folder(root, size=32, layout="chw"), half), 8))
    for workers in (0, 2):
        subset = torch.utils.data.Subset(image.Folder(root, size=32, layout="chw"), half)
        loader = DataLoader(subset, 8, num_workers=workers, size="16MiB", store="encoded")
        for _ in range(2):
            for a, b in zip(want, loader, strict=True):
                assert torch.equal(a[0], b[0])
                assert torch.equal(a[1], b[1])
        assert loader.stats().hits == 24
        loader.close()
        cached = CachedDataset(subset, size="16MiB", store="encoded", augment=lambda sample: sample[1])
        assert [x.tolist() for x in torch.utils.data.DataLoader(cached, 8, num_workers=workers)] == [
            labels.tolist() for _, labels in want
        ]
    (root / "ant" / "004.jpg").write_bytes(b"no picture")
    cached = CachedDataset(torch.utils.data.Subset(image.Folder(root, size=32), half), size="16MiB", store="encoded")
    with pytest.raises(image.DecodeError, match=r"ant/004\.jpg"):
        cached[2]
    with pytest.raises(InvalidError, match="Folder or Shards"):
        DataLoader(torch.utils.data.Subset(range(9), [1]), size="16MiB", store="encoded")
