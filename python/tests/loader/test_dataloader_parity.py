"""stocached.torch.DataLoader compared with torch.utils.data.DataLoader. A table of cases: each is a
function that makes loaders with the class it gets, and returns the results. Both classes must give
the same: batches, exceptions, lengths, warnings, worker info, seeds, and positions of generators.

The table does not contain intended differences. The tests at the end do, one for each line of the
list in docs/guides/loader.md.

STOCACHED_TEST_PARITY=torch compares torch's class with itself. A case that fails then depends on
chance.
"""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import itertools
import multiprocessing
import os
import pickle
import random
import re
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import parity_datasets as data
import pytest
from helpers import Of
from parity_datasets import N
from parity_same import Raised, difference, outcome, raised, warned
from processes import until
from torch_helpers import TORCH_WARNINGS, DataLoader, torch

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300), *TORCH_WARNINGS]

Make = Callable[..., Any]
TORCH_HAS_IN_ORDER = torch is not None and "in_order" in torch.utils.data.DataLoader.__init__.__annotations__


@dataclass(frozen=True)
class Case:
    name: str
    run: Callable[[Make, int], Any]
    workers: tuple[int, ...]
    thread: bool | int  # whether it also runs with workers that are threads; a number: at most that many
    reference: int | None = None  # the largest number of workers for torch; None: as many as for ours


CASES: list[Case] = []


def case(workers: Any = (0, 2), thread: Any = True, over: Any = None, reference: Any = None) -> Callable[[Any], Any]:
    """Puts a function (make, workers) into the table, or with `over` a function (make, workers,
    entry) for each entry of a dict or list. `thread` may be a list of entries, `workers` and
    `reference` may be functions of the entry: most entries of a long list behave alike with
    workers, and starting processes takes time."""

    def add(function: Any) -> Any:
        name = function.__name__
        if over is None:
            CASES.append(Case(name, function, workers, thread, reference))
        for key in over or ():
            entry = over[key] if isinstance(over, dict) else key
            run = functools.partial(_with, function, entry)
            in_threads = key in thread if isinstance(thread, list) else thread
            CASES.append(Case(f"{name}[{key}]", run, _of(workers, key), in_threads, _of(reference, key)))
        return function

    return add


def _of(setting: Any, key: Any) -> Any:
    return setting(key) if callable(setting) else setting


def _with(function: Any, entry: Any, make: Make, workers: int) -> Any:
    return function(make, workers, entry)


def epochs(loader: Any, n: int = 1) -> Any:
    """All batches of n epochs. An exception replaces the rest of its epoch."""
    return [outcome(lambda: list(loader)) for _ in range(n)]


def one_by_one(iterator: Iterator[Any], most: int = 30, texts: tuple[str, ...] = ()) -> list[Any]:
    """Goes on after exceptions, up to StopIteration, which is the last entry."""
    got: list[Any] = []
    for _ in range(most):
        try:
            got.append(next(iterator))
        except StopIteration as end:
            got.append(raised(end))
            return got
        except Exception as error:
            got.append(raised(error, *texts))
    return got


def generators() -> Any:
    """Positions of the global generators. A loader must leave them where torch's loader does."""
    return float(torch.rand(())), random.random(), float(np.random.rand())


def seeded(seed: int) -> Any:
    return torch.Generator().manual_seed(seed)


def some(workers: int, **options: Any) -> dict[str, Any]:
    """Options that are allowed only with workers."""
    return options if workers else {}


# ------------------------------------------------------------ samples and batches


# Kinds of samples that pass through workers differently, for cases that do not run with all kinds.
FEW = [
    "tensor", "tensor empty", "tensor shapes differ", "tensor requires grad", "array", "int", "float then int", "str", "tuple",
    "dict of a dict", "namedtuple", "None", "dataclass", "a key is missing",
]  # fmt: skip


# torch's workers make batches in shared memory, which refuses these or changes their type. Ours
# give what both classes give without workers.
AS_WITHOUT_WORKERS = [
    "tensor requires grad", "tensor leaf requires grad", "parameter", "tensor dtypes differ", "tensor ints then floats",
    "array dtypes differ", "tensor then array", "tensor sparse",
]  # fmt: skip


def _reference(kind: str) -> int:
    return 0 if kind in AS_WITHOUT_WORKERS or kind not in FEW else 1


@case(
    over=list(data.SAMPLES),
    workers=lambda kind: (0, 2) if kind in FEW else (0, 1) if kind in AS_WITHOUT_WORKERS else (0,),
    thread=FEW,
    reference=_reference,
)
def collated(make, w, kind):
    return epochs(make(data.Kind(kind), batch_size=4, num_workers=w))


@case(over=list(data.SAMPLES), workers=lambda kind: (0, 2) if kind in FEW else (0,), thread=False, reference=_reference)
def not_collated(make, w, kind):
    return epochs(make(data.Kind(kind, 4), batch_size=None, num_workers=w))


@case(
    over=[
        "tensor",
        "array",
        "int",
        "str",
        "dict",
        "namedtuple",
        "list of its own",
        "None",
        "array of strings",
        "tensor shapes differ",
    ],
    workers=(0, 1),
    thread=["tensor"],
)
def iterable_collated(make, w, kind):
    return epochs(make(data.OfKind(kind), batch_size=4, num_workers=w)), epochs(
        make(data.OfKind(kind), batch_size=None, num_workers=w)
    )


