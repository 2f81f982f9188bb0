"""Checks of loaders in the real accelerate: in one process for test_accelerate_loaders.py, and in
each of two for framework_ranks.py."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration
from framework_samples import BATCH, LIFT, Lifted, N, Samples, lift, once, some, times_loaded

from stocached import InvalidError, Order, UnsupportedError, source
from stocached._loader.sampling import OrderSampler
from stocached.torch import DataLoader


def accelerator(**more: Any) -> Any:
    steps = more.pop("gradient_accumulation_steps", 1)
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**more), gradient_accumulation_steps=steps)


def ours(dataset: Any, **settings: Any) -> Any:
    """Our loader, without the checks for randomness, because they load some samples twice."""
    return DataLoader(
        dataset, **({"batch_size": BATCH, "augment": lift, "size": "8MiB", "allow_random": True} | settings)
    )


def theirs(**settings: Any) -> Any:
    """torch's loader of the same samples, in the same order."""
    settings.pop("size", None)
    if "seed" in settings:
        kind = "shuffled" if settings.pop("shuffle", False) else "sequential"
        settings["sampler"] = OrderSampler(Order(N, kind, seed=settings.pop("seed")), 0, 1)
    return torch.utils.data.DataLoader(Lifted(), **({"batch_size": BATCH} | settings))


def both(of: Any, configuration: dict[str, Any], settings: dict[str, Any]) -> Any:
    """Results of `of` for an accelerator with a loader of torch, and with one of ours. They must be
    equal."""
    results = []
    dataset = Samples()
    for loader in (theirs(**settings), ours(dataset, **settings)):
        torch.manual_seed(3)
        run = accelerator(**configuration)
        prepared = run.prepare(loader)
        assert isinstance(prepared.base_dataloader, DataLoader) == isinstance(loader, DataLoader)
        results.append(of(run, prepared))
    assert results[0] == results[1], (configuration, settings, results)
    assert "size" in settings or run.process_index > 0 or times_loaded(dataset) == 1
    return results[1]


def indices(batches: Any) -> list[list[int]]:
    found = []
    for x, index in batches:
        assert torch.equal(x[:, 0], index + LIFT), f"without augment=: {x[:, 0].tolist()}"
        found.append(index.tolist())
    return found


def trained(run: Any, loader: Any, epochs: Any = range(2)) -> list[Any]:
    """What a training loop sees."""
    model = run.prepare(torch.nn.Linear(3, 1))
    seen = []
    for epoch in epochs:
        loader.set_epoch(epoch)
        for x, index in loader:
            assert x.device.type == run.device.type
            assert torch.equal(x[:, 0], index + LIFT), f"without augment=: {x[:, 0].tolist()}"
            with run.accumulate(model):
                run.backward(model(x - LIFT).mean())
            # gather needs tensors of equal length
            metrics = run.gather_for_metrics(index).tolist() if run.even_batches else []
            state = run.gradient_state
            seen.append((epoch, index.tolist(), run.sync_gradients, state.end_of_dataloader, state.remainder, metrics))
    return seen


# ------------------------------------------------------------ the checks

CONFIGURATIONS: list[dict[str, Any]] = [
    {"gradient_accumulation_steps": 2},
    {"use_seedable_sampler": True},
    {"split_batches": True},
    {"dispatch_batches": True},
    {"dispatch_batches": True, "split_batches": True},
    {"even_batches": False},
]
SETTINGS: list[dict[str, Any]] = [{"shuffle": True}, {"shuffle": True, "seed": 7}]


def check_what_a_training_loop_sees(folder: Path) -> None:
    configurations = CONFIGURATIONS if accelerator().num_processes > 1 else CONFIGURATIONS[:2]
    cases = [*zip(configurations, itertools.cycle(SETTINGS)), ({}, {"drop_last": True, "num_workers": 1})]
    for configuration, settings in cases:
        seen = both(trained, configuration, settings)
        for epoch in range(2):
            metrics = [index for at, *_, gathered in seen for index in gathered if at == epoch]
            assert len(set(metrics)) == len(metrics), (configuration, settings, metrics)
            assert len(metrics) == N or "drop_last" in settings or "even_batches" in configuration


