"""The loader with a cache that a server fills: batches are fetched in the background, and the
loader tells the server what comes next."""

from __future__ import annotations

import io
import itertools
import multiprocessing
import tarfile
import time

import pytest
from pictures import encoded, picture
from served import expected, until
from torch_helpers import TORCH_WARNINGS, DataLoader, SourceDataset, torch

from stocached import FetchError, InvalidError, Order, _native, image
from stocached._order.order import WeightedOrder

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS]


def loader(name, **options):
    return DataLoader(SourceDataset(name, timeout=60), **{"batch_size": 10, "shuffle": True, "seed": 3, **options})


def rows(batches):
    return torch.cat(list(batches))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_served_cache(server, workers):
    server.records(95)
    loads = loader(server.name, num_workers=workers)
    for epoch in range(3):
        wanted = loads.sampler.order.epoch(epoch).indices()
        batches = [batch.clone() for batch in loads]
        assert [len(batch) for batch in batches] == [10] * 9 + [5]
        assert (rows(batches).numpy() == expected(wanted.tolist())).all()
    assert server.metric("stocached_fills_total") == 95, "a sample was read twice"


def test_the_server_reads_ahead_in_the_loaders_order(server):
    """When the loop holds the first batch, the loader has asked for two. The server knows later
    ones only from hints."""
    server.records(400)
    batches = iter(loader(server.name))
    next(batches)
    until(lambda: server.metric("stocached_fills_total") >= 100)
    batches.close()


def test_torchs_order_is_not_drawn_ahead(server):
    """The loader may ask only our own orders ahead. Another sampler would draw its random numbers
    too early."""
    server.records(400)
    batches = iter(loader(server.name, seed=None))
    next(batches)
    time.sleep(0.5)
    assert server.metric("stocached_fills_total") <= 40
    batches.close()