_LABELS = lambda samples: [label for _, label in samples]  # noqa: E731

SETTINGS: dict[str, Callable[[int], dict[str, Any]]] = {
    "defaults": lambda w: {},
    "batch_size 3": lambda w: dict(batch_size=3),
    "batch_size larger than the dataset": lambda w: dict(batch_size=64),
    "drop_last": lambda w: dict(batch_size=3, drop_last=True),
    "drop_last of all": lambda w: dict(batch_size=64, drop_last=True),
    "batch_size None": lambda w: dict(batch_size=None),
    "batch_size None shuffle": lambda w: dict(batch_size=None, shuffle=True),
    "shuffle": lambda w: dict(batch_size=3, shuffle=True),
    "shuffle generator": lambda w: dict(batch_size=3, shuffle=True, generator=seeded(42)),
    "sampler list": lambda w: dict(batch_size=2, sampler=[5, 3, 3, 9, 0]),
    "sampler negative": lambda w: dict(batch_size=2, sampler=[-1, -2]),
    "sampler tensor": lambda w: dict(batch_size=2, sampler=torch.tensor([1, 5, 2])),
    "sampler empty": lambda w: dict(batch_size=2, sampler=[]),
    "sampler own": lambda w: dict(batch_size=2, sampler=data.OwnSampler()),
    "sampler without length": lambda w: dict(batch_size=2, sampler=data.SamplerWithoutLength()),
    "sampler with drop_last": lambda w: dict(batch_size=2, sampler=data.OwnSampler(), drop_last=True),
    "sampler and batch_size None": lambda w: dict(batch_size=None, sampler=data.OwnSampler()),
    "random sampler": lambda w: dict(
        batch_size=4, sampler=torch.utils.data.RandomSampler(data.Plain(), generator=seeded(3))
    ),
    "batch_sampler list": lambda w: dict(batch_sampler=[[0, 1], [2, 3, 4], [9]]),
    "batch_sampler with an empty batch": lambda w: dict(batch_sampler=[[0, 1], [], [2]], collate_fn=data.as_list),
    "batch_sampler empty batch collated": lambda w: dict(batch_sampler=[[0, 1], [], [2]]),
    "batch_sampler of none": lambda w: dict(batch_sampler=[]),
    "batch_sampler own": lambda w: dict(batch_sampler=data.OwnBatchSampler()),
    "batch_sampler of tensors": lambda w: dict(batch_sampler=list(torch.tensor([[0, 1], [2, 3]]))),
    "index out of range": lambda w: dict(batch_size=2, sampler=[0, 1, 2, 99, 4, 5]),
    "collate list": lambda w: dict(batch_size=3, collate_fn=data.as_list),
    "collate dict": lambda w: dict(batch_size=3, collate_fn=data.shapes),
    "collate lambda": lambda w: dict(batch_size=3, collate_fn=_LABELS),
    "collate own class": lambda w: dict(batch_size=3, collate_fn=data.own_batch),
    "collate and batch_size None": lambda w: dict(batch_size=None, collate_fn=data.as_list),
    "collate default_collate": lambda w: dict(batch_size=3, collate_fn=torch.utils.data.default_collate),
    "collate None": lambda w: dict(batch_size=3, collate_fn=lambda samples: None),
    "prefetch_factor 1": lambda w: dict(batch_size=3, **some(w, prefetch_factor=1)),
    "prefetch_factor 7": lambda w: dict(batch_size=3, **some(w, prefetch_factor=7)),
    "persistent_workers": lambda w: dict(batch_size=3, shuffle=True, **some(w, persistent_workers=True)),
    "persistent_workers own sampler": lambda w: dict(
        batch_sampler=data.OwnBatchSampler(), **some(w, persistent_workers=True)
    ),
    "timeout": lambda w: dict(batch_size=3, **some(w, timeout=30)),
    "worker_init_fn": lambda w: dict(batch_size=3, worker_init_fn=data.no_init),
    "pin_memory": lambda w: dict(batch_size=3, pin_memory=True),
    "pin_memory own class": lambda w: dict(batch_size=3, pin_memory=True, collate_fn=data.own_batch),
}


# Entries that show nothing about workers that another entry does not show.
WITHOUT_WORKERS = [
    "batch_size larger than the dataset", "sampler negative", "random sampler", "sampler with drop_last", "batch_size None shuffle",
    "drop_last of all", "batch_sampler of none", "batch_sampler with an empty batch", "collate lambda", "collate default_collate",
    "batch_size 3", "sampler list", "sampler tensor", "sampler empty", "sampler without length", "sampler and batch_size None",
    "batch_sampler list",
]  # fmt: skip


# Entries for which torch's loader with workers differs from the one without. It takes as long as ours to start workers.
DEPEND_ON_WORKERS = [
    "persistent_workers",
    "persistent_workers own sampler",
    "index out of range",
    "pin_memory own class",
]


@case(
    over=SETTINGS,
    workers=lambda name: (0,) if name in WITHOUT_WORKERS else (0, 2),
    reference=lambda name: None if name in DEPEND_ON_WORKERS else 0,
    thread=["defaults", "batch_size None", "shuffle", "drop_last", "sampler own", "batch_sampler own", "collate dict", "collate and batch_size None",
            "persistent_workers", "persistent_workers own sampler", "index out of range", "prefetch_factor 1"],
)  # fmt: skip
def settings(make, w, options):
    """Two epochs, and the positions of the generators before, between and after them."""
    chosen = options(w)
    loader = make(data.Plain(), num_workers=w, **chosen)
    got = []
    for _ in range(2):
        got += [outcome(lambda: len(loader)), outcome(lambda: list(loader)), generators()]
    if "generator" in chosen:
        got.append(chosen["generator"].get_state())
    return got


