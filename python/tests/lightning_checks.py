"""Checks of loaders in the real Lightning: in one process for test_lightning_loaders.py, and in
each of two ranks for framework_ranks.py."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from framework_samples import BATCH, LIFT, Lifted, N, Samples, lift, once, some, times_loaded

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lightning.pytorch as pl
    from lightning.pytorch.utilities.combined_loader import CombinedLoader

for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)


class Model(pl.LightningModule):
    """Notes the samples that it gets. hooks: loaders by stage; a function makes one each time a
    hook is called."""

    def __init__(self, hooks: dict[str, Callable[[], Any]] | None = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.seen: list[tuple[str, int, list[int]]] = []
        for stage, make in (hooks or {}).items():
            setattr(self, f"{stage}_dataloader", make)

    def note(self, stage: str, batch: Any) -> Any:
        x, index = batch
        assert torch.equal(x, (index + LIFT).float()[:, None].expand(-1, 3)), (
            f"{stage} without augment=: {x[:, 0].tolist()}"
        )
        if not self.trainer.sanity_checking:
            self.seen.append((stage, self.current_epoch, index.tolist()))
        return self.layer(x - LIFT).mean()

    def training_step(self, batch: Any, number: int) -> Any:
        return self.note("train", batch)

    def validation_step(self, batch: Any, number: int) -> None:
        self.note("val", batch)

    def test_step(self, batch: Any, number: int) -> None:
        self.note("test", batch)

    def predict_step(self, batch: Any, number: int) -> Any:
        self.note("predict", batch)
        return batch[1]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-6)

    def of(self, stage: str, epoch: int | None = None) -> list[list[int]]:
        return [indices for at, number, indices in self.seen if at == stage and epoch in (None, number)]


def ranks() -> int:
    return (
        torch.distributed.get_world_size()
        if torch.distributed.is_initialized()
        else int(os.environ.get("WORLD_SIZE", "1"))
    )


def trainer(folder: Path, **more: Any) -> Any:
    pl.seed_everything(5, verbose=False)
    settings = {
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "max_epochs": 2,
    }
    settings |= {
        "devices": ranks(),
        "strategy": "ddp" if ranks() > 1 else "auto",
        "enable_checkpointing": False,
        "default_root_dir": folder,
    }
    return pl.Trainer(**(settings | more))


def together(mine: list[list[int]]) -> list[int]:
    """The samples of all ranks."""
    parts: list[Any] = [mine]
    if torch.distributed.is_initialized():
        parts = [None] * ranks()
        torch.distributed.all_gather_object(parts, mine)
    return sorted(index for part in parts for batch in part for index in batch)


def joined(batches: Any) -> list[int]:
    return [index for batch in batches for index in batch]


def complete(samples: list[int], n: int = N) -> bool:
    """Whether each sample came once, except for samples that make ranks equal."""
    return sorted(set(samples)) == list(range(n)) and len(samples) == -(-n // ranks()) * ranks()


def ours(dataset: Any, *arguments: Any, **settings: Any) -> Any:
    """Our loader, without the checks for randomness, because they load some samples twice.
    `times_loaded` also shows that a new loader keeps allow_random=."""
    from stocached.torch import DataLoader

    return DataLoader(dataset, *arguments, **({"augment": lift, "size": "8MiB", "allow_random": True} | settings))


# ------------------------------------------------------------ the checks


def check_hook_that_imports_us(folder: Path) -> None:
    """This check must be the first: Lightning wraps the constructors of the classes that exist when
    it calls the hook."""
    dataset = Samples()
    model = Model({"train": lambda: ours(dataset, BATCH, shuffle=True)})
    trainer(folder).fit(model)
    assert all(complete(together(model.of("train", epoch))) for epoch in range(2))


def stages(
    folder: Path, by: str, settings: dict[str, Any], make: Callable[..., Any], dataset: Any
) -> tuple[Model, Any]:
    """Fits, validates, tests and predicts."""
    shuffled = settings | {"shuffle": True}
    loaders = {
        "train": lambda: make(dataset, batch_size=BATCH, **shuffled),
        "val": lambda: make(dataset, batch_size=BATCH, **settings),
        "test": lambda: make(dataset, batch_size=BATCH, **settings),
        "predict": lambda: make(dataset, batch_size=BATCH, **settings),
    }
    model = Model(loaders if by == "hook" else None)
    run = trainer(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if by == "hook":
            run.fit(model)
            run.validate(model, verbose=False)
            run.test(model, verbose=False)
            said = run.predict(model)
        else:
            made = {stage: make() for stage, make in loaders.items()}
            run.fit(model, made["train"], made["val"])
            run.validate(model, made["val"], verbose=False)
            run.test(model, made["test"], verbose=False)
            said = run.predict(model, made["predict"])
    assert [indices.tolist() for indices in said] == model.of("predict")
    return model, run


def check_stages(folder: Path) -> None:
    """Lightning makes loaders again under DDP and to predict. They give torch's samples, from one
    cache, and augmented."""
    theirs, _ = stages(folder, "direct", {}, torch.utils.data.DataLoader, Lifted())
    cases: list[tuple[str, dict[str, Any]]] = [("hook", {"num_workers": 1, "worker": "thread"})]
    for by, settings in [*cases, ("direct", {"num_workers": 1}), ("direct", {"size": None})]:
        dataset = Samples()
        mine, run = stages(folder, by, settings, ours, dataset)
        assert mine.seen == theirs.seen, (by, settings)
        assert (run.predict_dataloaders.cache is None) == ("size" in settings)
        assert "size" in settings or times_loaded(dataset) == 1, (by, settings, dataset.loads)


def check_stages_with_an_order_of_ours(folder: Path) -> None:
    dataset = Samples()
    model, run = stages(folder, "hook", {"seed": 7}, ours, dataset)
    from stocached import Order

    rank = torch.distributed.get_rank() if ranks() > 1 else 0
    for epoch in range(2):
        order = Order(N, seed=7).epoch(epoch).shard(rank, ranks(), ends="pad" if ranks() > 1 else "uneven")
        assert joined(model.of("train", epoch)) == order.indices().tolist(), epoch
        assert complete(together(model.of("val", epoch)))
    assert complete(together(model.of("test")))
    assert complete(together(model.of("predict")))
    assert run.predict_dataloaders.batch_sampler.sampler.world_size == ranks()


def check_affinity(folder: Path) -> None:
    """Lightning keeps the sampler of a loader with affinity=: each global batch is that of the plain order."""
    from stocached import Order

    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    os.environ["STOCACHED_NODE"] = f"node-{rank}"
    model = Model()
    trainer(folder).fit(model, ours(Samples(), BATCH, shuffle=True, seed=7, affinity="node"))
    for epoch in range(2):
        mine: list[Any] = [model.of("train", epoch)]
        if torch.distributed.is_initialized():
            mine = [None] * ranks()
            torch.distributed.all_gather_object(mine, model.of("train", epoch))
        order, ends = Order(N, seed=7).epoch(epoch), "pad" if ranks() > 1 else "uneven"
        plain = [order.shard(number, ranks(), ends=ends).indices().tolist() for number in range(ranks())]
        for step, batches in enumerate(zip(*mine)):
            wanted = [part[step * BATCH : (step + 1) * BATCH] for part in plain]
            assert [len(batch) for batch in batches] == [len(part) for part in wanted], (epoch, step)
            assert sorted(joined(batches)) == sorted(joined(wanted)), (epoch, step)
    del os.environ["STOCACHED_NODE"]


def check_overfitting(folder: Path) -> None:
    """Lightning puts a SequentialSampler into the loader."""
    for by, settings in (
        ("direct", {"shuffle": True}),
        ("hook", {"shuffle": True, "seed": 7}),
        ("direct", {"order": "shuffled", "ends": "drop"}),
    ):
        dataset = Samples()
        loader = ours(dataset, BATCH, **settings)
        model = Model({"train": lambda: ours(dataset, BATCH, **settings)} if by == "hook" else None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer(folder, overfit_batches=2).fit(model, None if by == "hook" else loader)
        for epoch in range(2):
            assert together(model.of("train", epoch)) == list(range(2 * BATCH * ranks())), (settings, by, epoch)
        assert times_loaded(dataset) == 1


def check_a_state_in_the_middle_of_an_epoch(folder: Path) -> None:
    """A run that continues from any checkpoint gives the batches of the whole run."""
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"seed": 7}, {}),
        ({"seed": 7, "num_workers": 2, "worker": "thread"}, {"limit_train_batches": 2}),
        ({}, {}),
    ]
    if ranks() > 1:  # a DistributedSampler learns that another epoch begins; torch's other samplers do not
        cases.append(({}, {"limit_train_batches": 2}))
    for number, (settings, more) in enumerate(cases):

        def trained(step: int | None, at: Path = folder / f"states-{number}") -> list[Any]:
            more["callbacks"] = (
                [pl.callbacks.ModelCheckpoint(at, every_n_train_steps=1, save_top_k=-1, filename="{step}")]
                if step is None
                else []
            )
            model, state = Model(), None if step is None else at / f"step={step}.ckpt"
            run = trainer(folder, max_epochs=3, enable_checkpointing=step is None, **more)
            run.fit(model, ours(Samples(24), BATCH, shuffle=True, **settings), ckpt_path=state)
            return [(epoch, indices) for _, epoch, indices in model.seen]

        whole = trained(None)
        for step in (4,) if number else (1, 4):
            got, wanted = trained(step), whole[step:]
            # the state does not have the numbers of torch.manual_seed, which shuffle later epochs
            if not settings and ranks() == 1:
                got, wanted = ([seen for seen in part if seen[0] == whole[step][0]] for part in (got, wanted))
            assert got == wanted, (settings, more, step)


def check_loaders_made_for_each_epoch(folder: Path) -> None:
    dataset = Samples()
    model = Model({"train": lambda: ours(dataset, BATCH, shuffle=True, seed=3)})
    trainer(folder, reload_dataloaders_every_n_epochs=1, max_epochs=3).fit(model)
    orders = [together(model.of("train", epoch)) for epoch in range(3)]
    assert all(map(complete, orders))
    assert model.of("train", 0) != model.of("train", 1) != model.of("train", 2)
    assert times_loaded(dataset) == 1


class Rows(Model):
    """Counts the batches of rows, by epoch."""

    def training_step(self, batch: Any, number: int) -> Any:
        self.seen.append(("train", self.current_epoch, [batch.step]))
        return self.layer(batch.items).mean()


def check_rows_whose_epochs_differ_in_length(folder: Path) -> None:
    """Lightning asks for the length of the first epoch alone, unless it makes the loader again."""
    from stocached import source
    from stocached.torch import DataLoader

    items = [3, 9, 1, 7, 2, 8, 5]
    pipe = source(range(7)).shuffle(seed=0).flat_map(lambda file: [torch.ones(3)] * items[file])
    rows = pipe.batch(3 - ranks(), rows=True, lengths=items)
    known = DataLoader(rows, rank=0, world_size=ranks())
    lengths = []
    for epoch in range(6):
        known.set_epoch(epoch)
        lengths.append(len(known))
    assert max(lengths) > lengths[0]
    for again in (0, 1):
        model = Rows()
        trainer(folder, reload_dataloaders_every_n_epochs=again, max_epochs=6).fit(model, DataLoader(rows))
        found = [len(model.of("train", epoch)) for epoch in range(6)]
        assert found == (lengths if again else [min(length, lengths[0]) for length in lengths])


def check_epochs_that_the_trainer_counts(folder: Path) -> None:
    """A second fit of a trainer makes each iterator twice. A second trainer counts from 0, with a
    loader whose count went on."""
    loader, model = ours(Samples(), BATCH, shuffle=True, seed=3), Model()
    run = trainer(folder)
    run.fit(model, loader)
    run.fit_loop.max_epochs = 4
    run.fit(model, loader)
    again = Model()
    trainer(folder, max_epochs=4).fit(again, loader)
    assert model.seen == again.seen
    assert len({str(model.of("train", epoch)) for epoch in range(4)}) == 4


def check_several_loaders_at_once(folder: Path) -> None:
    small, large = Samples(11), Samples(N)

    class Both(Model):
        def training_step(self, batch: Any, number: int) -> Any:
            return self.note("train", batch["a"]) + self.note("other", batch["b"])

    def both() -> Any:
        return CombinedLoader(
            {"a": ours(small, 2, shuffle=True), "b": ours(large, BATCH, seed=1, batch_augment=list)}, "max_size"
        )

    model = Both()
    trainer(folder, max_epochs=1).fit(model, both())
    assert complete(together(model.of("train")), 11)
    assert complete(together(model.of("other")))


def check_hooks_that_do_more(folder: Path) -> None:
    from stocached.torch import DataLoader

    dataset = Samples()

    def looked_at() -> Any:
        loader = ours(dataset, BATCH, shuffle=True, num_workers=1, persistent_workers=True)
        assert len(next(iter(loader))[1]) == BATCH
        return loader

    def changed() -> Any:
        loader = ours(dataset, BATCH, shuffle=True, augment=None)
        loader.augment = lift
        return loader

    class Own(DataLoader):
        """With its own arguments."""

        def __init__(self, samples: Any, **more: Any) -> None:
            super().__init__(samples, **({"batch_size": BATCH, "augment": lift, "size": "8MiB"} | more))

    class Bare(DataLoader):
        """Without a constructor."""

    makers = {
        "looked at": looked_at,
        "changed": changed,
        "own": lambda: Own(dataset, shuffle=True),
        "own, in order": lambda: Own(Samples(), shuffle=True, seed=3),
        "bare": lambda: Bare(dataset, batch_size=BATCH, shuffle=True, augment=lift, size="8MiB"),
    }
    if ranks() == 1:  # under DDP Lightning keeps only the samples of a BatchSampler, also for torch's loader
        batches = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(dataset), BATCH, False)
        makers["batch sampler"] = lambda: ours(dataset, batch_sampler=batches)
    for name, make in makers.items():
        model = Model({"train": make, "predict": make})
        run = trainer(folder, max_epochs=1)
        run.fit(model)
        assert complete(together(model.of("train"))), name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run.predict(model)
        assert complete(together(model.of("predict"))) or ranks() > 1, name
        assert set(together(model.of("predict"))) == set(range(N)), name


def check_samplers_of_users_and_of_frameworks(folder: Path) -> None:
    from lightning.pytorch.utilities.data import _update_dataloader
    from torch.utils.data import DistributedSampler

    from stocached import Order

    dataset = Samples()
    theirs = DistributedSampler(dataset, ranks(), ranks() - 1, shuffle=False)
    loader = ours(dataset, BATCH, sampler=theirs)
    model = Model()
    trainer(folder, max_epochs=1).fit(model, loader)
    assert joined(model.of("train")) == list(theirs), "the order of the user is kept"

    loader = ours(dataset, BATCH, shuffle=True, seed=7)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        again = [_update_dataloader(loader, DistributedSampler(dataset, 3, 1)) for _ in range(2)]
    assert [str(warning.message)[:60] for warning in said] == [
        "stocached: a DistributedSampler was given to a loader with s"
    ]
    for made in again:
        assert joined(batch[1].tolist() for batch in made) == list(Order(N, seed=7).epoch(0).shard(1, 3, ends="pad"))
        assert made.cache is loader.cache


def check_fabric(folder: Path) -> None:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=ranks(), strategy="ddp" if ranks() > 1 else "auto")
    fabric.launch()
    for settings in ({"shuffle": True}, {"shuffle": True, "seed": 7}):
        dataset = Samples()
        loader = fabric.setup_dataloaders(ours(dataset, BATCH, **settings))
        epochs = [[(x, index) for x, index in loader] for _ in range(2)]
        assert all(torch.equal(x[:, 0], index + LIFT) for epoch in epochs for x, index in epoch)
        assert all(complete(together([index.tolist() for _, index in epoch])) for epoch in epochs)
        assert [index.tolist() for _, index in epochs[0]] != [index.tolist() for _, index in epochs[1]]
        assert times_loaded(dataset) == 1


def check_a_pipe(folder: Path) -> None:
    """Lightning adds no sampler: the chain says the order, and the loader shards it."""
    from stocached import Order, source
    from stocached.torch import DataLoader

    dataset = Samples()
    pipe = source(dataset).cache("8MiB", allow_random=True).shuffle(seed=7).map(lift).batch(BATCH)
    model = Model({"train": lambda: DataLoader(pipe, num_workers=2)})
    trainer(folder).fit(model)
    for epoch in range(2):
        mine = Order(N, seed=7).epoch(epoch).shard(int(os.environ.get("LOCAL_RANK", "0")), ranks(), ends="pad")
        assert joined(model.of("train", epoch)) == list(mine)
        assert complete(together(model.of("train", epoch)))
    assert times_loaded(dataset) == 1


def check_a_pipe_without_an_index(folder: Path) -> None:
    """Lightning adds no sampler, and takes a loader without a length."""
    from stocached import Order, source
    from stocached.torch import DataLoader

    pipe = source(Samples()).shuffle(seed=7).flat_map(once).map(lift).batch(BATCH)
    model = Model({"train": lambda: DataLoader(pipe)})
    trainer(folder).fit(model)
    for epoch in range(2):
        mine = list(Order(N, seed=7).epoch(epoch))[int(os.environ.get("LOCAL_RANK", "0")) :: ranks()]
        assert joined(model.of("train", epoch)) == mine
        assert together(model.of("train", epoch)) == list(range(N))


def check_a_measured_pipe(folder: Path) -> None:
    """All ranks get as many batches, as DDP needs. One process knows the length of an epoch before."""
    from stocached import source
    from stocached.torch import DataLoader

    pipe = source(Samples()).shuffle(seed=7).flat_map(some).map(lift).batch(BATCH).measure()
    model = Model({"train": lambda: DataLoader(pipe, ends="pad")})
    run = trainer(folder)
    run.fit(model)
    assert run.num_training_batches == (len(pipe) if ranks() == 1 else float("inf"))
    for epoch in range(2):
        batches = model.of("train", epoch)
        assert len(set(together([[len(joined(batches))]]))) == 1
        assert set(together(batches)) == {index for index in range(N) if index % 3}
        assert len(together(batches)) >= sum(index % 3 for index in range(N))


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]
