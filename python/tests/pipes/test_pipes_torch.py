"""Pipes in stocached.torch.DataLoader, in torch's own loader, and in the Trainer of transformers."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from typing import Any

import numpy as np
import pytest
from chains import CHAINS
from test_lists import kinds_of, of_kinds
from test_pipes import expected, items_of
from torch_helpers import TORCH_WARNINGS, DataLoader, torch

from stocached import source

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS]

SOME = ["random twice", "cache, random below", "zip, two shuffles", "join, cached sides", "mix, length", "weights"]
SOME += ["flat_map, generator", "window, flat_map below", "cache of lists", "mix, windows", "zip of lists, random"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", SOME)
def test_batches_are_tensors_of_the_same_numbers(name: str, workers: int):
    chain = CHAINS[name]()
    loader = DataLoader(chain.pipe.batch(4), seed=11, num_workers=workers)
    for epoch in range(2):
        batches = list(loader)
        first = batches[0][0] if isinstance(batches[0], (tuple, list)) else batches[0]
        assert isinstance(first, torch.Tensor)
        numbers = [items_of(batch if isinstance(batch, (tuple, list)) else batch.numpy()) for batch in batches]
        assert numbers == expected(chain, epoch)


def test_a_batch_takes_no_shared_memory_of_torch_in_a_worker(monkeypatch: pytest.MonkeyPatch):
    from stocached._loader.torch_backend import collate_of_pipe

    items = [{"a": torch.full((3,), float(k)), "b": (np.arange(4) + k, k)} for k in range(5)]
    monkeypatch.setattr(torch.utils.data._utils.worker, "_worker_info", object())
    made, theirs = collate_of_pipe(items), torch.utils.data.default_collate(items)
    assert theirs["a"].is_shared()
    assert not made["a"].is_shared()
    assert not made["b"][0].is_shared()
    assert kinds_of(made) == kinds_of(theirs)
    for one, other in ((made["a"], theirs["a"]), *zip(made["b"], theirs["b"])):
        assert torch.equal(one, other)
    with pytest.raises(RuntimeError, match="equal size"):
        collate_of_pipe([torch.zeros(2), torch.zeros(3)])


def test_torchs_own_loader_reads_epoch_0():
    pipe = source(list(range(10))).shuffle(seed=3)
    batches = list(torch.utils.data.DataLoader(pipe, batch_size=4, num_workers=1))
    assert [index for batch in batches for index in batch.tolist()] == list(pipe)


def test_padded_batches_are_tensors():
    pipe = source([{"tokens": torch.arange(k + 1), "label": k} for k in range(3)])
    (batch,) = DataLoader(pipe.batch(3, pad={"tokens": -1}))
    assert batch["tokens"].tolist() == [[0, -1, -1], [0, 1, -1], [0, 1, 2]]
    assert batch["label"].tolist() == [0, 1, 2]


def lifted(sample: Any) -> Any:
    return {**sample, "x": sample["x"] + 1000}


@pytest.mark.parametrize("indexed", [True, False])
def test_the_trainer_of_transformers_trains_on_a_pipe(tmp_path: Any, transformers: Any, indexed: bool):
    seen: list[float] = []

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def forward(self, x: Any) -> Any:
            seen.extend(x[:, 0].tolist())
            return {"loss": self.layer(x - 1000).mean()}

    items = source([{"x": torch.full((3,), float(k))} for k in range(23)])
    lists = items.flat_map(lambda item: [item]).shuffle(seed=7, window=5)
    pipe = (items.cache("8MiB").shuffle(seed=7) if indexed else lists).map(lifted).batch(4)

    class Ours(transformers.Trainer):
        def get_train_dataloader(self):
            return self.accelerator.prepare(DataLoader(pipe, num_workers=2))

    arguments = transformers.TrainingArguments(
        tmp_path, num_train_epochs=2, use_cpu=True, report_to="none", disable_tqdm=True, logging_strategy="no",
        save_strategy="no", max_steps=12, dataloader_pin_memory=False, remove_unused_columns=False, label_names=[],
    )  # fmt: skip
    trainer = Ours(Model(), arguments, train_dataset=pipe)
    trainer.train()
    assert sorted(seen) == sorted(2 * [1000.0 + k for k in range(23)])
    assert seen[:23] != seen[23:]
    if indexed:
        assert trainer.callback_handler.train_dataloader.base_dataloader.stats().hits >= 23


@pytest.mark.parametrize("size", [1, 7])
def test_batches_of_lists_are_those_of_one_process(size: int):
    for function in (of_kinds, of_tensors, of_row):
        pipe = source(list(range(40))).flat_map(function).batch(size)
        alone, several = (list(DataLoader(pipe, num_workers=workers)) for workers in (0, 3))
        assert repr(several) == repr(alone)
        assert list(map(kinds_of, several)) == list(map(kinds_of, alone))


def of_row(x: int) -> Any:
    for k in range(x % 6):
        row = {code: np.dtype(code).type(k) for code in "?bhilBefd"}
        yield {**row, "l": k} if x % 5 == 2 else row


def of_tensors(x: int) -> Any:
    for k in range(x % 6):
        yield torch.full((2,), float(k)), k, {"deep": [torch.tensor(x), str(k)]}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pad", [None, 0])
@pytest.mark.parametrize("chain", ["map", "zip of two orders", "flat_map"])
def test_pictures_that_numpy_flips_are_batched(chain: str, pad: int | None, workers: int):
    base = source(list(range(8)))
    pipe = {
        "map": base.map(ramp).map(flipped),
        "zip of two orders": base.shuffle(seed=1).zip(base.map(ramp).map(flipped)).map(lambda both: both[1]),
        "flat_map": base.flat_map(lambda x: [ramp(x)]).map(flipped),
    }[chain]
    batches = list(DataLoader(pipe.batch(4, pad=pad), num_workers=workers))
    assert torch.cat(batches).tolist() == [[x + 2, x + 1, x] for x in range(8)]


def ramp(x: int) -> Any:
    return np.arange(x, x + 3)


def flipped(picture: Any) -> Any:
    return picture[::-1]


def test_samplers_of_torch_are_stages():
    data, iterable = (
        torch.utils.data.TensorDataset(torch.arange(6)),
        type("Numbers", (torch.utils.data.IterableDataset,), {"__iter__": lambda self: iter(range(6))}),
    )
    lines = {
        ".shuffle()": {"shuffle": True},
        ".shuffle(seed=3)": {"shuffle": True, "seed": 3},
        ".sampler(WeightedRandomSampler)": {"sampler": torch.utils.data.WeightedRandomSampler([1.0] * 6, 6)},
        ".sampler(DistributedSampler)": {"sampler": torch.utils.data.DistributedSampler(data, 1, 0)},
    }
    for line, arguments in lines.items():
        loader = DataLoader(data, batch_size=2, **arguments)
        assert len([*loader]) == 3
        told = [(stage.stage, stage.items) for stage in loader.stats().stages]
        assert told == [("source(TensorDataset, 6 elements)", 6), (line, 6), (".batch(2)", 3)]
    loader = DataLoader(iterable(), batch_size=4)
    assert len([*loader]) == 2
    assert [(stage.stage, stage.items) for stage in loader.stats().stages] == [("source(Numbers)", 6), (".batch(4)", 2)]


@pytest.mark.parametrize("pad", [None, 0])
def test_no_key_of_an_item_is_lost(pad: int | None):
    """torch's default_collate has the keys of the first item alone."""
    for items in (
        [{"a": 1}, {"a": 1, "b": 1}],
        [{"a": 1, "b": 1}, {"a": 1}],
        [{"x": {"a": 1}}, {"x": {"a": 1, "b": 1}}],
        [(1, {"a": 1}), (1, {"a": 1, "b": 1})],
        [[{"a": 1}], ({"a": 1, "b": 1},)],
        [{"a": 1}, OrderedDict(a=1, b=1)],
        [{"x": UserDict(a=1)}, {"x": UserDict(a=1, b=1)}],
    ):
        with pytest.raises(ValueError, match="sample 1 of a batch of 2 has (no )?'b', and its first one has"):
            next(iter(DataLoader(source(items).batch(2, pad=pad))))
    (batch,) = DataLoader(torch.utils.data.StackDataset([{"a": 1}, {"a": 1, "b": 1}]), batch_size=2)
    assert [*batch[0]] == ["a"]  # as torch