def _datasets() -> dict[str, Callable[[], Any]]:
    u = torch.utils.data if torch is not None else None
    x = torch.arange(20.0).reshape(10, 2) if torch is not None else None
    return {
        "tensor": lambda: x,
        "array": lambda: np.arange(20).reshape(10, 2),
        "list": lambda: [x[k] for k in range(10)],
        "empty list": list,
        "TensorDataset": lambda: u.TensorDataset(x, torch.arange(10)),
        "StackDataset": lambda: u.StackDataset(a=u.TensorDataset(x), b=list(range(10))),
        "Subset": lambda: u.Subset(data.Plain(), [7, 7, 2, 0, 1]),
        "Subset with __getitems__": lambda: u.Subset(data.Batched(), [7, 5, 2, 0, 1]),
        "ConcatDataset": lambda: u.ConcatDataset([data.Plain(3), data.Plain(4), data.Plain(2)]),
        "__getitems__": lambda: data.Batched(),
        "__getitems__ None": lambda: data.BatchedNot(),
        "__getitems__ fails": lambda: data.BatchedFails(),
        "no length": lambda: data.NoLength(),
        "generator": lambda: (k for k in range(10)),
        "None": lambda: None,
    }


@case(
    over=_datasets(),
    reference=0,
    thread=["TensorDataset", "__getitems__", "__getitems__ fails", "no length", "Subset"],
)
def datasets(make, w, dataset):
    def run(**options: Any) -> Any:
        loader = make(dataset(), num_workers=w, **options)
        return outcome(lambda: len(loader)), epochs(loader, 1)

    return outcome(lambda: run(batch_size=4)), outcome(lambda: run(batch_size=4, shuffle=True, generator=seeded(7)))


KEYS: dict[str, list[Any]] = {
    "str": ["a", "b", "c"],
    "None": [None, None, None],
    "int": [1, -2, 2**40],
    "mixed": ["six", 7, (8, 9), None],
}


@case(over=KEYS, workers=lambda key: (0, 2) if key == "mixed" else (0,))
def indices_of_any_type(make, w, keys):
    return epochs(make(data.Echo(), sampler=keys, batch_size=2, num_workers=w)), epochs(
        make(data.Echo(), sampler=keys, batch_size=None, num_workers=w)
    )


@case()
def sampler_of_whole_batches(make, w):
    """batch_size=None with a sampler of lists: the dataset makes the batch."""
    sampler = torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(range(N)), 4, False)
    return epochs(make(data.Bulk(), batch_size=None, sampler=sampler, num_workers=w), 2)


@case(workers=(0,))
def calls_of_getitems(make, w):
    dataset = data.Batched()
    batches = epochs(make(dataset, batch_size=4, num_workers=w))
    return batches, dataset.calls


@case()
def growing_dataset(make, w):
    dataset = [torch.ones(2) * k for k in range(4)]
    loader = make(dataset, num_workers=w)
    first = epochs(loader)
    dataset.append(torch.full((2,), 9.0))
    return first, len(loader), epochs(loader)


@case(over=[None, 4])
def writing_into_batches(make, w, batch_size):
    """Who owns the memory of a batch: writes into one, and checks whether the dataset changes."""
    dataset = torch.zeros(N, 3)
    for batch in make(dataset, batch_size=batch_size, num_workers=w):
        batch += 1
        assert bool((batch == 1).all())
    return dataset


# ------------------------------------------------------------ iterable datasets


@case(over=[1, 3, 20, 64, None], workers=lambda size: (0, 1, 2) if size in (3, None) else (0,), thread=1)
def iterable(make, w, batch_size):
    loader = make(data.CountingWithoutLength(), batch_size=batch_size, num_workers=w)
    return outcome(lambda: len(loader)), epochs(loader, 2), generators()


@case(workers=(0, 1, 3), thread=1)
def iterable_drop_last(make, w):
    return epochs(make(data.CountingWithoutLength(11), batch_size=4, drop_last=True, num_workers=w), 2)


@case(workers=(0, 1, 3), thread=1)
def iterable_sharded(make, w):
    loader = make(data.Sharded(), batch_size=3, num_workers=w)
    return len(loader), epochs(loader, 2)


@case(over=[None, 3], workers=(3,), thread=False)
def iterable_uneven(make, w, batch_size):
    loader = make(data.Uneven(0, 4, 20), batch_size=batch_size, num_workers=w)
    return len(loader), epochs(loader, 2)


@case(workers=(3,), thread=False)
def iterable_narrowed_by_worker_init_fn(make, w):
    return epochs(make(data.SetByInit(3, 20), batch_size=4, num_workers=w, worker_init_fn=data.narrow), 2)


@case(workers=(0, 2), thread=False)
def iterable_that_is_its_own_iterator(make, w):
    return epochs(make(data.Itself(), batch_size=4, num_workers=w), 2)


