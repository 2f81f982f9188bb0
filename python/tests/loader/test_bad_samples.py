"""bad_samples="skip": damaged pictures are left out of their batches, and nothing else changes."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Of, stopped
from pictures import encoded, picture
from processes import in_child
from test_loader_again import BOTH

import stocached
from stocached import BadSampleError, FetchError, InvalidError, Loader, UnsupportedError, image
from stocached._common.errors import FetchFailure
from stocached._image.errors import NoDecoderError
from stocached._loader.bad_samples import BadSample, bad_sample

pytestmark = pytest.mark.filterwarnings("ignore:stocached. a bad sample")

N = 40
JPEG = encoded(picture(90, 70))
DAMAGED = {
    3: ("jpg", JPEG[: len(JPEG) * 3 // 4], "the file is cut off or damaged"),
    4: ("jpg", b"", "no picture"),
    13: ("jpg", b"this is a text", "no picture"),
    39: ("png", encoded(picture(40, 30), "PNG")[:900], "cut off"),
}
GOOD = [k for k in range(N) if k not in DAMAGED]
SETTINGS: dict[str, dict[str, Any]] = {
    "alone": {},
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "worker": "thread"},
    "kept": {"num_workers": 2, "persistent_workers": True},
}
PATHS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cached": {"size": "8MiB"},
    "variable": {"size": "8MiB", "variable": True},
    "augmented": {"size": "8MiB", "augment": "shift"},
    "own collate_fn": {"collate_fn": "columns"},
    "own collate_fn, cached": {"collate_fn": "columns", "size": "8MiB"},
}


def shift(sample, generator):
    pixels, label = sample
    return pixels, label + 1000 * int(generator.integers(1, 9))


def columns(samples):
    return np.stack([np.asarray(pixels) for pixels, _ in samples]), np.array([label for _, label in samples])


FUNCTIONS = {"shift": shift, "columns": columns}


class Pictures(image.Folder):
    """The label of a sample is its index."""

    def __init__(self, root: Path, log: Path | None = None) -> None:
        super().__init__(root, size=16)
        self.samples = [(path, k) for k, (path, _) in enumerate(self.samples)]
        self.log = log

    def __getitem__(self, index):
        if self.log is not None:
            with self.log.open("ab", buffering=0) as log:
                log.write(b"%d\n" % index)
        return super().__getitem__(index)


class Several(Pictures):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    (folder / "cat").mkdir()
    for k in range(N):
        kind, data, _ = DAMAGED.get(k, ("jpg", encoded(picture(40 + k, 30, k)), ""))
        (folder / "cat" / f"{k:03}.{kind}").write_bytes(data)
    return folder


def loader(dataset, kind=Loader, **options):
    options = {"batch_size": 6, "shuffle": True, "seed": 5, "bad_samples": "skip"} | options
    return kind(
        dataset,
        **{name: FUNCTIONS.get(value, value) if isinstance(value, str) else value for name, value in options.items()},
    )


def labels_of(batch) -> list[int]:
    return np.asarray(batch[1]).tolist()


def labels(batches) -> list[list[int]]:
    return [labels_of(batch) for batch in batches]


def joined(batches: list[list[int]]) -> list[int]:
    return [label for batch in batches for label in batch]


def wanted(loads, epoch: int = 0, size: int = 6) -> list[list[int]]:
    """The batches of an epoch, without the bad samples."""
    order = loads.sampler.order.epoch(epoch).indices().tolist()
    return [[k for k in order[at : at + size] if k in GOOD] for at in range(0, N, size)]


# ------------------------------------------------------------ the batches


@BOTH
@pytest.mark.parametrize(
    ("settings", "path"),
    [
        *(("alone", path) for path in PATHS),
        *((settings, path) for settings in list(SETTINGS)[1:] for path in ("cached", "own collate_fn")),
    ],
)
def test_bad_samples_are_left_out_and_counted(root, settings, path, kind):
    loads = loader(Pictures(root), kind(), **SETTINGS[settings], **PATHS[path])
    dataset = Pictures(root)
    for epoch in range(3):
        batches = [[np.array(part) for part in batch[:2]] for batch in loads]
        assert len(batches) == len(loads) == 7
        assert [[label % 1000 for label in batch] for batch in labels(batches)] == wanted(loads, epoch)
        for pixels, numbers in batches:
            for row, label in zip(pixels, numbers):
                assert (row == dataset[int(label) % 1000][0]).all()
        stats = loads.stats()
        assert stats.samples == len(GOOD) * (epoch + 1)
        assert stats.bad_samples == len(DAMAGED) * (epoch + 1)
        assert stats.hits + stats.misses == stats.samples
        assert stats.misses >= 0
        if "size" in PATHS[path] and epoch:
            assert stats.hits >= len(GOOD) * epoch - 12  # kept workers begin an epoch before the last one has ended
    assert sorted(bad.index for bad in stats.bad) == sorted(DAMAGED)
    for bad in stats.bad:
        extension, _, reason = DAMAGED[bad.index]
        assert bad.file == str(root / "cat" / f"{bad.index:03}.{extension}")
        assert reason in bad.reason
        assert bad.file not in bad.reason
        assert str(bad) == f"sample {bad.index}: {bad.file}: {bad.reason}"
    assert "12 bad samples were left out" in str(stats)
    loads.close()


@pytest.mark.parametrize("settings", SETTINGS)
def test_augmentations_do_not_depend_on_what_the_loader_knows(root, settings):
    """The batches are those of a new loader, which knows no bad sample yet."""
    old, new = (loader(Pictures(root), size="8MiB", augment=shift, **SETTINGS[settings]) for _ in range(2))
    list(old)
    new.set_epoch(1)
    assert labels(old) == labels(new)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_loads_batches(root, workers):
    for more in ({}, {"size": "8MiB"}):
        loads = loader(Several(root), num_workers=workers, **more)
        for epoch in range(2):
            assert labels(loads) == wanted(loads, epoch)
        assert loads.stats().bad_samples == 8


@pytest.mark.parametrize("own", [False, True])
def test_out_of_order(root, own):
    more = {"collate_fn": columns} if own else {}
    loads = loader(Pictures(root), num_workers=2, in_order=False, **more)
    for epoch in range(2):
        assert sorted(labels(loads)) == sorted(wanted(loads, epoch))


@pytest.mark.parametrize("workers", [0, 2])
def test_drop_last_looks_at_the_order(root, workers):
    loads = loader(Pictures(root), num_workers=workers, drop_last=True)
    assert labels(loads) == wanted(loads)[:-1]


def test_batches_of_the_users_sampler(root):
    """Such batches differ in size, and indices may come twice or from the end."""
    given = [[0, 3, 1], [4, 2], [-1, 5, 5, 13], [6]]
    for workers in (0, 2):
        for more in ({}, {"size": "8MiB"}):
            loads = Loader(Pictures(root), batch_sampler=given, num_workers=workers, bad_samples="skip", **more)
            for _ in range(2):
                assert labels(loads) == [[0, 1], [2], [5, 5], [6]]
            assert loads.stats().bad_samples == 8


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("path", ["plain", "cached", "own collate_fn"])
def test_a_batch_of_bad_samples_is_an_error(root, settings, path):
    """The batches after it come as usual."""
    dataset = Pictures(root)
    batches = [[0, 1], [3, 4], [13, 39, 3, 4], [2, 3]]
    more = {name: FUNCTIONS.get(value, value) for name, value in PATHS[path].items()}
    given = Loader(dataset, batch_sampler=batches, bad_samples="skip", **SETTINGS[settings], **more)
    for _ in range(2):
        batches = iter(given)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seen = labels([next(batches)])
            for said in (
                "sample 3: .*003.jpg: .*; sample 4: .*no picture",
                r"sample 13: .*39.png.*sample 3: .*; and 1 more",
            ):
                with pytest.raises(BadSampleError, match="all samples of this batch are bad: " + said):
                    next(batches)
            seen += labels(batches)
        assert seen == [[0, 1], [2]]
    assert given.stats().bad_samples == 8
    assert given.stats().batches == 4
    given.close()


# ------------------------------------------------------------ what a loader says and remembers


@pytest.mark.parametrize("settings", SETTINGS)
def test_one_warning_names_the_first(root, settings):
    loads = loader(Pictures(root), **SETTINGS[settings])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        list(loads)
        list(loads)
    told = [one for one in told if "bad sample" in str(one.message)]
    assert len(told) == 1
    first = loads.stats().bad[0]
    assert str(first) in str(told[0].message)
    assert told[0].filename == __file__
    loads.close()


@pytest.mark.parametrize("path", ["plain", "cached", "own collate_fn"])
@pytest.mark.parametrize("settings", ["alone", "kept"])
def test_known_bad_samples_are_not_loaded_again(root, tmp_path, settings, path):
    log = tmp_path / "log"
    loads = loader(Pictures(root, log), **SETTINGS[settings], **PATHS[path])
    list(loads)
    list(loads)
    log.write_bytes(b"")
    assert labels(loads) == wanted(loads, 2)
    assert not set(map(int, log.read_text().split())) & set(DAMAGED)
    assert loads.stats().bad_samples == 3 * len(DAMAGED)
    loads.close()


def test_a_bad_sample_is_not_cached(root):
    loads = loader(Pictures(root), size="8MiB")
    list(loads)
    assert np.flatnonzero(loads.cache.states() != stocached.State.READY).tolist() == sorted(DAMAGED)


def test_stats_between_two_moments(root):
    loads = loader(Pictures(root))
    with pytest.warns(UserWarning, match="bad sample"):
        list(loads)
    before = loads.stats()
    list(loads)
    since = loads.stats() - before
    assert since.bad_samples == len(DAMAGED)
    assert since.bad == ()


def each_tenth(index):
    """The others are bad."""
    if index % 10:
        raise BadSampleError("no good", f"file {index}")
    return index


@pytest.mark.parametrize("workers", [0, 2])
def test_the_count_is_exact_and_the_list_is_short(workers):
    loads = Loader(Of(each_tenth, 3000), 20, num_workers=workers, bad_samples="skip")
    for epoch in range(1, 3):
        assert [batch.tolist() for batch in loads] == [[k, k + 10] for k in range(0, 3000, 20)]
        assert loads.stats().bad_samples == 2700 * epoch
        assert len(loads.stats().bad) == 256


# ------------------------------------------------------------ errors that stay errors


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("path", ["plain", "own collate_fn"])
def test_the_default_is_an_error_that_names_the_file(root, settings, path):
    loads = loader(Pictures(root), shuffle=False, bad_samples="error", **SETTINGS[settings], **PATHS[path])
    batches = iter(loads)
    with pytest.raises(image.DecodeError, match="003.jpg: the file is cut off"):
        next(batches)
    assert labels([next(batches)]) == [[6, 7, 8, 9, 10, 11]]
    assert loads.stats().bad_samples == 0
    loads.close()


def broken(index):
    if index == 4:
        raise ValueError("another error")
    return index


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("more", [{}, {"collate_fn": list}])
def test_other_errors_stay_errors(settings, more):
    loads = Loader(Of(broken, 6), 3, bad_samples="skip", **SETTINGS[settings], **more)
    batches = iter(loads)
    next(batches)
    with pytest.raises(ValueError, match="another error"):
        next(batches)
    loads.close()


def test_which_errors_are_bad_samples(tmp_path):
    assert bad_sample(3, image.DecodeError("why", "a.jpg")) == BadSample(3, "a.jpg", "why")
    assert bad_sample(3, BadSampleError("why")) == BadSample(3, None, "why")
    for error in (OSError("gone"), ValueError("other"), UnsupportedError("x"), NoDecoderError("no Pillow", "a.png")):
        assert bad_sample(3, error) is None
    bad, gone = FetchFailure(0, 3, "BAD", "a.jpg: why"), FetchFailure(1, 4, "READ", "b.jpg: gone")
    assert bad_sample(3, FetchError("", [bad])) == BadSample(3, None, "a.jpg: why")
    assert bad_sample(3, FetchError("", [bad, gone])) is None
    assert bad_sample(3, FetchError("refused")) is None


def test_the_exception():
    error = BadSampleError("the header is damaged", Path("a.bin"))
    assert isinstance(error, ValueError)
    assert isinstance(error, stocached.StocachedError)
    assert str(error) == "a.bin: the header is damaged"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.file, again.reason) == (BadSampleError, str(error), "a.bin", error.reason)
    assert str(BadSampleError("damaged")) == "damaged"
    assert BadSampleError("damaged").file is None
    assert issubclass(image.DecodeError, BadSampleError)


def test_mistakes(root):
    for options, said in (
        ({"bad_samples": "ignore"}, 'must be "error" or "skip"'),
        ({"batch_size": None}, "leaves samples out of batches"),
    ):
        with pytest.raises(InvalidError, match=said):
            Loader(Pictures(root), **{"bad_samples": "skip", **options})
    with pytest.raises(InvalidError, match="this one is iterable"):
        Loader(set(range(3)), bad_samples="skip")


# ------------------------------------------------------------ the constructor of a cache


@pytest.mark.torch
@pytest.mark.parametrize("variable", [False, True])
def test_a_dataset_whose_first_and_last_samples_are_bad(tmp_path, variable):
    from stocached.torch import CachedDataset, DataLoader

    (tmp_path / "cat").mkdir()
    bad = {0, 1, 10, 19}
    for k in range(20):
        (tmp_path / "cat" / f"{k:03}.jpg").write_bytes(b"no" if k in bad else encoded(picture(40, 30, k)))
    for options in ({}, {"bad_samples": "error"}):
        with pytest.raises(image.DecodeError, match="000.jpg"):
            CachedDataset(Pictures(tmp_path), variable=variable, **options)
    cached = CachedDataset(Pictures(tmp_path), variable=variable, bad_samples="skip")
    with pytest.raises(image.DecodeError, match="019.jpg"):
        cached[19]
    for dataset, more in ((cached, {}), (Pictures(tmp_path), {"size": "8MiB", "variable": variable})):
        loads = DataLoader(dataset, 5, bad_samples="skip", num_workers=2, **more)
        for _ in range(2):
            assert joined(labels(loads)) == [k for k in range(20) if k not in bad]
    with pytest.raises(InvalidError, match='must be "error" or "skip"'):
        CachedDataset(Pictures(tmp_path), bad_samples="no")


def test_a_dataset_without_a_good_sample():
    with pytest.raises(BadSampleError, match="no good"):
        Loader(Of(lambda index: each_tenth(index + 1), 9), 2, bad_samples="skip", size="1MiB")


def test_a_file_that_is_damaged_after_it_was_cached(tmp_path, cache_name):
    (tmp_path / "cat").mkdir()
    files = [tmp_path / "cat" / f"{k:03}.jpg" for k in range(9)]
    for k, file in enumerate(files):
        file.write_bytes(encoded(picture(40, 30, k)))
    options = {"name": cache_name, "size": "8MiB", "bad_samples": "skip", "fingerprint": "one"}
    first = Loader(Pictures(tmp_path), 3, **options)
    list(first)
    files[8].write_bytes(b"")
    again = Loader(Pictures(tmp_path), 3, **options)
    assert joined(labels(again)) == list(range(9))
    assert again.stats().bad_samples == 0


# ------------------------------------------------------------ ranks and checkpoints


@pytest.mark.parametrize(
    ("settings", "path"),
    [("alone", "plain"), ("alone", "own collate_fn"), ("processes", "augmented")],
)
def test_resumed_at_every_batch(root, settings, path):
    def new(batch_size=6):
        return loader(Pictures(root), batch_size=batch_size, **SETTINGS[settings], **PATHS[path])

    whole = labels(new())
    for at in range(len(whole)) if settings == "alone" else (0, 3, len(whole) - 1):
        seen, state = stopped(new(), at, plain=labels_of)
        assert at == 0 or state["position"] == 6 * at
        after = new()
        after.load_state_dict(state)
        assert seen + labels(after) == whole
    after = new(4)  # batches of another size begin in the middle of one of these
    after.load_state_dict({**state, "position": 4})
    assert joined(labels(after)) == joined(labels(new(4))[1:])


@pytest.mark.parametrize(
    "more", [{}, {"num_workers": 2}, {"num_workers": 2, "in_order": False}, {"num_workers": 2, "collate_fn": columns}]
)
def test_resumed_without_an_order(root, more):
    """The state counts batches of a sampler, and workers send snapshots."""
    order = np.random.default_rng(0).permutation(N).reshape(8, 5).tolist()

    def new():
        return Loader(Pictures(root), batch_sampler=order, bad_samples="skip", **more)

    whole = [[k for k in batch if k in GOOD] for batch in order]
    for at in (1, 3, 7):
        seen, state = stopped(new(), at, plain=labels_of)
        after = new()
        after.load_state_dict(state)
        assert sorted(seen + labels(after)) == sorted(whole)


def test_ranks_have_the_same_number_of_batches(root):
    ranks = [labels(loader(Pictures(root), rank=rank, world_size=2)) for rank in range(2)]
    assert len(ranks[0]) == len(ranks[1]) == 4
    assert sorted(joined(ranks[0] + ranks[1])) == GOOD


def test_a_forked_child_counts_for_itself(root):
    loads = loader(Pictures(root))
    list(loads)
    in_child(lambda: labels(loads) == wanted(loads, 1) and loads.stats().bad_samples == len(DAMAGED))
    assert loads.stats().bad_samples == len(DAMAGED)
