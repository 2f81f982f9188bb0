"""stocached.lightning.DataModule in the real Trainer: prepared once, each sample once an epoch, and
the right next sample after any checkpoint."""

from __future__ import annotations

import json
import os
import random
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from helpers import python
from torch_helpers import Warm, torch

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

if torch is not None:
    from prepared import Made, parts

    from stocached import InvalidError, NondeterministicDatasetError, StateError, source
    from stocached.prepare import BlockStorage, IndexSet, NotPreparedError, Split, prepare, split


@pytest.fixture(autouse=True, scope="module")
def imported(in_lightning):
    """Imports the packages. Not at collection, because that takes seconds in each process that runs
    tests."""
    global Again, DataModule, Model, Numbered, pl, trainer
    import lightning.pytorch as pl
    from lightning_run import Model, Numbered, trainer

    from stocached.lightning import DataModule

    class Again(pl.callbacks.ModelCheckpoint):
        """A second callback of its kind, which Lightning identifies by its state_key."""

        @property
        def state_key(self) -> str:
            return f"{self.dirpath}"


@pytest.fixture
def storage(tmp_path: Path) -> Any:
    return BlockStorage(tmp_path / "data")


def module(storage: Any, n: int = 30, **more: Any) -> Any:
    settings = {"batch_size": 4, "validation": 6, "seed": 3, "block_size": 5, "window": 2}
    return DataModule(Numbered(n), storage, **{**settings, **more})


def fitted(folder: Path, epochs: int, data: Any, model: Any = None, at: Path | None = None, **more: Any) -> Any:
    """A model after a training. at: the checkpoint that it goes on from."""
    model = model or Model()
    trainer(folder, epochs, **more).fit(model, datamodule=data, ckpt_path=at)
    return model


def checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.ckpt"), key=lambda path: torch.load(path, weights_only=False)["global_step"])


ENVIRONMENT = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}


