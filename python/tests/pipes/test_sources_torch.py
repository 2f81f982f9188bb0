"""Datasets of torch, and served caches, as sources of pipes."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from helpers import pattern
from torch_helpers import TORCH_WARNINGS, torch

import stocached
from stocached import InvalidError, Loader, source

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS]


def test_a_served_cache_is_a_source(server: Any):
    server.records(40, 100)
    pipe = source(f"stocached:{server.name}")
    assert (len(pipe), repr(pipe)) == (40, f"source('stocached:{server.name}', 40 elements)")
    assert (pipe[7].numpy() == pattern(7, 100)).all()
    loader = Loader(pipe.shuffle(seed=1).batch(8), num_workers=2)
    rows = np.concatenate([np.asarray(batch) for batch in loader])
    order = stocached.Order(40, "shuffled", seed=1).epoch(0)
    assert (rows == [pattern(order.at(p), 100) for p in range(40)]).all()
    loader.close()


# ------------------------------------------------------------ datasets of other libraries


def plain(value: Any) -> Any:
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else np.asarray(value).tolist()


def test_datasets_of_torch():
    data = torch.utils.data
    tensors = data.TensorDataset(torch.arange(12).reshape(6, 2), torch.arange(6))
    for dataset in (tensors, data.ConcatDataset([tensors, tensors]), data.Subset(tensors, [5, 1, 3])):
        wanted = [dataset[k] for k in range(len(dataset))]
        assert plain(list(source(dataset))) == plain(wanted)
        first, second = zip(*Loader(source(dataset).batch(2), num_workers=2))
        assert plain(np.concatenate(first)) == plain([sample[0] for sample in wanted])
        assert plain(np.concatenate(second)) == plain([sample[1] for sample in wanted])


def test_datasets_of_hugging_face(tmp_path: Any):
    """Their memory-mapped tables, whole and filtered, in workers and behind a named cache that knows them again."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    rows = {"text": [f"line {k} " * (k % 5) for k in range(40)], "label": list(range(40))}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path)
    dataset = datasets.load_from_disk(tmp_path)
    wanted = [dataset[k] for k in range(40)]
    assert list(source(dataset)) == wanted
    with pytest.raises(InvalidError, match=r"give one of its datasets, such as d\['train'\]"):
        source(datasets.DatasetDict(train=dataset))
    name = f"stocached-test-hf-{os.getpid()}"
    try:
        for hits in (40, 80):  # another program would attach to the cache alike
            pipe = (
                source(datasets.load_from_disk(tmp_path)).map(length).cache("8MiB", name=name).shuffle(seed=3).batch(8)
            )
            loader = Loader(pipe, num_workers=2)
            for epoch in range(2):
                order = stocached.Order(40, "shuffled", seed=3).epoch(epoch)
                made = [pair for batch in loader for pair in zip(*map(plain, batch))]
                assert made == [(len(wanted[e]["text"]), e) for e in map(order.at, range(40))]
            assert (loader.stats().hits, loader.stats().misses) == (hits, 80 - hits)
            loader.close()
    finally:
        stocached.Cache.attach(name).unlink()
    words = source(dataset.filter(odd)).flat_map(words_of).shuffle(window=4).batch(16)
    loader = Loader(words, num_workers=2)
    wanted_words = [word for row in wanted if odd(row) for word in row["text"].split()]
    assert sorted(word for batch in loader for word in batch) == sorted(wanted_words)
    loader.close()


def length(row: Any) -> Any:
    return len(row["text"]), row["label"]


def odd(row: Any) -> bool:
    return row["label"] % 2 == 1


def words_of(row: Any) -> list[str]:
    return row["text"].split()


def test_what_has_no_index_is_refused_with_what_takes_it():
    class Numbers(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            return iter(range(3))

        def __len__(self) -> int:
            return 3

    from torch.utils.data.datapipes.iter import IterableWrapper

    for dataset in (Numbers(), IterableWrapper([1, 2])):
        with pytest.raises(InvalidError, match="goes to stocached.torch.DataLoader, without a pipe"):
            source(dataset)