@case(workers=(0, 1), thread=1)
def iterable_endless(make, w):
    return list(itertools.islice(make(data.Endless(), batch_size=4, num_workers=w), 7))


@case(workers=(1, 2), thread=1)
def iterable_persistent_workers(make, w):
    loader = make(data.Sharded(), batch_size=3, num_workers=w, persistent_workers=True)
    return epochs(loader, 3)


@case(over=[(10, 1), (10, 3), (10, None), (0, 2), (None, 2)], workers=(0, 2), thread=False)
def iterable_length(make, w, entry):
    length, batch_size = entry
    loaders = [make(data.Counting(10, length), batch_size=batch_size, num_workers=w)]
    if batch_size is not None:
        loaders.append(make(data.Counting(10, length), batch_size=batch_size, drop_last=True, num_workers=w))
    return [outcome(lambda: len(loader)) for loader in loaders]


@case(over={"asked": True, "not asked": False}, workers=(0, 2), thread=False)
def iterable_length_warning(make, w, asked):
    """A dataset that understates its length: a warning for each batch too many, after len() was
    called."""
    loader = make(data.Counting(10, 4), num_workers=w)
    if asked:
        len(loader)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = list(loader)
    # The address differs, and torch's versions differ in a blank.
    return [
        re.sub("0x[0-9a-f]+| (?=[(])", "", str(w.message))
        for w in caught
        if "samples have been fetched" in str(w.message)
    ], batches


@case(
    over=["ValueError", "KeyError", "ManyArguments"],  # StopIteration ends an epoch of torch in silence
    workers=lambda name: (0, 1, 2) if name == "ValueError" else (0, 1),
    thread=1,
)
def iterable_fails(make, w, name):
    texts = ("boom", "fail_here")[: 2 if w else 1]
    return [
        one_by_one(make_iter(make, data.FailsIterating(name, after), num_workers=w, batch_size=2), texts=texts)
        for after in (0, 3)
    ]


@case(over=["ValueError", "KeyError"], workers=(0, 1), thread=1)
def iterable_fails_at_once(make, w, name):
    """__iter__ itself raises. What follows is not compared."""
    return outcome(lambda: next(iter(make(data.FailsIterating(name, None), num_workers=w))), "boom")


def make_iter(make: Make, *arguments: Any, **options: Any) -> Any:
    return iter(make(*arguments, **options))


# ------------------------------------------------------------ errors


# torch's workers wait for ever with an exception that cannot be pickled.
@case(
    over=data.ERRORS,
    workers=lambda name: (0,) if name == "Local" else (0, 2),
    thread=["ValueError", "KeyError", "ManyArguments", "WithMessage", "from"],
)
def errors(make, w, name):
    """Errors in a dataset. With workers the message must have the worker's traceback: its text, and
    where it was raised."""
    texts = ("boom", "Traceback (most recent call last)", "fail_here") if w else ()
    if name == "Empty" and w:
        texts = ("took no argument", *texts[1:])
    if name in ("UnicodeDecodeError", "FileNotFoundError") and w:
        texts = texts[1:]
    iterator = iter(make(data.Fails(name, 5), batch_size=2, num_workers=w))
    return one_by_one(iterator, most=3, texts=texts)  # batches 0 and 1, then the error


@case(over=["ValueError", "ManyArguments"])
def errors_and_what_comes_after_them(make, w, name):
    """An epoch goes on after a failed batch. Each failed batch raises once."""
    return one_by_one(iter(make(data.Fails(name, 2, 3, 6), batch_size=2, num_workers=w)))


@case()
def errors_then_another_epoch(make, w):
    loader = make(data.Fails("ValueError", 5), batch_size=2, num_workers=w, **some(w, persistent_workers=True))
    return epochs(loader, 3)


@case()
def errors_with_batch_size_none(make, w):
    return one_by_one(iter(make(data.Fails("KeyError", 1, 3), batch_size=None, num_workers=w, sampler=range(5))))


@case(
    over={"collate_fn": {"collate_fn": data.failing_collate}, "worker_init_fn": {"worker_init_fn": data.failing_init}}
)
def errors_in(make, w, function):
    return outcome(lambda: next(iter(make(data.Plain(), num_workers=w, **function))), "boom", *some_texts(w))


def some_texts(w: int) -> tuple[str, ...]:
    return ("Traceback (most recent call last)", "fail_here") if w else ()


@case(workers=(2,))
def errors_in_worker_init_fn_of_one(make, w):
    samples = data.Sleeps(0.05, 400)  # the other worker has not finished all samples before this one begins
    return outcome(
        lambda: list(make(samples, num_workers=w, worker_init_fn=data.failing_init_of_one)), "boom", *some_texts(w)
    )


@case(over=[0, 3, 9])
def errors_in_the_sampler(make, w, after):
    """The parent raises them. When depends on how far ahead a loader reads, so the case compares
    only the whole epoch."""
    return outcome(lambda: list(make(data.Plain(), sampler=data.FailingSampler(after), num_workers=w)), "boom")


@case(workers=(2,))
def timeout(make, w):
    return outcome(lambda: list(make(data.Sleeps(3, 2), num_workers=w, timeout=1)), "timed out after 1 seconds")


# ------------------------------------------------------------ arguments and attributes