def run(warm: Warm, tmp_path: Path, out: str, *flags: str, ranks: int = 0, **settings: Any) -> Any:
    """What each rank got in a training with its own processes. Shows its messages if it fails.

    ranks: this many are started here, as Lightning's launcher starts them. 0: that launcher starts
    all but the first."""
    file = tmp_path / f"{out}.settings"
    file.write_text(json.dumps({"folder": str(tmp_path), "out": str(tmp_path / out), **settings}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        of_job = {"NODE_RANK": "0", "WORLD_SIZE": str(ranks), "MASTER_PORT": str(free.getsockname()[1])}
    environments = [{**ENVIRONMENT, **of_job, "LOCAL_RANK": str(rank)} for rank in range(ranks)] or [ENVIRONMENT]
    program = Path(__file__).parents[1] / "lightning_run.py"
    with ThreadPoolExecutor(len(environments)) as pool:
        for done in pool.map(lambda each: warm.run(program, tmp_path, each, 600, [file, *flags]), environments):
            assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(path.read_text()) for path in sorted(tmp_path.glob(f"{out}-*.json"))]


def in_epoch(ranks: list[Any], epoch: int, what: str = "trained") -> list[int]:
    return [index for rank in ranks for entry in rank[what] if entry[0] == epoch for index in entry[-1]]


# ------------------------------------------------------------ ranks

DDP = {"strategy": "ddp", "devices": 2}


def test_two_ranks(tmp_path, warm_lightning):
    """Two processes, two epochs. One prepares, and each sample comes once for both. Training
    resumes in the middle of either epoch, also with only one rank."""
    n, data = 60, {"batch_size": 4, "validation": 12, "seed": 5, "block_size": 6, "window": 2}
    ranks = run(warm_lightning, tmp_path, "whole", n=n, epochs=2, trainer=DDP, data=data)
    assert [rank["world_size"] for rank in ranks] == [2, 2]
    asked = parts(tmp_path / "calls")
    assert sorted(k for _, first, stop in asked for k in range(first, stop)) == list(range(n))  # each sample once

    sets = split(n, 12, seed=5)
    for epoch in range(2):
        assert Counter(in_epoch(ranks, epoch)) == Counter(sets.train)
        assert Counter(in_epoch(ranks, epoch, "validated")) == Counter(sets.validation)
    assert in_epoch(ranks, 0) != in_epoch(ranks, 1)

    files = checkpoints(tmp_path / "checkpoints")
    assert len(files) == 12  # an epoch has 6 batches
    again = run(warm_lightning, tmp_path, "again", ranks=2, n=n, epochs=2, trainer=DDP, data=data, resume=str(files[7]))
    assert [rank["trained"] for rank in again] == [rank["trained"][8:] for rank in ranks]
    assert parts(tmp_path / "calls") == asked  # not prepared again

    # One rank, in this process, continues what two have begun.
    module = DataModule(Numbered(n), BlockStorage(tmp_path / "data", block_bytes=4096), **data)
    one = fitted(tmp_path, 3, module, at=files[2], devices=1, reload_dataloaders_every_n_epochs=1)
    before = [index for rank in ranks for entry in rank["trained"][:3] for index in entry[-1]]
    alone = [{"trained": one.trained, "validated": one.validated}]
    assert Counter(before + in_epoch(alone, 0)) == Counter(sets.train)
    for epoch in (1, 2):
        assert Counter(in_epoch(alone, epoch)) == Counter(sets.train)
        assert Counter(in_epoch(alone, epoch, "validated")) == Counter(sets.validation)


def test_the_other_lightning(tmp_path, warm_ranks):
    """A program that uses `pytorch_lightning` gets a DataModule of that package."""
    (one,) = run(
        warm_ranks.more(["pytorch_lightning"]),
        tmp_path,
        "one",
        "--pytorch-lightning",
        n=20,
        epochs=1,
        trainer={"devices": 1},
        data={"validation": 0.1},
    )
    assert Counter(in_epoch([one], 0)) == Counter(split(20, 0.1).train)


# ------------------------------------------------------------ checkpoints


@pytest.mark.parametrize(("workers", "drop_last"), [(0, False), (2, False), (0, True)])
def test_every_checkpoint_goes_on(tmp_path, storage, workers, drop_last):
    """After each batch, each validation and each epoch. The last batch is short, or dropped."""
    saves = {
        "by_step": {"every_n_train_steps": 1},
        "by_epoch": {"every_n_epochs": 1},
        "at_end": {"every_n_epochs": 1, "save_on_train_epoch_end": True},
    }
    callbacks = [
        Again(tmp_path / name, save_top_k=-1, filename=name + "-{step}", **more) for name, more in saves.items()
    ]
    settings = {"n": 32, "validation": 6, "num_workers": workers, "drop_last": drop_last}
    model = fitted(tmp_path, 2, module(storage, **settings), callbacks=callbacks, val_check_interval=3)
    sets = split(32, 6, seed=3)
    for epoch in range(2):
        seen = Counter(index for number, _, batch in model.trained if number == epoch for index in batch)
        assert set(seen.values()) == {1}
        assert set(seen) <= set(sets.train)
        assert len(seen) == (24 if drop_last else 26)
    files = checkpoints(tmp_path)
    assert len(files) > 2 * 6 + 2 + 2
    for path in files[:: 1 if not workers and not drop_last else 7]:
        step = torch.load(path, weights_only=False)["global_step"]
        again = fitted(tmp_path, 2, module(storage, **settings), at=path, val_check_interval=3)
        assert again.trained == model.trained[step:], path.name


def test_a_step_that_failed_comes_again(tmp_path, storage):
    whole = fitted(tmp_path, 2, module(storage))
    for fails_at in (0, 1, 4, 6, 8):
        failed = Model(fails_at)
        folder = tmp_path / str(fails_at)
        callbacks = [pl.callbacks.OnExceptionCheckpoint(folder, "failed")]
        with pytest.raises(RuntimeError, match="as it was told"):
            fitted(folder, 2, module(storage), failed, callbacks=callbacks)
        again = fitted(folder, 2, module(storage), at=folder / "failed.ckpt")
        assert [batch for _, _, batch in failed.trained + again.trained] == [batch for _, _, batch in whole.trained]


def test_accumulated_gradients_and_limits(tmp_path, storage):
    more = {"accumulate_grad_batches": 2, "limit_train_batches": 5, "limit_val_batches": 1}
    callback = Again(tmp_path / "c", save_top_k=-1, every_n_train_steps=1, filename="{step}")
    whole = fitted(tmp_path, 2, module(storage), callbacks=[callback], **more)
    assert [number for _, number, _ in whole.trained] == [0, 1, 2, 3, 4] * 2
    for path in checkpoints(tmp_path / "c"):
        said = torch.load(path, weights_only=False)
        done = said["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["processed"]
        again = fitted(tmp_path, 2, module(storage), at=path, **more)
        assert again.trained == whole.trained[done:], path.name


def test_a_checkpoint_of_other_data_or_another_order_is_refused(tmp_path, storage):
    callback = Again(tmp_path / "c", save_top_k=-1, every_n_train_steps=2, filename="{step}")
    fitted(tmp_path, 1, module(storage), callbacks=[callback])
    path = checkpoints(tmp_path / "c")[0]
    for change, text in [
        ({"seed": 4}, "seed is 4 here and 3 there"),
        ({"validation": 5}, "samples is 25 here and 24 there"),
        ({"window": 3}, "window"),
        ({"batch_size": 2}, "reload_dataloaders_every_n_epochs=1"),
    ]:
        with pytest.raises(InvalidError, match=text):
            fitted(tmp_path, 1, module(storage, **change), at=path)
    again = fitted(tmp_path, 1, module(storage, batch_size=2), at=path, reload_dataloaders_every_n_epochs=1)
    assert sum(len(batch) for _, _, batch in again.trained) == 24 - 8


def test_one_module_for_several_fits(tmp_path, storage):
    data = module(storage)
    assert fitted(tmp_path, 2, data).trained == fitted(tmp_path, 2, data).trained


# ------------------------------------------------------------ data


def test_parts_and_transforms(tmp_path, storage):
    def marked(by):
        return lambda made: {**made, "x": made["x"] * 0 + by}

    class Marks(Model):
        def training_step(self, batch, number):
            assert (batch["x"] == 1).all()
            return super().training_step(batch, number)

        def test_step(self, batch, number):
            assert (batch["x"] == 2).all()
            assert len(batch["index"]) <= 5
            super().test_step(batch, number)

    data = module(
        storage, n=50, test=10, stratify="label", eval_batch_size=5, transform=marked(2), train_transform=marked(1)
    )
    model = Marks()
    run = trainer(tmp_path, 1)
    run.fit(model, datamodule=data)
    run.test(model, datamodule=data)
    sets = split(50, 6, 10, seed=3, labels=[k % 7 for k in range(50)])
    assert data.split == sets
    assert model.tested == list(sets.test)
    assert Counter(index for _, _, batch in model.trained for index in batch) == Counter(sets.train)


def test_a_split_that_is_given(tmp_path, storage):
    parts = Split(IndexSet([1, 2, 3], 30), IndexSet([4], 30), IndexSet([], 30))
    model = fitted(tmp_path, 1, module(storage, split=parts, shuffle=False))
    assert [batch for _, _, batch in model.trained] == [[1, 2, 3]]
    with pytest.raises(InvalidError, match="the split is of 31 samples, and the storage has 30"):
        module(storage, split=Split(IndexSet([1], 31), IndexSet([], 31), IndexSet([], 31))).setup()


def test_no_validation(tmp_path, storage):
    model = fitted(tmp_path, 1, module(storage, validation=0))
    assert len(model.trained) == 8
    assert model.validated == []


def test_overfitting_takes_the_same_batches(tmp_path, storage):
    model = fitted(tmp_path, 2, module(storage), overfit_batches=2)
    epochs = [[batch for number, _, batch in model.trained if number == epoch] for epoch in range(2)]
    assert epochs[0] == epochs[1]
    assert len(epochs[0]) == 2


def test_without_a_trainer(storage):
    """The loaders work without a Trainer."""
    data = module(storage)
    with pytest.raises(NotPreparedError, match=r"prepare_data\(\)"):
        data.setup()
    data.prepare_data()
    data.setup()
    loader = data.train_dataloader()
    epochs = [[index for batch in loader for index in batch["index"].tolist()] for _ in range(2)]
    assert len(loader) == 6
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(data.split.train)
    passing = iter(loader)
    third = [next(passing)["index"].tolist() for _ in range(2)]
    again = module(data.storage)
    again.load_state_dict(json.loads(json.dumps(data.state_dict())))
    rest = [batch["index"].tolist() for batch in again.train_dataloader()]
    assert rest == [batch["index"].tolist() for batch in passing]
    assert Counter(index for batch in third + rest for index in batch) == Counter(data.split.train)


def test_hostile_states(storage):
    data = module(storage)
    data.prepare_data()
    passing = iter(data.train_dataloader())
    next(passing)
    good = data.state_dict()
    wrong = {**good, "batches": good["position"] + 1}, {**good, "position": -1}
    for state in (None, 3, "state", [("epoch", 1)], *wrong):
        for made in (False, True):  # the loader, before the state comes
            other = module(data.storage)
            with pytest.raises(StateError, match="no state of a DataModule|batches=|position="):
                if made:
                    other.train_dataloader()
                other.load_state_dict(state)
                other.train_dataloader()
    other = module(data.storage)
    other.load_state_dict({})  # the state of one that has not trained
    loader = other.train_dataloader()
    first = [batch["index"].tolist() for batch in loader]
    assert len(first) == 6
    other.load_state_dict(good)
    assert len([*loader]) == 5
    other.load_state_dict({})
    assert [batch["index"].tolist() for batch in loader] == first


def test_invalid_arguments(storage):
    for change, text in [
        ({"ends": "uneven"}, "pad or drop"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"eval_batch_size": 1.5}, "eval_batch_size=1.5"),
        ({"loader": {"shuffle": True}}, "loader= has shuffle, which the DataModule sets itself"),
        ({"loader": {"augment": moved}}, "loader= has augment, give it in train_loader="),
        ({"train_loader": {"order": "shuffled"}}, "train_loader= has order"),
    ]:
        with pytest.raises(InvalidError, match=text):
            module(storage, **change)
    with pytest.raises(InvalidError, match="not of list and BlockStorage"):
        DataModule([], storage)


def test_options_of_the_loader(storage):
    prepare(Numbered(30), storage)
    data = DataModule(
        None, storage, batch_size=4, num_workers=1, loader={"persistent_workers": True, "prefetch_factor": 3}
    )
    data.prepare_data()  # there is nothing to do
    assert data.val_dataloader().loader.persistent_workers
    assert data.val_dataloader().loader.prefetch_factor == 3
    assert isinstance(Numbered(3), Made)


def test_what_a_pipe_has_written(tmp_path, storage):
    source(range(30)).map(pair).write(tmp_path / "data")
    data = DataModule(None, storage, batch_size=4, validation=6, stratify="1")
    seen = [one for numbers, labels in data.train_dataloader() for one in zip(numbers.tolist(), labels.tolist())]
    assert sorted(seen) == [(k, k % 3) for k in split(30, 6, labels=[k % 3 for k in range(30)]).train]


def pair(k):
    return k, k % 3


def moved(made, generator):
    return {**made, "x": made["x"] + generator.random(dtype="float32")}


def test_a_cache_and_augmentation(tmp_path, storage):
    """In the second epoch samples come from the cache, each with another augmentation. Evaluation
    has no augmentation by default."""

    class Keeps(Model):
        def __init__(self):
            super().__init__()
            self.moves = {}

        def training_step(self, batch, number):
            for index, x in zip(batch["index"].tolist(), batch["x"]):
                move = x.numpy() - storage.load_sample(index)["x"]
                assert abs(move - move[0]).max() < 1e-3
                self.moves.setdefault(index, set()).add(round(float(move[0]), 3))
            return super().training_step(batch, number)

    model, data = Keeps(), module(storage, train_loader={"size": "16MiB", "augment": moved})
    run = trainer(tmp_path, 3)
    run.fit(model, datamodule=data)
    assert len(model.moves) == 24
    assert all(0 <= move <= 1 for moves in model.moves.values() for move in moves)  # rounded
    assert sum(len(moves) for moves in model.moves.values()) > 60  # there are 72, some of which may be close
    stats = run.train_dataloader.stats()
    assert stats.hits >= 48


def test_without_lightning():
    code = """
        import sys
        sys.modules["lightning"] = sys.modules["lightning.pytorch"] = sys.modules["pytorch_lightning"] = None
        try:
            import stocached.lightning
        except ImportError as error:
            print(error)
    """
    assert "pip install lightning" in python(code).stdout
    python("import stocached, stocached.prepare, sys; assert 'lightning' not in sys.modules")


def test_what_says_that_samples_are_random_names_the_arguments_of_the_data_module(tmp_path):
    def flip(sample):
        return sample if random.random() < 2 else None

    data = DataModule(
        Made(20), BlockStorage(tmp_path / "a"), batch_size=2, train_transform=flip, train_loader={"size": "64MiB"}
    )
    data.prepare_data()
    with pytest.raises(
        NondeterministicDatasetError,
        match=r'DataModule\(\.\.\., train_loader=\{"augment": fn\}\).*DataModule\(\.\.\., loader=\{"allow_random": True\}\)',
    ):
        data.train_dataloader()
    data = DataModule(
        Made(20),
        BlockStorage(tmp_path / "b"),
        batch_size=2,
        train_transform=flip,
        loader={"allow_random": True},
        train_loader={"size": "64MiB"},
        validation=4,
    )
    data.prepare_data()
    assert sum(1 for _ in data.train_dataloader()) == 8

    class Random(Made):
        def samples(self, first, stop):
            random.random()
            return super().samples(first, stop)

    with pytest.raises(
        NondeterministicDatasetError, match=r"of the preparer draws .*DataModule\(\.\.\., allow_random=True\)"
    ):
        DataModule(Random(20), BlockStorage(tmp_path / "c")).prepare_data()
    DataModule(Random(20), BlockStorage(tmp_path / "c"), allow_random=True).prepare_data()
