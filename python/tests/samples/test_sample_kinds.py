"""Every kind of sample, through every way to use a cache. It comes back unchanged, and default
collate gives what torch's loader gives."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Of
from torch_helpers import TORCH_WARNINGS, CachedDataset, DataLoader, torch

import stocached
from stocached import Loader

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS, pytest.mark.filterwarnings("ignore:Starting with TensorDict")]

N = 12
# of ALL, which begins with COLLATED
NAMES = re.findall(r'^    "(.+?)": ', (Path(__file__).parents[1] / "sample_kinds.py").read_text(), re.MULTILINE)
OF_COLLATED = NAMES[: NAMES.index("namedtuple") + 1]


@pytest.fixture(autouse=True, scope="module")
def imported():
    """Imports the packages. Not at collection, because that takes seconds in each process that runs
    tests."""
    global ALL, COLLATED, Kind, alike
    pytest.importorskip("torchvision")
    pytest.importorskip("tensordict")
    import sample_kinds
    from sample_kinds import COLLATED, OTHERS, Kind, alike

    assert sample_kinds.N == N
    ALL = {**COLLATED, **OTHERS}
    assert list(ALL) == NAMES
    assert list(COLLATED) == OF_COLLATED


def several(kinds: dict[str, Any]) -> Of:
    """Samples of several kinds at once."""
    return Of(lambda index: {name: make(index) for name, make in kinds.items()}, N)


def batches(loader: Any) -> list[Any]:
    """Batches of the second epoch, which come from the cache if there is one."""
    list(loader)
    return list(loader)


def same_batches(ours: Any, theirs: Any) -> bool:
    a, b = batches(ours), batches(theirs)
    return len(a) == len(b) and all(map(alike, a, b))


# ------------------------------------------------------------ CachedDataset


@pytest.mark.parametrize(("name", "variable"), [*((name, None) for name in NAMES), ("all at once", True)])
def test_it_comes_back_as_what_it_was(name, variable):
    make = ALL[name] if variable is None else several(ALL).function
    kind = Kind(make)
    dataset = CachedDataset(kind, size="64MiB", variable=variable)
    for _ in range(2):
        assert all(alike(dataset[k], make(k)) for k in range(N)), name
        assert all(map(alike, dataset.__getitems__(range(N)), map(make, range(N)))), name
    assert sorted(kind.loads) == sorted([*range(N), *range(N)])  # once to store it, once to compare it
    stats = dataset.stats()
    assert (stats.stored, stats.passed) == (N, 0)
    assert variable is None or dataset.cache.variable


def test_a_named_cache_is_read_by_another_process(cache_name):
    filled = CachedDataset(several(ALL), name=cache_name, fingerprint="kinds", size="64MiB")
    for k in range(N):
        filled[k]
    child = os.fork()
    if child == 0:  # for the cache it is another program: it attaches by name
        status = 1
        try:
            kinds = {name: Kind(make) for name, make in ALL.items()}
            other = CachedDataset(
                several({name: kind.__getitem__ for name, kind in kinds.items()}), name=cache_name, fingerprint="kinds"
            )
            tried = len(kinds["IntEnum"].loads)
            same = all(alike(other[k], several(ALL)[k]) for k in range(N))
            status = 0 if same and len(kinds["IntEnum"].loads) == tried and other.stats().stored == N else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    filled.cache.unlink()


# ------------------------------------------------------------ loaders


@pytest.mark.parametrize(
    "settings", [{}, {"size": "64MiB"}, {"size": "64MiB", "variable": True}], ids=["no cache", "fixed", "variable"]
)
@pytest.mark.parametrize("workers", [0, 2])
def test_default_collate_is_that_of_torch(workers, settings):
    texts = {"str_", "StrEnum"}  # their size differs, so the whole cache has variable size
    for kinds in (COLLATED, {name: make for name, make in COLLATED.items() if name not in texts}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            theirs = torch.utils.data.DataLoader(several(kinds), 5)
            assert same_batches(DataLoader(several(kinds), 5, num_workers=workers, **settings), theirs)


@pytest.mark.parametrize("name", OF_COLLATED)
def test_each_kind_by_itself_is_collated_as_by_torch(name):
    """A sample that is only one value of the kind, from the cache, by columns if possible."""
    assert same_batches(
        DataLoader(Kind(COLLATED[name]), 5, size="64MiB"), torch.utils.data.DataLoader(Kind(COLLATED[name]), 5)
    )


@pytest.mark.parametrize("settings", [{}, {"size": "64MiB"}], ids=["no cache", "cache"])
def test_a_sample_that_holds_none_is_collated_the_same_with_a_cache(settings):
    kind = Kind(lambda k: {"a": None, "b": [k, None]})
    assert batches(Loader(kind, 6, **settings))[1]["a"] == [None] * 6
    with pytest.raises(TypeError, match="found <class 'NoneType'>"):
        batches(DataLoader(kind, 6, **settings))


@pytest.mark.parametrize("settings", [{}, {"size": "64MiB"}], ids=["no cache", "cache"])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_own_collate_function_gets_what_the_dataset_gave(workers, settings):
    loader = DataLoader(several(ALL), 5, num_workers=workers, collate_fn=list, **settings)
    samples = [sample for batch in batches(loader) for sample in batch]
    assert all(map(alike, samples, map(several(ALL).__getitem__, range(N))))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_cached_dataset_in_the_loader_of_torch(workers):
    theirs = torch.utils.data.DataLoader(several(COLLATED), 5)
    dataset = CachedDataset(several(COLLATED), size="64MiB")
    assert same_batches(torch.utils.data.DataLoader(dataset, 5, num_workers=workers), theirs)
    assert (dataset.stats().stored, dataset.stats().passed) == (N, 0)


@pytest.mark.parametrize("settings", [{}, {"size": "64MiB"}], ids=["no cache", "cache"])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_numpy(workers, settings):
    found = batches(Loader(several({**COLLATED, "dataclass": ALL["dataclass"]}), N, num_workers=workers, **settings))[0]
    assert np.array_equal(found["Image"], np.stack([ALL["Image"](k).numpy() for k in range(N)]))
    assert found["BoundingBoxes"].shape == (N, 2, 4)
    assert np.array_equal(found["TensorDict"]["b"]["c"], np.stack([np.full((2, 2), k, np.float32) for k in range(N)]))
    assert found["TensorDict of rows"]["b"].shape == (N, 3, 2)
    assert (type(found["OrderedDict"]), type(found["UserDict"])) == (
        type(ALL["OrderedDict"](0)),
        type(ALL["UserDict"](0)),
    )
    assert found["IntEnum"].tolist() == [int(ALL["IntEnum"](k)) for k in range(N)]
    assert found["float8"].dtype == np.uint8  # the bits, because NumPy has no float8
    assert [list(column) for column in found["25 values"]] == [[k + j for k in range(N)] for j in range(25)]
    assert all(map(alike, found["dataclass"], map(ALL["dataclass"], range(N))))


def test_batches_of_torchvision_are_what_the_program_asks_for():
    """torch.stack makes plain tensors of them, unless torchvision is set otherwise. Columns of the
    cache behave the same."""
    from torchvision import tv_tensors

    loader = DataLoader(Kind(COLLATED["detection"]), 5, size="64MiB")
    image, target = batches(loader)[0]
    assert (type(image), type(target["boxes"])) == (torch.Tensor, torch.Tensor)
    with tv_tensors.set_return_type("TVTensor"):
        assert same_batches(loader, torch.utils.data.DataLoader(Kind(COLLATED["detection"]), 5))
        assert type(batches(loader)[0][0]) is tv_tensors.Image


# ------------------------------------------------------------ samples that differ


@pytest.mark.parametrize(
    ("make", "odd"),
    [
        (lambda k: {"a": k}, {"b": 0}),
        (lambda k: {"a": k}, {"a": 0, "b": 0}),
        (lambda k: k, "a text"),
        (lambda k: k, None),
        (lambda k: (k, k), [0, 0]),
        (lambda k: torch.zeros(3), np.zeros(3, np.float32)),
        (lambda k: torch.zeros(3), {1, 2}),
        (lambda k: torch.zeros(3), torch.zeros(4)),
        (lambda k: {"a": [k, {"b": 1.0}]}, {"a": [0, {"b": 1}]}),
        (lambda k: 5, 2**70),
    ],
)
@pytest.mark.parametrize("at", [0, N // 2, N - 1], ids=["first", "middle", "last"])
def test_one_odd_sample_among_those_that_are_tried_passes(make, odd, at):
    """It comes as the dataset gives it, and is the program's own: the dataset's object is not given out."""
    kind = Kind(lambda k: odd if k == at else make(k))
    dataset = CachedDataset(kind, size="64MiB", variable=False if isinstance(odd, torch.Tensor) else None)
    with pytest.warns(UserWarning, match=f"sample {at} went uncached"):
        got = [dataset[k] for k in range(N)]
    assert all(map(alike, got, (odd if k == at else make(k) for k in range(N))))
    assert got[at] is not odd or odd is None or isinstance(odd, (str, int))
    assert (dataset.stats().stored, dataset.stats().passed) == (N - 1, 1)


def test_samples_that_are_all_different_are_refused():
    kinds = [lambda k: k, lambda k: "text", lambda k: {"a": k}]
    with pytest.raises(
        stocached.SchemaError,
        match=r"too many structures: sample 0 is int; sample 5 is str; sample 11 is a dict with 'a'\. Make them alike",
    ):
        CachedDataset(Kind(lambda k: kinds[(k > 0) + (k > 5)](k)), size="64MiB")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda k: {"image": k, "labels": [1] * k},
            r"sample 0 is a dict with 'image', 'labels'; in sample 5, value 'labels' is a list of 5 values, not of 0 values; "
            r"in sample 11, .* arrays and strings may differ in length, lists may not",
        ),
        (lambda k: [1] * k, r"sample 0 is a list of 0 values; sample 5 is a list of 5 values; sample 11 is"),
    ],
)
def test_lists_of_differing_lengths_are_said(make, message):
    with pytest.raises(stocached.SchemaError, match=message):
        CachedDataset(Kind(make), size="64MiB")


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (
            {"image": torch.zeros(3) if torch else 0},
            {"image": torch.zeros(3, dtype=torch.float64) if torch else 0},
            r"value 'image' is float32 in sample 0 of the dataset and float64 in sample 11; .*\.to\(torch\.float32\)",
        ),
        (
            (np.zeros(3, np.uint8), 1),
            (np.zeros(3, np.int32), 1),
            r"item 0 is uint8 in sample 0 .* int32 in sample 11; .*\.astype\(\"uint8\"\)",
        ),
        (
            np.float32(1),
            np.float64(1),
            r"the sample is float32 in sample 0 .* float64 in sample 11; .*numpy\.float32\(\.\.\.\)",
        ),
    ],
)
def test_dtypes_that_differ_are_named(one, other, message):
    for make in (
        CachedDataset,
        lambda dataset, size: DataLoader(dataset, 4, size=size),
        lambda dataset, size: Loader(dataset, 4, size=size),
    ):
        with pytest.raises(stocached.SchemaError, match=message) as caught:
            make(Kind(lambda k: one if k < N - 1 else other), size="64MiB")
        assert type(caught.value) is stocached.SchemaError


class Picture:
    """Has the module name of a library's class."""


Picture.__module__ = "PIL.Image"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Picture(), ["PIL.Image.Picture", "pil_to_tensor"]),
        ({1, 2}, ["set", "sorted list"]),
        (torch.zeros(2).to_sparse() if torch else None, ["torch.Tensor", ".to_dense()"]),
        (torch.nn.Parameter(torch.zeros(2)) if torch else None, ["torch.nn.parameter.Parameter", "plain tensor"]),
        (np.array([object()]), ["numpy.ndarray of object", "array of numbers"]),
        (np.zeros(2, "M8[s]"), ["M8[s]", "convert it"]),
        (object(), ["object", "dataclasses"]),
        (torch.zeros(2, dtype=torch.uint8).view(torch.bits8) if torch else None, ["torch.bits8", "convert it"]),
        (torch.zeros(2, device="meta") if torch else None, ["torch.Tensor", "has values"]),
    ],
)
def test_values_that_cannot_be_cached_name_themselves_and_the_remedy(value, words):
    with pytest.raises(stocached.SchemaError) as caught:
        CachedDataset(Kind(lambda k: {"target": (k, value)}), size="64MiB")
    assert all(word in str(caught.value) for word in ["value 'target.1'", *words]), caught.value
    assert type(caught.value) is stocached.SchemaError