ARGUMENTS: dict[str, Callable[[], dict[str, Any]]] = {
    "num_workers -1": lambda: dict(num_workers=-1),
    "num_workers str": lambda: dict(num_workers="2"),
    "timeout -1": lambda: dict(timeout=-1),
    "prefetch_factor without workers": lambda: dict(prefetch_factor=2),
    "prefetch_factor -1": lambda: dict(prefetch_factor=-1, num_workers=1),
    "persistent_workers without workers": lambda: dict(persistent_workers=True),
    "batch_size 0": lambda: dict(batch_size=0),
    "batch_size None drop_last": lambda: dict(batch_size=None, drop_last=True),
    "drop_last str": lambda: dict(drop_last="no"),
    "sampler and shuffle": lambda: dict(sampler=[1], shuffle=True),
    "batch_sampler and batch_size": lambda: dict(batch_sampler=[[1]], batch_size=2),
    "batch_sampler and shuffle": lambda: dict(batch_sampler=[[1]], shuffle=True),
    "batch_sampler and sampler": lambda: dict(batch_sampler=[[1]], sampler=[1]),
    "batch_sampler and drop_last": lambda: dict(batch_sampler=[[1]], drop_last=True),
    "context without workers": lambda: dict(multiprocessing_context="fork"),
    "context unknown": lambda: dict(multiprocessing_context="bad", num_workers=1),
    "context object": lambda: dict(multiprocessing_context=object(), num_workers=1),
    "generator number": lambda: dict(generator=3),
    "unknown argument": lambda: dict(unheard_of=3),
    "keyword only": lambda: dict(arguments=(1, False, None, None, 0, None, False, False, 0, None, None, None, 2)),
}


@case(over=ARGUMENTS, workers=(0,))
def arguments(make, w, entry):
    """Each combination raises the same type of error, or gives the same results; at once or at the
    first batch."""
    options = entry()
    positional = options.pop("arguments", ())
    return outcome(lambda: list(make(data.Plain(), *positional, **options)))


ITERABLE_ARGUMENTS = {
    "shuffle": dict(shuffle=True),
    "shuffle 3": dict(shuffle=3),
    "sampler": dict(sampler=[1]),
    "sampler and shuffle False": dict(sampler=[1], shuffle=False),
    "batch_sampler": dict(batch_sampler=[[1]]),
    "shuffle False": dict(shuffle=False),
    "drop_last and None": dict(batch_size=None, drop_last=True),
}


@case(over=ITERABLE_ARGUMENTS, workers=(0,))
def arguments_of_iterable(make, w, options):
    return outcome(lambda: list(make(data.Counting(), **options)), "DataLoader with IterableDataset")


@case(workers=(0,))
def signature(make, w):
    """Torch's parameters come first in ours, with the same order and defaults."""
    torchs = [
        (p.name, p.kind, p.default) for p in inspect.signature(torch.utils.data.DataLoader.__init__).parameters.values()
    ]
    ours = {p.name: (p.name, p.kind, p.default) for p in inspect.signature(kind_of(make).__init__).parameters.values()}
    positional = [p for p in torchs if p[1] is not inspect.Parameter.KEYWORD_ONLY]
    return [ours.get(p[0]) for p in torchs], list(ours.values())[: len(positional)]


def kind_of(make: Make) -> Any:
    return type(make(data.Plain()))


ATTRIBUTES = [
    "batch_size", "drop_last", "num_workers", "timeout", "pin_memory", "pin_memory_device", "prefetch_factor", "persistent_workers", "in_order",
    "worker_init_fn",
    "generator", "collate_fn", "_auto_collation", "_dataset_kind", "_iterator",
]  # fmt: skip


def attributes(loader: Any, dataset: Any) -> Any:
    return (
        {name: outcome(lambda: getattr(loader, name)) for name in ATTRIBUTES},
        loader.dataset is dataset,
        type(loader.sampler).__name__,
        type(loader.batch_sampler).__name__,
        type(loader._index_sampler).__name__,
        type(loader.multiprocessing_context).__name__,
        isinstance(loader, torch.utils.data.DataLoader),
        loader.batch_sampler is None or getattr(loader.batch_sampler, "sampler", loader.sampler) is loader.sampler,
    )


@case(
    over=[
        "defaults",
        "batch_size 3",
        "batch_size None",
        "shuffle",
        "sampler own",
        "batch_sampler own",
        "collate lambda",
        "timeout",
        "prefetch_factor 7",
        "drop_last",
    ],
    thread=False,
)
def attributes_of(make, w, name):
    dataset = data.Plain()
    return attributes(make(dataset, num_workers=w, **SETTINGS[name](w)), dataset)


@case(over=["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"], workers=(0,))
def setting_attributes_that_may_not(make, w, name):
    loader = make(data.Plain())
    return outcome(lambda: setattr(loader, name, {}), name), epochs(loader)


@case(workers=(0, 2))
def setting_attributes_that_may(make, w):
    loader = make(data.Plain(), batch_size=4, num_workers=w, shuffle=True)
    loader.collate_fn = data.as_list
    loader.generator = seeded(5)
    loader.worker_init_fn = data.no_init
    loader.timeout = 30 if w else 0
    loader.unheard_of = 7
    first = epochs(loader)
    loader.num_workers = 0
    loader.timeout = 0
    return first, loader.unheard_of, epochs(loader)


@case(workers=(2,))
def setting_multiprocessing_context(make, w):
    loader = make(data.Plain(), num_workers=w)
    loader.multiprocessing_context = "fork"
    return (
        epochs(loader),
        type(loader.multiprocessing_context).__name__,
        outcome(lambda: setattr(loader, "multiprocessing_context", "bad")),
    )