def test_loaders_announce_their_orders_to_a_planned_cache(server):
    """Two jobs read a cache of half the samples, each in its own order. The server learns both orders,
    and keeps what they read soonest."""
    samples, epochs = 2000, 5
    server.records(samples, policy="planned", size=(4 << 20) + samples // 2 * 1024)
    assert samples * 0.48 < server.about()["slots"] < samples * 0.52
    loads = [loader(server.name, seed=seed, batch_size=20) for seed in (1, 2)]
    before = 0
    for epoch in range(epochs):
        if epoch == 2:  # the cache is full of what is read soonest
            before = server.reads()
        seen = [[], []]
        for batches in zip(*loads):
            for k, batch in enumerate(batches):
                seen[k].append(batch.clone())
            time.sleep(0.001)
        for k, load in enumerate(loads):
            wanted = load.sampler.order.epoch(epoch).indices()
            assert (rows(seen[k]).numpy() == expected(wanted.tolist())).all()
    jobs = server.about()["jobs"]
    assert sorted((job["kind"], job["seed"], job["total"]) for job in jobs) == [
        ("shuffled", 1, samples),
        ("shuffled", 2, samples),
    ]
    reads = (server.reads() - before) / (epochs - 2) / samples
    assert reads <= 0.65, f"{reads:.3f} of the dataset is read from the source in an epoch of both jobs"


@pytest.mark.parametrize("workers", [0, 2])
def test_no_job_has_more_samples_loaded_than_with_a_cache_of_its_share(server, workers):
    """Two jobs of one order on a planned cache. The first one is always the first to read a sample, so it would load
    all samples, and the second one would find them."""
    samples, slots, batch, late, epochs = 1000, 250, 20, 17, 10
    server.records(samples, policy="planned", size=(4 << 20) + slots * 1024)
    assert slots <= server.about()["slots"] <= slots + 10
    options = {"order": Order(samples, "sequential"), "batch_size": batch, "num_workers": workers}
    loads = [loader(server.name, shuffle=False, seed=None, **options) for _ in range(2)]
    owners, ahead = [], 0

    def job():
        """What the server says of the first job."""
        return next((job for job in server.about()["jobs"] if job["owner"] == owners[0]), None)

    def batches(load):
        for _ in range(epochs):
            yield from load

    first, second = (batches(load) for load in loads)
    before = 0
    for number in range(epochs * samples // batch):
        assert (next(first).numpy() == expected([number * batch % samples + k for k in range(batch)])).all()
        if not owners:
            until(lambda: len(server.about().get("jobs", [])) == 1)
            owners = [job["owner"] for job in server.about()["jobs"]]
        if number >= late:
            next(second)
        if (number + 1) * batch % samples == 0:  # the loader announces its next epoch with the next batch
            ahead += job()["read_ahead"]
        if (number + 1) * batch == 2 * samples:  # the cache was filled, and the debt was noticed
            before = ahead + loads[0].stats().misses
    loaded = (ahead + loads[0].stats().misses - before) / (epochs - 2) / samples
    for load in loads:
        load.close()
    alone = 1 - slots / 2 / samples
    assert loaded <= alone + 0.03, (
        f"{loaded:.3f} of the dataset is loaded for the first job in an epoch; alone {alone:.3f}"
    )


UNANNOUNCED = {
    "a Subset": ("is a Subset", lambda dataset: torch.utils.data.Subset(dataset, range(50)), {}),
    "a sampler": ("a sampler of the program", lambda dataset: dataset, {"seed": None}),
    "weights": (
        "weights or a mix",
        lambda dataset: dataset,
        {"shuffle": False, "seed": None, "order": WeightedOrder(100, [1.0] * 100, seed=1)},
    ),
    "an order": ("", lambda dataset: dataset, {}),
}


@pytest.mark.parametrize("case", UNANNOUNCED)
@pytest.mark.parametrize("policy", ["planned", "lru"])
def test_a_loader_says_why_it_announces_nothing(server, case, policy, caplog):
    """Once, and only for a cache that would use the order. The samples come all the same."""
    why, made, options = UNANNOUNCED[case]
    server.records(100, policy=policy, size=(4 << 20) + 50 * 1024)
    given = {"batch_size": 10, "shuffle": True, "seed": 3, **options}
    loads = DataLoader(made(SourceDataset(server.name, timeout=60)), **given)
    for _ in range(2):
        assert len(rows(loads)) == (50 if case == "a Subset" else 100)
    told = [record.getMessage() for record in caplog.records if "does not tell its server" in record.getMessage()]
    if why and policy == "planned":
        (text,) = told
        assert why in text
        assert server.name in text
    else:
        assert told == []
    assert len(server.about().get("jobs", [])) == (case == "an order" and policy == "planned")
    loads.close()


def test_the_next_server_hears_of_the_order_again(server):
    """The first fetch after a restart of the server announces the order, in the middle of an epoch."""
    samples = 400
    server.records(samples, policy="planned", size=(4 << 20) + samples // 2 * 1024)
    batches = iter(loader(server.name))
    for _ in range(5):
        next(batches)
    server.kill()
    server.start()
    seen = [batch.clone() for batch in batches]
    (job,) = server.about()["jobs"]
    assert (job["seed"], job["epoch"], job["read"]) == (3, 1, 0)
    assert sum(map(len, seen)) == samples - 50


# ------------------------------------------------------------ pictures, and steps after the cache

N = 48
DECODE = {"resize": [32, 32], "fit": "crop"}


def jpegs(n: int = N) -> dict[str, bytes]:
    return {f"{'cat' if k < n // 3 else 'dog'}/{k:03}.jpg": encoded(picture(50 + k % 7, 40, seed=k)) for k in range(n)}


def augmented(server, workers=2, transform=None, only=None, **options):
    """only: of the samples, in a Subset."""
    steps = [image.RandomHorizontalFlip(), image.RandomResizedCrop(24), image.ColorJitter(0.3, 0.3)]
    steps += [image.ToDtype("float32", scale=True), image.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))]
    dataset = SourceDataset(server.name, transform=transform, timeout=60)
    given = {"shuffle": True, "seed": 3, "augment": image.Compose(steps), **options}
    for indices in only or []:
        dataset = torch.utils.data.Subset(dataset, indices)
    return DataLoader(dataset, 8, num_workers=workers, **given)


def as_rows(loads, epochs=1):
    """Batches that can be compared and outlive their buffers."""
    return [
        [(name, str(value.dtype), tuple(value.shape), value.numpy().tobytes()) for name, value in parts_of(batch)]
        for _ in range(epochs)
        for batch in loads
    ]


def parts_of(batch):
    return sorted(batch.items()) if isinstance(batch, dict) else [("", batch)]


@pytest.fixture
def requests(monkeypatch):
    """The requests for samples that this process and its workers sent to the server."""
    count, fetch = multiprocessing.Value("i", 0), _native.fetch

    def counted(*arguments):
        with count.get_lock():
            count.value += 1
        return fetch(*arguments)

    monkeypatch.setattr(_native, "fetch", counted)
    return count


PLANNED = {"policy": "planned"}
READERS = {
    "native": {"worker": "native"},
    "processes": {"worker": "process"},
    "no workers": {"workers": 0},
    "whole batches": {"worker": "process", "collate_fn": list, "augment": None},
}


@pytest.mark.parametrize("reader", READERS)
def test_workers_read_a_planned_cache(server, reader):
    """Workers count what they read in records of their own. So the loader tells the server how far it is.
    Two jobs then read less from the source than two jobs that the server does not know."""
    n, epochs = 300, 3
    server.files(jpegs(n), decode=DECODE, size=(4 << 20) + n // 2 * 3100, **PLANNED)
    assert n * 0.45 < server.about()["slots"] < n * 0.55
    loads = [augmented(server, seed=seed, **READERS[reader]) for seed in (1, 2)]
    before = 0
    for epoch in range(epochs):
        if epoch == 1:
            before = server.reads()
        for _ in itertools.zip_longest(*loads):
            time.sleep(0.005)
    want = [(1, epochs, 0), (2, epochs, 0)]
    until(lambda: [(job["seed"], job["epoch"], job["read"]) for job in jobs_of(server)] == want, 10)
    assert sum(load.stats().hits for load in loads) > n
    for load in loads:
        load.close()
    reads = (server.reads() - before) / (epochs - 1) / n
    assert reads <= 0.85, f"{reads:.3f} of the dataset is read from the source in an epoch of both jobs"


def jobs_of(server):
    return sorted(server.about().get("jobs", []), key=lambda job: job["seed"])


def test_the_server_knows_how_far_workers_are(server):
    """Also after a restart of the server, for samples that differ in size, and for a loader that continues."""
    n = 200
    server.files(jpegs(n), size=16 << 20, **PLANNED)

    def loads():
        dataset = SourceDataset(server.name, transform=image.Decode(16), timeout=60)
        return DataLoader(dataset, 10, shuffle=True, seed=5, num_workers=2)

    load = loads()
    batches = iter(load)
    for _ in range(8):
        next(batches)
    time.sleep(0.1)
    next(batches)
    until(lambda: [job["read"] for job in jobs_of(server)] == [90])
    server.kill()
    server.start()
    time.sleep(0.1)
    next(batches)
    until(lambda: [job["read"] for job in jobs_of(server)] == [100])
    state = load.state_dict()
    batches.close()
    load.close()
    goes_on = loads()
    goes_on.load_state_dict(state)
    batches = iter(goes_on)
    next(batches)
    time.sleep(0.1)
    next(batches)
    until(lambda: [(job["read"], job["total"]) for job in jobs_of(server)] == [(20, 100)])
    assert len(list(batches)) == 8
    until(lambda: [(job["epoch"], job["read"], job["total"]) for job in jobs_of(server)] == [(1, 0, 200)])
    goes_on.close()


@pytest.mark.parametrize(
    ("labels", "cache"),
    [("none", {}), ("folders", {"size": (4 << 20) + N // 2 * 3200, "policy": "clock"})],
    ids=["all", "evicts"],
)
def test_steps_after_a_served_cache_are_native(server, labels, cache, by_python, requests):
    """The same batches as of processes. Hits are made in C, and the misses of a worker are one request."""
    server.files(jpegs(), {"labels": labels}, decode=DECODE, **cache)
    sent = {}
    for worker in ("native", "process", "thread"):
        by_python.clear()
        requests.value = 0
        loads = augmented(server, worker=None if worker == "native" else worker)
        assert loads.worker == worker
        got = as_rows(loads, 3)
        sent[worker] = requests.value
        if worker == "native":
            native = got
            stats = loads.stats()
            assert stats.samples == stats.hits + stats.misses == 3 * N
            assert stats.misses == len(by_python) == (N if not cache else stats.misses)
            assert stats.hits > 0
        assert got == native
        loads.close()
        if not cache:
            assert server.metric("stocached_fills_total") == N
    if not cache:
        assert sent["native"] <= N // 4, sent  # it came first: the others find all in the cache
        assert sent["process"] == sent["thread"] == 0
    assert as_rows(augmented(server, 0), 3) == native


@pytest.mark.parametrize(
    ("steps", "labels", "layout"),
    [(True, "none", "hwc"), (False, "folders", "chw")],
)
@pytest.mark.parametrize("cache", [{}, {"size": (4 << 20) + 60_000, "policy": "clock"}], ids=["all", "evicts"])
def test_files_of_a_served_cache_are_decoded_by_native_workers(server, labels, cache, steps, layout, by_python):
    """The same batches as of processes, and as with a cache of pictures. Python makes the misses alone."""
    options = {"transform": image.Resize((28, 36))} if steps else {"augment": None}
    server.files(jpegs(), {"labels": labels}, decode={**DECODE, "layout": layout, "store": "encoded"}, **cache)
    got = {}
    for worker in ("native", "process"):
        by_python.clear()
        loads = augmented(server, worker=None if worker == "native" else worker, **options)
        assert loads.worker == worker
        got[worker] = as_rows(loads, 3)
        if worker == "native":
            stats = loads.stats()
            assert stats.samples == stats.hits + stats.misses == 3 * N
            assert stats.misses == len(by_python)
            assert (N < stats.misses < 3 * N) if cache else stats.misses == N, stats
        loads.close()
    assert got["native"] == got["process"]


def test_a_transform_of_steps_is_native(server, by_python):
    """Of a cache of pictures; with the numbers that augment= draws."""
    server.files(jpegs(), {"labels": "folders"}, decode=DECODE)
    got = {}
    for worker in (None, "process"):
        loads = augmented(server, worker=worker, transform=image.Compose([image.Resize(40), image.CenterCrop(30)]))
        assert loads.worker == (worker or "native")
        got[worker] = as_rows(loads, 2)
        loads.close()
        if worker is None:
            assert len(by_python) == N
    assert got[None] == got["process"]


def test_pictures_of_a_served_cache_in_hwc(server, by_python):
    """Steps keep the layout. The pixels are those of the other layout, with the same random numbers."""
    decode = {**DECODE, "resize": [40, 32]}
    server.files(jpegs(), {"labels": "folders"}, decode=decode)
    loads = augmented(server, 0)
    planes = [[batch["image"] for batch in loads] for _ in range(2)]
    server.stop()
    server.files(jpegs(), {"labels": "folders"}, decode={**decode, "layout": "hwc"})
    for worker, workers in ((None, 2), ("process", 2), (None, 0)):
        by_python.clear()
        loads = augmented(server, workers, worker=worker)
        assert loads.worker == (worker or "native")
        for wants in planes:
            for batch, want in zip(loads, wants, strict=True):
                assert torch.equal(batch["image"], want.permute(0, 2, 3, 1))
        if worker is None and workers:
            assert len(by_python) == N
            assert loads.stats().hits == N
        loads.close()


def test_transforms_of_torchvision_are_converted(server):
    """All steps come after the cache."""
    v2 = pytest.importorskip("torchvision.transforms.v2")
    server.files(jpegs(), {"labels": "folders"}, decode=DECODE)
    steps = v2.Compose([v2.CenterCrop(20), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.4] * 3, [0.2] * 3)])
    theirs = SourceDataset(server.name, transform=steps)
    with pytest.raises(InvalidError, match="image.convert"):
        DataLoader(theirs, 8, num_workers=2, worker="native")
    for part in (theirs, torch.utils.data.Subset(theirs, range(8, 24))):
        dataset, augment = image.convert(part)
        ours = DataLoader(dataset, 8, num_workers=2, augment=augment)
        assert ours.worker == "native"
        for batch, want in zip(ours, torch.utils.data.DataLoader(part, 8), strict=True):
            for (_, value), (_, right) in zip(parts_of(batch), parts_of(want), strict=True):
                assert torch.allclose(value, right, atol=1e-6)
        ours.close()
    assert theirs.transform is steps
    assert "what the server keeps" in image.convert(theirs).explanation


def test_labels_of_tar_shards(server, by_python):
    server.data.mkdir()
    with tarfile.open(server.data / "a.tar", "w") as archive:
        for name, data in jpegs().items():
            key = name[4:7]
            for field, part in (("cls", str(int(key) % 7).encode()), ("jpg", data)):
                info = tarfile.TarInfo(f"{key}.{field}")
                info.size = len(part)
                archive.addfile(info, io.BytesIO(part))
    server.serve({"kind": "tar", "path": str(server.data / "a.tar"), "int64": ["cls"]}, decode=DECODE)
    loads = augmented(server)
    assert [field.name for field in loads.cache.fields] == ["image", "cls"]
    assert loads.worker == "native"
    native = as_rows(loads, 2)
    assert len(by_python) == N
    assert native == as_rows(augmented(server, worker="process"), 2)
    loads.close()


@pytest.mark.filterwarnings("ignore:stocached. a bad sample")
@pytest.mark.parametrize("bad_samples", ["skip", "error"])
def test_bad_samples_of_native_workers(server, bad_samples):
    """As of processes: each error in the place of its sample, though their requests are one."""
    files = jpegs()
    names = sorted(files)
    for k in (5, 17, 18):
        files[names[k]] = b"no picture"
    how = {"bad_samples": "skip"} if bad_samples == "skip" else {}
    server.files(files, {"labels": "folders"}, decode={**DECODE, **how})
    got = {}
    for worker in ("native", "process"):
        loads = augmented(server, worker=worker, bad_samples=bad_samples, shuffle=False)
        batches, got[worker] = iter(loads), []
        for _ in range(N // 8):
            try:
                got[worker].append([value.numpy().tobytes() for _, value in parts_of(next(batches))])
            except FetchError as error:
                got[worker].append(str(error).splitlines()[-1])  # the lines before tell where
        assert loads.stats().bad_samples == (3 if bad_samples == "skip" else 0)
        loads.close()
    assert got["native"] == got["process"]
    errors = [one for one in got["native"] if isinstance(one, str)]
    assert len(errors) == (2 if bad_samples == "error" else 0)
    assert all(names[k] in text for k, text in zip((5, 17), errors))


def test_served_samples_that_c_cannot_augment(server):
    server.files(jpegs(), {"labels": "folders"}, decode=DECODE)
    for settings, why in (
        ({"augment": None}, "there is no augment="),
        ({"augment": lambda sample: sample}, "augment=.* is no step"),
        ({"transform": halved}, "transform=.* is no step"),
        ({"transform": image.RandomCrop(20)}, "draws random numbers"),
        ({"transform": image.Normalize((0, 0, 0), (1, 1, 1))}, "float"),
        ({"collate_fn": list}, "workers make whole batches"),
    ):
        assert augmented(server, **settings).worker == "process"
        with pytest.raises(InvalidError, match=f'^worker="native": .*{why}'):
            augmented(server, worker="native", **settings)
    assert augmented(server, augment=image.RandomCrop(20)).worker == "native"


# the indices of Subsets within each other, and the samples of the last one
PARTS = {
    "list": ([[20, 3, -1, 3, *range(5, 40)]], {*range(5, 40), 3, 47}),
    "a Subset of a Subset": ([range(44, 4, -1), torch and torch.arange(3, 33)], set(range(12, 42))),
}


@pytest.mark.parametrize(
    ("part", "store", "cache"),
    [
        ("list", "decoded", {}),
        ("list", "encoded", {"size": (4 << 20) + 60_000, "policy": "clock"}),
        ("a Subset of a Subset", "encoded", {}),
    ],
)
def test_a_subset_of_a_served_cache(server, part, store, cache, by_python):
    """The same batches with all workers, cold and warm; without evictions each sample is loaded once."""
    only, there = PARTS[part]
    n = len(only[-1])
    server.files(jpegs(), {"labels": "folders"}, decode={**DECODE, "store": store}, **cache)
    got = {}
    for worker, workers in ((None, 2), ("process", 2), ("thread", 2), (None, 0)):
        by_python.clear()
        loads = augmented(server, workers, only=only, worker=worker)
        assert (loads.worker, len(loads.dataset)) == (worker or "native", n)
        got[worker, workers] = as_rows(loads, 2)
        stats = loads.stats()
        assert stats.samples == stats.hits + stats.misses == 2 * n
        if len(got) == 1:
            assert 0 < stats.misses <= len(by_python)  # less if another thread stores one that Python is to load
            assert stats.hits > 0
        loads.close()
    if not cache:
        assert server.metric("stocached_fills_total") == len(there)
    assert all(batches == got[None, 2] for batches in got.values())


@pytest.mark.parametrize("workers", [0, 2])
def test_hits_of_a_subset_are_copied_into_batches(server, workers):
    """As of the whole dataset: the training process has a whole batch in one call. Batches that come are asked ahead."""
    server.records(100)
    indices = [20, 3, -1, 3, *range(30, 90)]
    subset = torch.utils.data.Subset(SourceDataset(server.name, timeout=60), indices)
    loads = DataLoader(subset, 10, shuffle=True, seed=3, num_workers=workers)
    for epoch in range(2):
        order = loads.sampler.order.epoch(epoch).indices()
        assert (rows(batch.clone() for batch in loads).numpy() == expected([indices[k] % 100 for k in order])).all()
    assert server.metric("stocached_fills_total") == 63
    stats = loads.stats()
    assert stats.samples == 128
    assert stats.hits >= 64
    loads.close()
    whole = torch.cat(list(torch.utils.data.DataLoader(subset, 8)))
    assert (whole.numpy() == expected([k % 100 for k in indices])).all()
    picked = DataLoader(subset, 4, sampler=[-1, 2, 0])
    assert (rows(picked).numpy() == expected([89, 99, 20])).all()
    for outside in (64, -65):
        with pytest.raises(IndexError, match="index -?\\d+ is out of range; the dataset has 64 samples"):
            list(DataLoader(subset, 4, sampler=[0, outside]))


def test_a_random_transform_of_a_served_cache_depends_on_the_index(server):
    """Not on which worker process gets the sample."""
    server.records(64)
    dataset = SourceDataset(server.name, transform=noisy, timeout=60)
    got = []
    for data in (dataset, torch.utils.data.Subset(dataset, range(64))):
        for workers in (1, 2):
            loads = DataLoader(data, 4, shuffle=True, seed=3, num_workers=workers)
            got.append(rows(batch.clone() for batch in loads))
            loads.close()
    assert all(torch.equal(one, got[0]) for one in got)
    assert got[0].std() > 0


def noisy(sample):
    return torch.rand(4)


@pytest.mark.filterwarnings("ignore:stocached. a bad sample")
@pytest.mark.parametrize("augment", [True, False])
def test_bad_samples_of_a_subset(server, augment):
    """They are counted and listed by their index in the Subset, as of other datasets."""
    files = jpegs()
    for name in sorted(files)[20:22]:
        files[name] = b"no picture"
    server.files(files, {"labels": "folders"}, decode={**DECODE, "bad_samples": "skip"})
    how = {} if augment else {"augment": None}
    for worker in ("native", "process") if augment else ("process",):
        loads = augmented(server, worker=worker, only=[range(16, 48)], bad_samples="skip", shuffle=False, **how)
        assert [len(batch["label"]) for batch in loads] == [6, 8, 8, 8]
        assert [sample.index for sample in loads.stats().bad] == [4, 5]
        loads.close()


def halved(sample):
    return {**sample, "image": sample["image"] // 2}


def test_server_that_ends_while_native_workers_read(server):
    """Hits need no server, and misses wait for the next one."""
    server.files(jpegs(), {"labels": "folders"}, decode=DECODE)
    loads = augmented(server)
    want = as_rows(augmented(server, 0), 2)
    server.kill()
    assert as_rows(loads) == want[: N // 8]
    server.start()
    assert as_rows(loads) == want[N // 8 :]
    loads.close()