def check_other_loaders(folder: Path) -> None:
    batches = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]]
    for settings in (
        {"size": None},
        {"collate_fn": lambda samples: torch.utils.data.default_collate(samples[::-1])},
        {"batch_sampler": batches, "batch_size": 1},
    ):
        both(lambda run, loader: [indices(loader) for _ in range(2)], {"even_batches": False}, settings)

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            yield from map(float, range(N))

    read = [
        accelerator().prepare(torch.utils.data.DataLoader(Stream(), BATCH)),
        accelerator().prepare(DataLoader(Stream(), BATCH)),
    ]
    assert isinstance(read[1].base_dataloader, DataLoader)
    assert list(map(torch.Tensor.tolist, read[0])) == list(map(torch.Tensor.tolist, read[1]))


def check_batches_that_are_skipped(folder: Path) -> None:
    for configuration, settings in itertools.product([{}, {"dispatch_batches": True}], SETTINGS):

        def of(run: Any, loader: Any) -> Any:
            loader.set_epoch(1)
            rest = run.skip_first_batches(loader, 2)
            assert type(rest.base_dataloader) is type(loader.base_dataloader)
            return trained(run, rest, [1]), trained(run, loader, [2])

        both(of, configuration, settings)

    run = accelerator()
    loader = run.prepare(ours(Samples(), shuffle=True, seed=7))
    rest = run.skip_first_batches(loader, 2)
    rest.set_epoch(3)  # accelerate does not pass it on to a sampler this deep
    loader.set_epoch(3)
    assert indices(rest) == indices(loader)[2:]

    alone = skip_first_batches(ours(Samples()), 2)  # not prepared
    assert isinstance(alone, DataLoader)
    assert indices(alone) == indices(ours(Samples()))[2:]


def check_samples_are_sharded_once(folder: Path) -> None:
    """A loader of ours with seed= shards the samples itself, and accelerate must not shard them
    again."""
    run = accelerator()
    given = {"rank": run.process_index, "world_size": run.num_processes}
    for settings in ({}, given):
        mine = indices(run.prepare(ours(Samples(), seed=7, shuffle=True, **settings)))
        assert set(run.gather_for_metrics(sum(mine, []), use_gather_object=True)) == set(range(N))  # noqa: RUF017
    if run.num_processes > 1:
        for settings, message in (
            ({"rank": 0, "world_size": 3}, "world_size=3: accelerate shards"),
            ({"ends": "drop"}, "ends='drop': accelerate"),
        ):
            with pytest.raises(InvalidError, match=message):
                run.prepare(ours(Samples(), seed=7, **settings))
        with pytest.raises(InvalidError, match=r"call prepare\(\) first"):
            run.prepare(skip_first_batches(ours(Samples(), seed=7), 1))
    with pytest.raises(InvalidError, match="give it batch_size="):
        run.prepare(ours(Samples(), batch_size=None))


def noisy(sample: Any, generator: Any) -> Any:
    return sample[0] + generator.random(), sample[1]


def check_random_numbers_of_samples(folder: Path) -> None:
    """The numbers depend on seed, epoch and index, not on the process."""

    def drawn(loader: Any) -> dict[int, float]:
        return {index: x for xs, of in loader for x, index in zip(xs[:, 0].tolist(), of.tolist())}

    alone = ours(Samples(), shuffle=True, seed=7, rank=0, world_size=1, augment=noisy)
    run = accelerator()
    loader = run.prepare(ours(Samples(), shuffle=True, seed=7, augment=noisy))
    for epoch in (0, 3):
        alone.set_epoch(epoch)
        loader.set_epoch(epoch)
        whole, mine = drawn(alone), drawn(loader)
        assert len(whole) == N
        assert mine.items() <= whole.items()