@case(workers=(0,))
def class_of(make, w):
    kind = kind_of(make)

    class Derived(kind):  # type: ignore[misc, valid-type]
        def __init__(self, dataset: Any) -> None:
            self.early = 3  # before torch's __init__, as in many projects
            super().__init__(dataset, batch_size=3)

        def __iter__(self) -> Any:
            for batch in super().__iter__():
                yield batch, self.early

    return (
        epochs(Derived(data.Plain())),
        issubclass(kind, torch.utils.data.DataLoader),
        kind.__name__,
        hasattr(kind[int], "__origin__"),
    )


@case()
def pickled(make, w):
    loader = make(data.Plain(), batch_size=3, shuffle=True, num_workers=w, collate_fn=data.shapes)
    again = pickle.loads(pickle.dumps(loader))
    torch.manual_seed(3)
    first = epochs(loader)
    torch.manual_seed(3)
    second = epochs(again)
    assert difference(first, second) is None
    torch.manual_seed(3)
    return first, epochs(copy.copy(loader)), epochs(copy.deepcopy(loader)), outcome(lambda: pickle.dumps(iter(loader)))


@case(workers=(0, 2))
def warning_of_pin_memory(make, w):
    if not hasattr(torch, "accelerator"):
        pytest.skip(
            f"torch {torch.__version__} says nothing of pin_memory=True without a device; torch 2.6 and later do, and we do with any"
        )
    with warned(UserWarning, "pin_memory") as found:
        batches = list(make(data.Plain(), num_workers=w, pin_memory=True, batch_size=4))
    return found, batches


# ------------------------------------------------------------ iterators


@case()
def next_after_the_end(make, w):
    iterator = iter(make(data.Plain(4), num_workers=w))
    return list(iterator), one_by_one(iterator), one_by_one(iterator)


@case()
def iterator_itself(make, w):
    iterator = iter(make(data.Plain(), batch_size=3, num_workers=w))
    return iter(iterator) is iterator, len(iterator), next(iterator), len(list(iterator))


@case()
def two_iterators_at_once(make, w):
    loader = make(data.Plain(), batch_size=3, shuffle=True, num_workers=w)
    return list(zip(loader, loader))


@case()
def nested_iteration(make, w):
    loader = make(data.Plain(4), batch_size=2, num_workers=w)
    return [(a, b) for a in loader for b in loader]


@case(workers=(2,))
def two_iterators_of_persistent_workers(make, w):
    """The second iterator takes the workers over, and starts again."""
    loader = make(data.Plain(), batch_size=3, num_workers=w, persistent_workers=True)
    first = iter(loader)
    got = [next(first), next(first)]
    second = iter(loader)
    return got, list(second), list(loader)


@case(over={"kept": True, "new": False}, workers=(2,))
def break_and_again(make, w, persistent):
    loader = make(
        data.Plain(40), batch_size=3, num_workers=w, shuffle=True, generator=seeded(3), persistent_workers=persistent
    )
    got = []
    for _ in range(3):
        for k, batch in enumerate(loader):
            got.append(batch)
            if k == 2:
                break
    return got, epochs(loader)


@case()
def set_epoch(make, w):
    """set_epoch of DistributedSampler: gives another order for each epoch, the same on all
    ranks."""
    got = []
    for rank in range(2):
        sampler = torch.utils.data.DistributedSampler(data.Plain(11), num_replicas=2, rank=rank, shuffle=True, seed=3)
        loader = make(data.Plain(11), batch_size=3, sampler=sampler, num_workers=w, **some(w, persistent_workers=True))
        for epoch in range(3):
            sampler.set_epoch(epoch)
            got.append((len(loader), list(loader)))
    return got


@case(workers=(2,))
def not_in_order(make, w):
    """Batches may come in any order, but each comes once and complete."""
    batches = list(make(data.Plain(), batch_size=3, num_workers=w, in_order=False, persistent_workers=True))
    return sorted((labels.tolist(), images.tolist()) for images, labels in batches)


# ------------------------------------------------------------ workers


@case(workers=(0, 3), thread=False)
def worker_info(make, w):
    """get_worker_info: ids, number of workers, seeds (base seed plus id), a copy of the dataset,
    and None in the parent."""
    batches = list(
        make(
            data.Info(),
            batch_size=None,
            num_workers=w,
            generator=seeded(11),
            worker_init_fn=data.no_init if w else None,
        )
    )
    infos = [info for _, info in batches if info is not None]
    return (
        [i for i, _ in batches],
        len(infos),
        all(0 <= info[0] < info[1] for info in infos),
        {info[1] for info in infos},
        {info[2] - info[0] for info in infos},
        {info[3] for info in infos},
        {info[4] for info in infos},  # number of torch's threads
        torch.utils.data.get_worker_info(),
    )


@case(workers=(2,), thread=False)
def worker_init_fn_runs_once(make, w):
    got = []
    for persistent in (False, True):
        loader = make(
            data.Inits(20),
            batch_size=None,
            num_workers=w,
            worker_init_fn=data.count_init,
            persistent_workers=persistent,
        )
        got.append([set(loader), set(loader)])
    return got


