"""Which rank a loader and a stream assume for their process."""

from __future__ import annotations

import pytest

from stocached import InvalidError, Loader
from stocached.streams import Streams


def of_loader(**settings):
    loader = Loader(range(40), 4, seed=1, shuffle=True, **settings)
    return loader.sampler.rank, loader.sampler.world_size


def of_streams(**settings):
    streams = Streams([[1, 2]] * 8, 1, lengths=[2] * 8, **settings)
    return streams.rank, streams.world_size


BOTH = pytest.mark.parametrize("of", [of_loader, of_streams])


@BOTH
def test_it_is_that_of_the_launcher(of, monkeypatch):
    assert of() == (0, 1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert of() == (1, 3)
    assert of(rank=0, world_size=2) == (0, 2), "arguments come before the environment"
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert of() == (0, 1)


@BOTH
@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [
        (None, "2", "WORLD_SIZE=2 is set and RANK is not.*rank= and world_size="),  # as Lightning's launcher sets it
        ("2", "2", "RANK=2 is not in 0..WORLD_SIZE-1, WORLD_SIZE=2"),
        ("x", "2", "RANK='x', WORLD_SIZE='2': they must be whole numbers"),
    ],
)
def test_an_invalid_environment(of, monkeypatch, rank, world_size, message):
    for name, value in (("RANK", rank), ("WORLD_SIZE", world_size)):
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(InvalidError, match=message):
        of()
    assert of(rank=1, world_size=2) == (1, 2)


@BOTH
def test_invalid_ranks(of):
    with pytest.raises(InvalidError, match="rank=2 is not in 0..world_size-1, world_size=2"):
        of(rank=2, world_size=2)
    with pytest.raises(InvalidError, match="rank=None, world_size=2: give both"):
        of(world_size=2)
    with pytest.raises(InvalidError, match="rank='a' is not a whole number"):
        of(rank="a", world_size=2)
