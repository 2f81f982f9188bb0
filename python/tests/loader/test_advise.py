"""`stocached.advise` of loaders of stocached: what it measures, what it says, and that nothing else changes."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import numpy as np
import pytest
from helpers import Of
from processes import held, nothing_new

import stocached
from stocached import InvalidError, Loader, UnsupportedError, advise
from stocached._common.program import program
from stocached._loader import advise as _advise

N, LOAD, SIDE = 64, 0.004, 32


class Slow:
    """Samples whose loads wait."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        time.sleep(LOAD)
        return np.full((SIDE, SIDE), index, np.uint8)


def to_float(sample: Any) -> Any:
    """As much random work as usual: what it makes has four times the bytes."""
    return sample.astype(np.float32) + np.random.rand()


def everything(loader: Any) -> object:
    """The state that must not change, except for processes, threads and descriptors."""
    return (
        loader.state_dict(),
        loader.stats(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
        {name: value if isinstance(value, (int, str, float)) else id(value) for name, value in vars(loader).items()},
    )


def tries(advice: stocached.Advice) -> dict[str, Any]:
    return {tried["kind"]: tried for tried in advice.numbers["tries"]}


@pytest.mark.parametrize("workers", [0, 2])
def test_loads_that_wait(workers: int, capfd: pytest.CaptureFixture[str]):
    loader = Loader(Slow(), 8, shuffle=True, seed=1, num_workers=workers)
    before, had = everything(loader), held()
    advice = advise(loader, 0.6)
    line = "stocached: advise() reads batches of the Loader for about 0.6 s, longer if they are slow\n"
    assert capfd.readouterr() == ("", line)
    assert everything(loader) == before
    nothing_new(had)
    numbers = advice.numbers
    assert numbers["samples"] == N
    assert numbers["sample_bytes"] == SIDE * SIDE
    assert numbers["workers"] == workers
    assert numbers["load_seconds"] == pytest.approx(N * LOAD, rel=0.5)
    assert numbers["waiting"] > 0.5
    waits = {wait["name"]: wait["seconds"] for wait in numbers["waits"]}
    assert waits["read"] > waits.get("decode", 0)
    told = tries(advice)
    assert int(told["workers"]["setting"].removeprefix("num_workers=")) > workers
    assert told["cache"]["seconds"] < 0.5 * numbers["today_seconds"]
    assert "WAITING" in str(advice)
    assert told["workers"]["setting"] + ": an epoch takes " in str(advice)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("cached", [False, True])
def test_the_stored_sample_counts(workers: int, cached: bool):
    """A cache stores samples before augment=, whose result is larger."""
    size = {"size": "8MiB"} if cached else {}
    loader = Loader(Slow(), 8, seed=1, num_workers=workers, augment=to_float, **size)
    numbers = advise(loader, 1.0).numbers
    assert numbers["sample_bytes"] == SIDE * SIDE
    assert next(iter(loader)).nbytes == 8 * 4 * SIDE * SIDE
    loader.close()


def test_a_trace_says_the_size_of_the_stored_sample(tmp_path: Any):
    path = tmp_path / "run.json"
    for size in ({"size": "8MiB"}, {}):
        loader = Loader(Slow(), 8, augment=to_float, allow_random=True, trace=path, **size)
        list(loader)
        loader.close()
        command = [program("a test"), "advise", str(path), "--json"]
        if size:
            assert f'"sample_bytes": {SIDE * SIDE},' in _advise._run(command)
            continue
        with pytest.raises(
            InvalidError, match="how large a stored sample is, which augment= may change: give --sample-bytes"
        ):
            _advise._run(command)


def test_a_cache_keeps_what_loads_took():
    """Its epoch is measured with hits, and its costs are those of the training before."""
    loader = Loader(Slow(), 8, shuffle=True, seed=1, size="8MiB", policy="cost")
    for _ in range(2):
        list(loader)
    before, stored = loader.state_dict(), loader.cache.stats().stored
    advice = advise(loader, 0.2, step_seconds=0.005, size="1MiB")
    assert loader.state_dict() == before
    assert loader.cache.stats().stored == stored
    assert advice.numbers["known_costs"] >= 0.9 * N
    assert advice.numbers["policy"] == "cost"
    assert advice.numbers["today_bytes"] == N * SIDE * SIDE
    assert advice.numbers["limits"][0]["name"] == "the training step"
    assert advice.numbers["limits"][0]["seconds"] >= 0.035  # 8 steps of 5 ms; a busy machine takes longer
    assert "cache" not in tries(advice)
    loader.close()


def test_an_empty_cache_is_a_first_epoch():
    loader = Loader(Slow(), 8, size="8MiB")
    advice = advise(loader, 1.0)
    assert loader.cache.stats().ready == 0
    assert "its cache is empty: this is the time of a first epoch" in str(advice)
    assert advice.numbers["notes"][-1] in str(advice)
    loader.close()


def test_a_step_is_called_with_batches():
    seen: list[Any] = []
    advise(Loader(Slow(), 8, num_workers=1), 1.0, step=seen.append)
    assert len(seen) >= 3
    assert {batch.shape for batch in seen} == {(8, SIDE, SIDE)}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_raises(workers: int):
    loader, had = Loader(Of(lambda index: 1 // 0, N), 8, num_workers=workers), held()
    with pytest.raises(ZeroDivisionError):
        advise(loader, 0.2)
    nothing_new(had)


def test_mistakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Any):
    loader = Loader(Slow(), 8)
    for call, said in (
        (lambda: advise([]), "needs torch's DataLoader or a loader of stocached, and got a list"),
        (lambda: advise(loader, step=print, step_seconds=1), "give one of them"),
        (lambda: advise(loader, step_seconds=-1), "step_seconds=-1"),
        (lambda: advise(loader, 0), "seconds=0"),
        (lambda: advise(loader, 0.1, size="much"), "--size"),
        (lambda: advise(Loader(Slow(), batch_sampler=[[0, 1]])), "the batch_sampler has no batch_size"),
    ):
        with pytest.raises(InvalidError, match=said):
            call()
    monkeypatch.setattr(_advise.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(UnsupportedError, match="`go install ./cmd/stocached` installs it"):
        advise(loader)