@case(over={"default": {}, "list": {"collate_fn": data.as_list}}, workers=(2,), thread=False)
def worker_init_fn_seeds(make, w, options):
    """Generators that worker_init_fn seeds stay seeded: each worker draws from them for the batches
    that it makes."""
    loader = make(data.InitialSeed(), batch_size=2, num_workers=w, worker_init_fn=data.seed_all, **options)
    random_loader = make(data.Random(), batch_size=2, num_workers=w, worker_init_fn=data.seed_each, **options)
    return list(loader), list(random_loader), generators()


@case(workers=(2, 3), thread=False)
def worker_init_fn_and_the_batches_of_a_worker(make, w):
    """A worker with its own worker_init_fn makes whole batches in turn."""
    return [ids for ids, _ in make(data.Marked(), batch_size=2, num_workers=w, worker_init_fn=data.mark_with_number)]


@case(workers=(2, 3), thread=False)
def not_in_order_where_one_waits(make, w):
    """Which worker gets batches while the first worker waits in its first batch: its second batch
    waits too."""
    dataset = data.Gated(N)
    batches, got = iter(make(dataset, num_workers=w, in_order=False)), []
    if not TORCH_HAS_IN_ORDER:
        dataset.gate.set()
        return sorted(int(batch) for batch in batches)
    while len(got) < N - 2:
        got.append(int(next(batches)))
    dataset.gate.set()
    return got if w == 2 else sorted(got), [int(batch) for batch in batches]


@case(workers=(0, 2), thread=False)
def seeds_of_workers(make, w):
    """torch.initial_seed, and the first numbers of Python, torch and NumPy in each worker. They
    follow from the base seed, which the generator gives, and the worker's id."""
    loader = make(data.Seeds(), batch_size=None, num_workers=w, generator=seeded(11))
    torch.manual_seed(1)
    return list(loader), list(loader), generators()


@case(workers=(2,), thread=False)
def seeds_of_persistent_workers(make, w):
    loader = make(data.Seeds(), batch_size=None, num_workers=w, persistent_workers=True, generator=seeded(11))
    return [[entry[:3] for entry in loader] for _ in range(2)]


@case(workers=(0,))
def random_numbers_without_workers(make, w):
    """They come from the parent's generators, in the order of the samples, as in a plain loop."""
    loader = make(data.Random(), batch_size=4)
    return list(loader), generators(), list(loader), generators()


@case(over={"kept": True, "renewed": False}, workers=(2,), thread=False)
def changing_the_dataset_between_epochs(make, w, persistent):
    dataset = data.Mutable(6)
    loader = make(dataset, num_workers=w, persistent_workers=persistent, batch_size=6)
    got = []
    for k in range(3):
        dataset.value = k
        got.append(list(loader))
    return got


@case(workers=(0,))
def changing_the_dataset_between_batches(make, w):
    """Without workers the next batch shows a change: no batch is loaded ahead."""
    dataset = data.Mutable(6)
    got = []
    for k, batch in enumerate(make(dataset, batch_size=2)):
        got.append(batch)
        dataset.value = k + 1
    return got


@case(over=["fork", "forkserver", "spawn"], workers=(1,), thread=False)
def contexts(make, w, method):
    """torch's workers give the same with each method. One that is spawned imports torch, which takes seconds."""
    loader = make(
        data.Info(),
        batch_size=4,
        num_workers=w,
        multiprocessing_context="fork" if make is _torch else method,
        generator=seeded(11),
        collate_fn=data.as_list,
    )
    batches = list(loader)
    infos = [info for batch in batches for _, info in batch]
    return (
        [[i for i, _ in batch] for batch in batches],
        {info[1] for info in infos},
        {info[2] - info[0] for info in infos},
    )


@case(
    over={"collate_fn": dict(collate_fn=lambda x: x), "worker_init_fn": dict(worker_init_fn=lambda k: None)},
    workers=(1,),
    thread=False,
)
def contexts_that_cannot_pickle(make, w, options):
    return outcome(lambda: list(make(data.Plain(), num_workers=w, multiprocessing_context="spawn", **options)))


# ------------------------------------------------------------ the comparison


AGAINST_ITSELF = os.environ.get("STOCACHED_TEST_PARITY") == "torch"


def _torch(*arguments: Any, **options: Any) -> Any:
    if TORCH_HAS_IN_ORDER:
        return torch.utils.data.DataLoader(*arguments, **options)
    # torch before 2.6 is always in order, which in_order=False allows too
    in_order = options.pop("in_order", True)
    loader = torch.utils.data.DataLoader(*arguments, **options)
    loader.in_order = in_order
    return loader


def _ours(worker: str, *arguments: Any, **options: Any) -> Any:
    if AGAINST_ITSELF:
        return torch.utils.data.DataLoader(*arguments, **options)
    if worker == "thread" and options.get("num_workers"):
        options["worker"] = "thread"
    return DataLoader(*arguments, **options)


def _run(one: Case, make: Make, workers: int) -> Any:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return one.run(make, workers)


@functools.lru_cache(maxsize=1)  # the case with threads comes right after the one with processes
def _of_torch(index: int, workers: int) -> Any:
    return _run(CASES[index], _torch, workers)


def _entries() -> Iterator[Any]:
    for index, one in enumerate(CASES):
        for workers in one.workers:
            yield pytest.param(index, workers, "process", id=f"{one.name}-{workers}")
            if workers and (one.thread is True or workers <= one.thread):
                yield pytest.param(index, workers, "thread", id=f"{one.name}-{workers}-threads")


