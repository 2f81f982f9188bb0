"""Native workers: threads that read, decode, store and augment pictures in C. Their batches are those of all other
workers, and Python gets few samples."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import pytest
import trace_file
from native_samples import (
    CONTROL,
    dataset_of,
    folder_of_small,
    labels_of,
    read,
    shards_of_small,
    taken,
    tar_of,
    usual,
)
from pictures import encoded, folder_of, picture

from stocached import Loader, image

N, BATCH = 40, 8
SLOT = 3 * 48 * 48 + 64 + 64
KINDS: dict[str, dict[str, Any]] = {
    "sized": {"size": 48},
    "planes": {"size": (40, 48), "short_side": 50, "layout": "chw"},
    "padded": {"size": (60, 40), "fit": "pad", "fill": (1, 2, 3), "filter": "bicubic"},
    "short side": {"short_side": 50, "layout": "chw"},
    "whole": {},
}
ALONE: dict[str, dict[str, Any]] = {  # shards
    "alone": {"size": 48, "label": ""},
    "alone, whole": {"label": ""},
}
KINDS |= ALONE
STORES: dict[str, dict[str, Any]] = {
    "none": {},
    "fixed": {"size": "16MiB", "variable": False},
    "variable": {"size": "16MiB", "variable": True},
    "fixed, a part": {"size": CONTROL + 12 * SLOT, "variable": False, "policy": "first-come"},
    "variable, a part": {"size": CONTROL + 150_000, "variable": True},
    "encoded": {"size": "16MiB", "store": "encoded"},
}
POLICIES = ("cost", "clock", "random")
for policy in POLICIES:
    STORES[f"fixed, {policy}"] = {"size": CONTROL + 12 * SLOT, "variable": False, "policy": policy}
    STORES[f"variable, {policy}"] = {"size": CONTROL + 150_000, "variable": True, "policy": policy}

ROOTS = {"folder": folder_of_small, "shards": shards_of_small}


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return functools.cache(lambda kind: ROOTS[kind](tmp_path_factory.mktemp(kind), N))


@pytest.fixture(params=ROOTS)
def root(request: pytest.FixtureRequest, roots: Callable[[str], Path]) -> Path:
    return roots(request.param)


def loader_of(root: Path, workers: int, kind: str = "sized", **settings: Any) -> Loader:
    given = {"shuffle": True, "seed": 3, "augment": usual(), "worker": "native" if workers else None, **settings}
    return Loader(dataset_of(root, **KINDS[kind]), BATCH, num_workers=workers, **given)


# ------------------------------------------------------------ the same batches


def fits(store: str, kind: str, augment: bool = True) -> bool:
    """Pictures of several sizes fit no slots of one size. Without random crops they fit no batch."""
    return "size" in KINDS[kind] or ("fixed" not in store and augment)


def ways() -> Iterator[tuple[str, str, str, bool]]:
    """Caches that evict and samples without augmentation have two kinds of samples, other caches have all. Caches that
    evict have samples with augmentation."""
    for root, kinds in {"folder": KINDS.keys() - ALONE, "shards": {"sized", "whole", *ALONE}}.items():
        for kind, store, augment in itertools.product(KINDS, STORES, (True, False)):
            few = store.endswith(POLICIES) or not augment
            if store.endswith(POLICIES) and not augment:
                continue
            if kind in kinds and fits(store, kind, augment) and (not few or kind in ("sized", "whole", "alone")):
                yield root, kind, store, augment


@pytest.mark.parametrize(("root", "kind", "store", "augment"), list(ways()), indirect=["root"])
def test_batches(root, kind, store, augment, by_python):
    """Of a cold and a warm epoch, as far as samples stay."""
    shards = any(root.glob("*.tar"))
    step = usual() if augment else None
    name = f"{kind} {augment} {shards}"
    if not hasattr(test_batches, name):
        setattr(test_batches, name, read(loader_of(root, 0, kind, augment=step), 2))
    want = getattr(test_batches, name)
    for workers in ((2, 5) if shards else (1, 5)) if store == "none" else (5,):
        loader = loader_of(root, workers, kind, augment=step, **STORES[store])
        assert read(loader, 2) == want
        assert by_python == [], "C does all"
        stats = loader.stats()
        assert stats.hits + stats.misses == stats.samples == 2 * N
        assert (stats.hits > 0) == (store != "none") or "," in store
        assert loader.cache is None or loader.cache.verify() == []
        loader.close()


@pytest.mark.parametrize(
    ("root", "worker", "store"),
    [
        ("folder", "process", "none"),
        ("shards", "process", "variable, clock"),
        ("shards", "process", "encoded"),
        ("folder", "thread", "fixed"),
    ],
    indirect=["root"],
)
def test_other_workers_make_the_same(root, worker, store):
    others = loader_of(root, 2, worker=worker, **STORES[store])
    assert read(others, 2) == read(loader_of(root, 2, **STORES[store]), 2)
    others.close()


ORDERS = {
    "flip, crop": [image.RandomHorizontalFlip(), image.RandomCrop(32)],
    "resize, resized crop": [image.Resize(40), image.RandomResizedCrop(24)],
    "colours, resized crop": [image.ColorJitter(0.3, 0.3, 0.3, 0.1), image.RandomResizedCrop(24), image.ToDtype("float32")],
    "resize, padded crop": [image.Resize(30), image.RandomCrop(36, padding=4, pad_if_needed=True, fill=(1, 2, 3))],
    "resized crop, resize": [image.RandomResizedCrop(50, (0.1, 0.3)), image.Resize((20, 30)), image.RandomHorizontalFlip()],
}  # fmt: skip


@pytest.mark.parametrize(
    ("root", "kind", "steps"),
    [
        (root, ("sized", "whole")[(k + (root == "shards")) % 2], steps)
        for k, steps in enumerate(ORDERS)
        for root in list(ROOTS)[k % 2 : k % 2 + 1]
    ],
    indirect=["root"],
)
def test_steps_in_orders_that_need_several_passes(root, steps, kind, by_python):
    """Native workers make the batches of processes, from files, pictures and encoded files. C does every task."""
    augment, stores = image.Compose(ORDERS[steps]), ("none", "variable", "encoded")
    processes = loader_of(root, 2, kind, augment=augment, worker="process")
    want = read(processes, 2)
    processes.close()
    for store in stores:
        loader = loader_of(root, 2, kind, augment=augment, **STORES[store])
        assert read(loader, 2) == want
        assert by_python == []
        loader.close()


BEFORE: dict[str, Any] = {
    "centre": image.CenterCrop(40),
    "centre, larger": image.CenterCrop((70, 30)),
    "longest side": image.Resize(40, max_size=44),
    "longest side, centre": image.Compose(
        [image.Decode(layout="chw"), image.Resize(50, max_size=55), image.CenterCrop(32)]
    ),
    "twice": image.Compose(
        [image.Resize(40, "bicubic"), image.CenterCrop(50), image.Resize((31, 20)), image.CenterCrop(8)]
    ),
    "of one size": image.Compose([image.Decode((40, 44)), image.CenterCrop((44, 20))]),
}  # fmt: skip


def loader_before(root: Path, before: str, workers: int, worker: Any, **store: Any) -> Loader:
    augment = image.Compose([image.RandomCrop(24, pad_if_needed=True), image.RandomHorizontalFlip()])
    dataset = dataset_of(root, transform=BEFORE[before])
    assert dataset.sizes_vary == (before == "longest side")
    return Loader(dataset, BATCH, num_workers=workers, worker=worker, shuffle=True, seed=3, augment=augment, **store)


@functools.cache
def made_by_processes(root: Path, before: str) -> Any:
    loader = loader_before(root, before, 2, "process")
    batches = read(loader, 2)
    loader.close()
    return batches


# All steps with two of three caches, some steps with others.
THREE = ("variable", "fixed", "encoded")
STEPS = [(before, THREE[(k + n) % 3]) for k, before in enumerate(BEFORE) for n in (0, 1)]
STEPS += [("twice", store) for store in ("fixed, a part", "variable, a part", "fixed, cost", "variable, clock")]


@pytest.mark.parametrize(
    ("root", "before", "store"),
    [("folder", *steps) for steps in STEPS] + [("shards", *steps) for steps in STEPS[::3]],
    indirect=["root"],
)
def test_steps_before_the_cache(root, before, store, by_python):
    """C does them once, and stores their pictures: the batches and the bytes in the cache are those of processes."""
    all_stay, kept = "," not in store, []
    for workers, worker in (*([(2, "process")] if all_stay else []), (3, "native")):
        loader = loader_before(root, before, workers, worker, **STORES[store])
        assert read(loader, 2) == made_by_processes(root, before)
        assert by_python == [], "C does all"
        assert loader.cache is not None
        if all_stay:
            kept.append([sample_bytes(loader.cache, k) for k in range(N)])
        loader.close()
    if all_stay:
        assert kept[0] == kept[1]
        assert None not in kept[0]


def sample_bytes(cache: Any, index: int) -> Any:
    sample = cache.get(index, copy=True)
    return None if sample is None else [(part.shape, part.tobytes()) for part in sample.values()]


@pytest.mark.parametrize("size", ["16MiB", None], ids=["cached", "from files"])
def test_the_first_batch_needs_no_python(root, size, by_python):
    """C knows the shape of rows before it has read a file, if all pictures have one."""
    for before in ("centre", "of one size"):
        dataset = dataset_of(root, transform=BEFORE[before])
        got = read(Loader(dataset, BATCH, num_workers=2, shuffle=True, seed=3, worker="native", size=size))
        assert by_python == []
        assert got == read(Loader(dataset, BATCH, shuffle=True, seed=3))


def test_half_of_the_samples_are_cached(root, by_python):
    want = read(loader_of(root, 0), 2)
    for variable in (False, True):
        first = loader_of(root, 0, seed=None, shuffle=False, sampler=range(0, N, 2), size="16MiB", variable=variable)
        read(first)
        loader = loader_of(root, 2, cache=first.cache)
        assert read(loader, 2) == want
        stats = loader.stats()
        assert (stats.hits, stats.misses) == (N // 2 + N, N // 2)
        assert by_python == []
        first.close()


def test_two_loaders_share_a_named_cache(root, cache_name, by_python):
    want, sized = read(loader_of(root, 0), 2), {"size": "16MiB", "fingerprint": "a"}
    one = loader_of(root, 2, name=cache_name, **sized)
    two = loader_of(root, 2, name=cache_name, **sized)
    assert one.cache is not two.cache
    both = [(taken(a), taken(b)) for a, b in zip(one, two)]
    assert both == [(batch, batch) for batch in want[: N // BATCH]]
    assert read(two) == want[N // BATCH :]
    assert two.stats().hits >= N
    assert by_python == []
    one.close()
    two.close()


def test_batches_of_odd_sizes(root, by_python):
    lists = [list(range(30)), [3, 1], [5], [0, 39]]
    loader = loader_of(root, 2, seed=None, shuffle=False, augment=None)
    loader = Loader(loader.dataset, batch_sampler=lists, num_workers=2)
    assert loader.worker == "native"
    assert labels_of(read(loader)) == [loader.dataset[k][1] for batch in lists for k in batch]
    assert len(by_python) <= 2, "one sample of each thread, before the first batch says how many rows a buffer has"


# ------------------------------------------------------------ folders of several formats


def odd_files() -> dict[str, bytes]:
    files = {}
    for k in range(1, 9):
        files[f"turned-{k}.jpg"] = encoded(picture(70, 50, seed=k), orientation=k)
    files["grey.jpg"] = encoded(picture(66, 55, seed=20), mode="L")
    files["cmyk.jpg"] = encoded(picture(66, 55, seed=21), mode="CMYK")
    files["progressive.jpg"] = encoded(picture(66, 55, seed=22), progressive=True)
    files["thin.jpg"] = encoded(picture(4, 90, seed=23), subsampling="4:4:4")
    files["with.png"] = encoded(picture(66, 55, seed=24), "PNG")
    files["grey.png"] = encoded(picture(66, 55, seed=25), "PNG", "L")
    files["palette.png"] = encoded(picture(66, 55, seed=26), "PNG", "P")
    files["named.jpg"] = encoded(picture(66, 55, seed=27), "PNG")  # a PNG in truth
    files["pixels.bmp"] = encoded(picture(66, 55, seed=28), "BMP")
    files["new.webp"] = encoded(picture(66, 55, seed=29), "WEBP", lossless=True)
    return files


@pytest.fixture
def odd(tmp_path) -> Path:
    (tmp_path / "a").mkdir()
    for name, data in odd_files().items():
        (tmp_path / "a" / name).write_bytes(data)
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "store"),
    [
        (kind, store)
        for kind in KINDS
        for store in ("none", "fixed", "variable")
        if kind not in ALONE and fits(store, kind)
    ],
)
def test_formats(odd, kind, store, by_python):
    """Python decodes what C does not, in the middle of the others. Out of the cache C makes all rows."""
    want = read(loader_of(odd, 0, kind), 2)
    for workers in (1, 3):
        by_python.clear()
        loader = loader_of(odd, workers, kind, **STORES[store])
        assert read(loader) == want[: len(want) // 2]
        others = [k for k, (path, _) in enumerate(loader.dataset.samples) if not in_c(path)]
        assert len(others) == 1
        assert sorted(by_python) == others
        by_python.clear()
        assert read(loader) == want[len(want) // 2 :]
        assert sorted(by_python) == (others if store == "none" else [])
        loader.close()


def in_c(path: str) -> bool:
    """Whether C decodes a file."""
    return Path(path).read_bytes().startswith((b"\xff\xd8", b"\x89PNG", b"RIFF"))


def outcomes(loader: Loader, epochs: int = 1) -> list[Any]:
    """Batches, and errors in their places."""
    found = [one for _ in range(epochs) for one in helpers.outcomes(iter(loader))]
    return [(type(one), str(one)) if isinstance(one, Exception) else taken(one) for one in found]


@pytest.mark.parametrize("store", ["none", "fixed", "variable, clock"])
def test_broken_files(tmp_path, store):
    """The same error as of other workers, in the place of its batch; the batches after it come as usual."""
    root = folder_of_small(tmp_path, N)
    files = sorted(root.glob("*/*.jpg"))
    dataset = image.Folder(root, size=48)  # before files are broken, as the cache probes some
    order = {"shuffle": True, "seed": 3, "augment": usual()}
    whole = read(Loader(dataset, BATCH, **order), 2)
    loaders = {
        worker: Loader(dataset, BATCH, num_workers=2, worker=worker, **order, **STORES[store])
        for worker in ("native", "thread", "process")
    }
    probed = {str(files[k]) for k in (0, N // 2, N - 1)}
    broken = [path for path in files if str(path) not in probed][5::9]
    broken[0].write_bytes(broken[0].read_bytes()[:900])
    broken[1].write_bytes(b"")
    broken[2].write_bytes(b"no picture at all")
    broken[3].unlink()
    got = {worker: outcomes(loader, 2) for worker, loader in loaders.items()}
    native = got["native"]
    assert got["thread"] == native
    first_lines = [(one[0], one[1].splitlines()[0]) if isinstance(one[0], type) else one for one in got["process"]]
    assert first_lines == native
    errors = {k: one[1] for k, one in enumerate(native) if isinstance(one[0], type)}
    assert 4 <= len(errors) <= 8
    assert sum(any(str(path) in text for text in errors.values()) for path in broken) >= 2, errors
    assert [one for k, one in enumerate(native) if k not in errors] == [
        one for k, one in enumerate(whole) if k not in errors
    ]
    for loader in loaders.values():
        loader.close()


@pytest.mark.parametrize("store", ["none", "encoded"])
def test_files_that_are_cut_off_below_the_box(tmp_path, store):
    """Native workers decode only a box of a whole picture. A file that lacks bits is bad in every epoch all the same."""
    root = folder_of(tmp_path / "train", {"c": 12}, (60, 200))
    for path in sorted(root.glob("*/*.jpg"))[2::4]:
        path.write_bytes(path.read_bytes()[:-900])
    order = {"shuffle": True, "seed": 3, "augment": image.RandomResizedCrop(16), "bad_samples": "skip"}
    got, bad = {}, {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for workers in (0, 2):
            loader = Loader(image.Folder(root), 4, num_workers=workers, **order, **STORES[store])
            got[workers], bad[workers] = outcomes(loader, 3), [one.index for one in loader.stats().bad]
            loader.close()
    assert loader.worker == "native"
    assert got[0] == got[2]
    assert sorted(bad[0]) == sorted(bad[2]) == [2, 6, 10]


@pytest.mark.parametrize("store", ["none", "fixed", "encoded"])
@pytest.mark.parametrize("bad_samples", ["error", "skip"])
def test_broken_samples_of_shards(tmp_path, store, bad_samples):
    """As of other workers: pictures that do not decode, and labels that C gives back: some are no numbers."""
    jpegs = {k: encoded(picture(60 + k % 7, 50, seed=k)) for k in range(N)}
    jpegs |= {5: jpegs[5][:900], 9: b"", 17: b"no picture at all", 18: encoded(picture(60, 50), "PNG")}
    labels = {k: str(k) for k in range(N)} | {3: " 10 ", 4: "\v4", 6: "+6", 7: "007"}
    if bad_samples == "error":
        labels |= {11: "dog", 33: ""}
    members: dict[str, bytes] = {}
    for k in range(N):
        members |= {f"{k:03}.cls": labels[k].encode(), f"{k:03}.jpg": jpegs[k]}
    tar_of(tmp_path / "a.tar", members)
    got = {}
    for worker in ("native", "thread", "process"):
        loader = loader_of(tmp_path, 2, worker=worker, bad_samples=bad_samples, **STORES[store])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = outcomes(loader, 2)
        got[worker] = (
            [(one[0], one[1].splitlines()[0]) if isinstance(one[0], type) else one for one in found],
            loader.stats().bad_samples,
        )
        loader.close()
    assert got["native"] == got["thread"] == got["process"]
    batches, bad = got["native"]
    seen = labels_of([one for one in batches if not isinstance(one[0], type)])
    if bad_samples == "skip":
        assert bad == 6
        assert sorted(seen) == sorted(2 * [{3: 10}.get(k, k) for k in range(N) if k not in (5, 9, 17)])
    else:
        assert any("no label: invalid literal" in str(one[1]) for one in batches if isinstance(one[0], type))


# ------------------------------------------------------------ numbers


several = image.Compose([image.RandomHorizontalFlip(1), image.RandomCrop(32), image.ToDtype("float32")])
floats = image.Compose([image.ToDtype("float32"), image.RandomHorizontalFlip(1), image.RandomCrop(32)])


@pytest.mark.parametrize(
    ("augment", "variable"),
    [(usual(), True), (several, False), (floats, True)],
    ids=["one pass", "several passes", "floats"],
)
def test_each_sample_counts_once(root, augment, variable, by_python):
    loader = loader_of(root, 3, augment=augment, size="16MiB", variable=variable)
    before = loader.cache.stats()
    for epoch in range(3):
        batches = read(loader)
        stats, counted = loader.stats(), loader.cache.stats()
        assert (stats.misses, stats.hits) == (N, epoch * N)
        assert (counted.misses - before.misses, counted.hits - before.hits) == (N, epoch * N)
        assert counted.stored == N
        assert stats.batches == (epoch + 1) * N // BATCH
        assert stats.bytes == (epoch + 1) * sum(len(batch[2]) + 8 * len(batch[3]) for batch in batches)
    assert len(by_python) == (0 if augment is not floats else 3 * N)
    assert stats.load_seconds > 0
    loader.close()


def test_costs_are_measured(tmp_path, by_python):
    """Of each sample, by the thread that loads it. The costliest stay."""
    root = folder_of_small(tmp_path, N)
    files = sorted(root.glob("*/*.jpg"))
    dear = range(3, N, 8)
    for k in dear:
        files[k].write_bytes(encoded(picture(1100, 800, seed=k)))
    loader = loader_of(root, 2, size=CONTROL + 12 * SLOT, variable=False, policy="cost")
    for _ in range(6):
        read(loader)
        costs = loader.cache.costs()  # nan: one load that took far longer than others
        assert (costs > 0).sum() >= 0.75 * N, "every sample was loaded"
        if all(k in loader.cache for k in dear):
            break
    else:
        raise AssertionError(loader.cache.states())
    cheap = np.delete(costs, dear)
    assert np.nanmedian(cheap) < 0.5 * np.nanmin(costs[dear]) < 5
    assert by_python == []
    loader.close()


def test_a_wait_for_the_processor_is_no_cost(root, by_python):
    """More threads than processors: a thread that waited longer than its load took stores it as well."""
    loader = loader_of(root, 8, augment=usual(8), persistent_workers=True, **STORES["variable, cost"])
    read(loader, 6)
    assert by_python == []
    loader.close()


@pytest.mark.parametrize("store", ["none", "variable"])
def test_timeline(root, tmp_path, store):
    """Each sample is a load or a hit of a worker, with its index and the time of its steps."""
    path = tmp_path / "run.json"
    loader = loader_of(root, 2, trace=path, **STORES[store])
    read(loader, 2)
    stats = loader.stats()
    loader.close()
    file = trace_file.read(path)
    spans = [span for worker in range(2) for span in trace_file.spans_of(file, f"worker {worker}")]
    found: dict[str, list[tuple[int, int]]] = {}
    for span in spans:
        found.setdefault(span["name"], []).append((span["args"]["epoch"], span["args"]["index"]))
    all_samples = [(epoch, index) for epoch in range(2) for index in range(N)]
    assert sorted(found.pop("augment")) == all_samples
    assert sorted(found.pop("load")) == all_samples[: stats.misses]
    assert sorted(found.pop("gather", [])) == all_samples[stats.misses :]
    assert sorted(found.pop("source")) == all_samples[: stats.misses]
    assert set(found.pop("delay", [])) <= set(all_samples)  # the waits for a processor
    assert found == {}
    spans = [span for span in spans if span["name"] != "source"]  # within loads
    assert all(span["dur"] > 0 for span in spans if span["name"] != "gather"), "a hit is read and augmented at once"
    took = sum(span["dur"] for span in spans) / 1e6
    assert took == pytest.approx(stats.load_seconds, rel=0.05, abs=0.002)