def check_states(folder: Path) -> None:
    """save_state() works as with torch's loader, which has no state. With
    use_stateful_dataloader=True our loader has one."""
    for configuration in ({}, {"use_stateful_dataloader": True}):
        for settings in SETTINGS:

            def of(run: Any, loader: Any) -> Any:
                at = str(folder / f"state-{run.process_index}")
                first = indices(loader)
                loader.set_epoch(1)
                for batch in loader:
                    first += indices([batch])
                    if len(first) == len(loader) + 2:
                        run.save_state(at)
                again = accelerator(**configuration)
                other = again.prepare(
                    theirs(**settings)
                    if type(loader.base_dataloader) is not DataLoader
                    else ours(Samples(), **settings)
                )
                again.load_state(at)
                other.set_epoch(1)
                if configuration:
                    assert indices(other) == first[len(loader) + 2 :]
                return first

            if not configuration or "seed" in settings:
                both(of, configuration, settings)
    run = accelerator(use_stateful_dataloader=True, dispatch_batches=True)
    if run.num_processes > 1:
        with pytest.raises(UnsupportedError, match="dispatch_batches=True"):
            run.prepare(ours(Samples()))


def check_uneven_inputs(folder: Path) -> None:
    def of(run: Any, loader: Any) -> Any:
        model = run.prepare(torch.nn.Linear(3, 1))
        with run.join_uneven_inputs([model] if run.num_processes > 1 else [], even_batches=False):
            uneven = [index.tolist() for x, index in loader if model(x) is not None]
        return uneven, indices(loader)

    both(of, {}, {})


def check_a_pipe(folder: Path) -> None:
    """accelerate deals the batches of the chain's order to the ranks."""
    dataset, run = Samples(), accelerator()
    pipe = source(dataset).cache("8MiB", allow_random=True).shuffle(seed=7).map(lift).batch(BATCH)
    loader, orders = run.prepare(DataLoader(pipe, num_workers=2)), []
    for epoch in range(2):
        loader.set_epoch(epoch)
        mine = list(itertools.chain(*indices(loader)))
        orders.append(mine)
        assert set(run.gather_for_metrics(mine, use_gather_object=True)) == set(range(N))
    assert orders[0] != orders[1]
    assert times_loaded(dataset) == 1
    if run.num_processes == 1:
        assert orders == [list(Order(N, seed=7).epoch(epoch)) for epoch in range(2)]


def check_a_pipe_without_an_index(folder: Path) -> None:
    """accelerate leaves it as it is: each process reads its own windows."""
    dataset, run = Samples(), accelerator()
    pipe = source(dataset).shuffle(seed=7).flat_map(once).map(lift).batch(BATCH)
    loader, orders = run.prepare(DataLoader(pipe)), []
    for epoch in range(2):
        loader.set_epoch(epoch)
        mine = list(itertools.chain(*indices(loader)))
        orders.append(mine)
        assert sorted(run.gather_for_metrics(mine, use_gather_object=True)) == list(range(N))
    assert [list(Order(N, seed=7).epoch(epoch))[run.process_index :: run.num_processes] for epoch in range(2)] == orders
    rest = run.skip_first_batches(loader, 2)
    for each in (rest, loader):
        each.set_epoch(1)
    assert indices(rest) == indices(loader)[2:]


def check_equal_ends_of_a_pipe_without_an_index(folder: Path) -> None:
    run = accelerator()
    pipe = source(Samples()).shuffle(seed=7).flat_map(some).map(lift).batch(BATCH).measure()
    loader = run.prepare(DataLoader(pipe, ends="drop"))
    for epoch in range(2):
        loader.set_epoch(epoch)
        mine = indices(loader)
        assert len(set(run.gather_for_metrics([sum(map(len, mine))], use_gather_object=True))) == 1
        assert set(itertools.chain(*mine)) <= {index for index in range(N) if index % 3}


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]