@pytest.mark.parametrize(("index", "workers", "worker"), list(_entries()))
def test_same(index: int, workers: int, worker: str) -> None:
    before = set(multiprocessing.active_children())
    reference = workers if CASES[index].reference is None else min(workers, CASES[index].reference)
    expected = _of_torch(index, reference)
    got = _run(CASES[index], functools.partial(_ours, worker), reference if AGAINST_ITSELF else workers)
    found = difference(expected, got)
    assert found is None, found
    deadline = time.monotonic() + 60
    while left := [child for child in multiprocessing.active_children() if child not in before and child.is_alive()]:
        gc.collect()  # not after every case, because it takes longer than most of them
        assert time.monotonic() < deadline, f"worker processes are left: {left}"
        time.sleep(0.01)


# ------------------------------------------------------------ different on purpose


def _loader(*arguments: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return DataLoader(*arguments, **options)


@pytest.mark.parametrize("how", ["kill", "exit", "sys.exit"])
def test_workers_that_die(how: str) -> None:
    """RuntimeError as in torch, in a class of our own, at whatever moment. torch's result depends
    on what the worker was doing."""
    from stocached import WorkerLostError

    assert issubclass(WorkerLostError, RuntimeError)
    before = set(multiprocessing.active_children())
    got = outcome(lambda: list(_loader(data.Dies(how), num_workers=2)), "DataLoader worker", "worker")
    assert got == Raised("WorkerLostError", (True, True))
    until(lambda: set(multiprocessing.active_children()) <= before, "its workers have ended")


@pytest.mark.parametrize("worker", ["process", "thread"])
def test_exceptions_that_cannot_be_pickled(worker: str) -> None:
    """torch waits for ever."""
    with pytest.raises(RuntimeError, match=r"(?s)fail_here.*Local: boom"):
        list(_loader(data.Fails("Local", 5), num_workers=2, worker=worker))


def test_batches_that_cannot_be_pickled() -> None:
    """torch waits for ever."""
    with pytest.raises(TypeError, match="pickle 'mappingproxy' object"):
        list(_loader(data.Kind("mapping proxy"), batch_size=None, num_workers=2))


@pytest.mark.parametrize(
    "options",
    [{"timeout": 1}, {"prefetch_factor": 0, "num_workers": 1}],
    ids=["timeout without workers", "prefetch_factor 0"],
)
def test_settings_that_torch_asserts_against(options: dict[str, Any]) -> None:
    """torch accepts them, and fails with an AssertionError at the first iteration."""
    assert sum(len(images) for images, _ in _loader(data.Plain(), batch_size=3, **options)) == N


def test_negative_strides_with_workers() -> None:
    """torch refuses arrays with negative strides. Ours refuses them only without workers, because
    workers copy them."""
    batches = list(_loader(data.Kind("array negative stride"), batch_size=4, num_workers=2))
    assert torch.equal(torch.cat(batches), torch.tensor([[3, 2, 1, 0]] * N))


TEXTS = {
    "tuple": lambda index: (index, f"a{index}"),
    "list": lambda index: [f"a{index}", np.arange(2)],
    "dict": lambda index: {"x": index, "y": f"a{index}", "z": (b"b", {"w": "c"})},
    "text": lambda index: f"a{index}",
}


@pytest.mark.parametrize("kind", TEXTS)
def test_texts_come_in_the_same_containers_in_each_batch(kind: str) -> None:
    """Later batches are made by columns, as the loader knows the form of samples then."""
    batches = [list(make(Of(TEXTS[kind], 64), 4, num_workers=1)) for make in (torch.utils.data.DataLoader, DataLoader)]
    for theirs, ours in zip(*batches):
        assert difference(theirs, ours) is None


def test_samples_of_a_batch_go_to_any_worker() -> None:
    """In torch one worker makes a batch."""
    samples = data.TwoAtOnce(24)
    ids = [batch.tolist() for batch in _loader(samples, batch_size=12, num_workers=2)]
    assert all(set(batch) == {0, 1} for batch in ids)
    of_torch = torch.utils.data.DataLoader(data.WhoLoads(24), batch_size=12, num_workers=2)
    assert [set(batch.tolist()) for batch in of_torch] == [{0}, {1}]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_random_numbers_do_not_depend_on_the_number_of_workers(workers: int) -> None:
    """In torch each worker has its own generators."""

    def numbers(w: int) -> Any:
        loader = _loader(
            data.Random(), batch_size=4, num_workers=w, shuffle=True, generator=seeded(5), persistent_workers=True
        )
        return [list(loader) for _ in range(2)]

    expected, got = numbers(3), numbers(workers)
    assert difference(expected, got) is None
    assert difference(expected[0], expected[1]) is not None


def test_threads_are_no_processes_to_get_worker_info() -> None:
    """torch's get_worker_info knows one worker for each process, so in threads it returns None. An
    iterable dataset then cannot choose its part, and the loader refuses it."""
    from stocached import InvalidError

    assert [
        int(i)
        for i, info in _loader(data.Info(), batch_size=None, num_workers=2, worker="thread", collate_fn=data.as_list)
        if info is None
    ] == list(range(N))
    with pytest.raises(InvalidError, match="get_worker_info"):
        _loader(data.Sharded(), num_workers=2, worker="thread")
