"""How many items a pipe without an index has, once they are counted: docs/spec/pipes.md#lengths."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import Any

import model
import pytest
from chains import CHAINS, lucky, noisy, numbers, tagged
from test_pipes import SEED, items_of, plain

from stocached import BadSampleError, Cache, InvalidError, Loader, Pipe, mix, source

WITHOUT_INDEX = [name for name, make in CHAINS.items() if not make().plain.indexed]


@pytest.mark.parametrize("name", WITHOUT_INDEX)
def test_a_measured_pipe_has_a_length_items_and_equal_ends(name: str):
    chain = CHAINS[name]()
    if model.varies(chain.plain):
        with pytest.raises(InvalidError, match="epochs may have other numbers"):
            chain.pipe.measure()
        return
    assert chain.pipe.measure() is chain.pipe
    items = plain(chain.plain.epoch(0))
    assert len(chain.pipe) == len(items)
    assert [plain(chain.pipe[index]) for index in range(0, len(items), 5)] == items[::5]
    assert not items or plain(chain.pipe[-1]) == items[-1]
    for ends, ranks in (("pad", 1), ("pad", 3), ("drop", 3)):
        every = [chain.plain.epoch(1, SEED, rank, ranks, ends) for rank in range(ranks)]
        for rank in range(ranks):
            if any(some_have_none(chain.plain, epoch, ranks) for epoch in range(2)):
                with pytest.raises(InvalidError, match=f"rank . of {ranks} has none of the"):
                    epoch_of(chain.pipe, rank, ranks, ends)
                continue
            assert epoch_of(chain.pipe, rank, ranks, ends) == plain(model.batches(every[rank], 4))


def some_have_none(plain: model.Pipe, epoch: int, ranks: int) -> bool:
    return len({bool(plain.epoch(epoch, SEED, rank, ranks)) for rank in range(ranks)}) > 1


def loader_of(pipe: Pipe, rank: int, ranks: int, ends: Any, **more: Any) -> Loader:
    loader = Loader(pipe.batch(4), seed=SEED, rank=rank, world_size=ranks, ends=ends, **more)
    loader.set_epoch(1)
    return loader


def epoch_of(pipe: Pipe, rank: int, ranks: int, ends: Any, **more: Any) -> list[Any]:
    loader = loader_of(pipe, rank, ranks, ends, **more)
    made = [items_of(batch) for batch in loader]
    loader.close()
    return made


@pytest.mark.parametrize("name", ["flat_map", "window", "parts, rows"])
def test_a_loader_continues_within_items_that_it_gives_again(name: str):
    """After each batch, with another number of workers, also in the second pass over its windows."""
    chain = CHAINS[name]()
    chain.pipe.measure()
    for ranks in (2, 3, 4):
        every = [chain.plain.epoch(1, SEED, rank, ranks) for rank in range(ranks)]
        rank = min(range(ranks), key=lambda rank: len(every[rank]))
        if len(every[rank]) < max(map(len, every)) and not some_have_none(chain.plain, 0, ranks):
            break
    else:
        pytest.fail("no rank would pad")
    for workers in (0, 2):
        whole = epoch_of(chain.pipe, rank, ranks, "pad", num_workers=workers)
        assert sum(map(len, whole)) == max(map(len, every))
        loader = loader_of(chain.pipe, rank, ranks, "pad", num_workers=workers)
        states = [loader.state_dict() for _ in loader]
        loader.close()
        for k, state in enumerate(states[:-1]):
            again = loader_of(chain.pipe, rank, ranks, "pad", num_workers=2 - workers if k % 4 == 0 else 0)
            again.load_state_dict(state)
            assert [items_of(batch) for batch in again] == whole[k + 1 :]
            again.close()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_have_equally_many_batches(workers: int, drop_last: bool):
    pipe = source(list(range(57))).flat_map(tagged).shuffle(window=5).measure()
    for ends in ("pad", "drop"):
        loaders = [
            Loader(
                pipe.batch(7, drop_last=drop_last), seed=SEED, rank=rank, world_size=4, ends=ends, num_workers=workers
            )
            for rank in range(4)
        ]
        for _ in range(2):  # both epochs of one loader
            sizes = [[len(batch) for batch in loader] for loader in loaders]
            assert sizes[0] == sizes[1] == sizes[2] == sizes[3]
            assert set(sizes[0][:-1]) == {7}
            assert sizes[0][-1] == 7 or not drop_last
        for loader in loaders:
            loader.close()


def sometimes_bad(x: int) -> int:
    if x % 7 == 0:
        raise BadSampleError(f"{x} cannot be read")
    return x


@pytest.mark.filterwarnings("ignore:stocached. a bad sample")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ends", ["pad", "drop"])
def test_ranks_have_equally_many_batches_if_bad_items_are_left_out(workers: int, ends: Any):
    """Of a .map above the shuffle, which the measured lengths do not know. A rank gives other items again."""
    pipe = source(list(range(40))).flat_map(tagged).measure().map(sometimes_bad).shuffle(window=3).batch(4)
    sizes = []
    for rank in range(3):
        loader = Loader(pipe, seed=SEED, rank=rank, world_size=3, ends=ends, bad_samples="skip", num_workers=workers)
        sizes.append([len(batch) for batch in loader])
        assert loader.stats().bad_samples
        loader.close()
    assert sizes[0] == sizes[1] == sizes[2]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_rank_with_fewer_items_than_were_measured_is_an_error(workers: int, tmp_path: Path):
    shrunk = tmp_path / "shrunk"
    pipe = source(list(range(12))).flat_map(lambda x: range(2 if shrunk.exists() else 5)).measure()
    shrunk.touch()
    loader = Loader(pipe.batch(4), rank=0, world_size=2, ends="pad", num_workers=workers)
    with pytest.raises(InvalidError, match="rank 0 of 2 has 12 of the 30 items"):
        list(loader)


def test_the_length_of_a_loader_is_known_where_epochs_are_alike():
    pipe = source(list(range(57))).flat_map(tagged).measure()
    for made in (pipe, pipe.shuffle(window=4), pipe.shuffle().map(noisy)):
        loader = Loader(made.batch(4), seed=SEED)
        assert [len(list(loader)), len(list(loader))] == [len(loader)] * 2 == [len(made.batch(4))] * 2
        assert len(Loader(made.batch(4, drop_last=True))) == len(made) // 4
    ranks = [Loader(pipe.batch(4), rank=rank, world_size=2) for rank in range(2)]
    assert [len(loader) for loader in ranks] == [len(list(loader)) for loader in ranks]
    with pytest.raises(TypeError, match="epochs differ"):  # ranks have other windows in each epoch
        len(Loader(pipe.shuffle().batch(4), rank=0, world_size=2))
    with pytest.raises(TypeError, match="epochs differ"):
        len(Loader(mix([pipe, pipe.map(noisy)], weights=[1, 2], stop=30).batch(4)))


class Counting:
    """Notes the processes that read each element."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, x: int) -> Any:
        (self.folder / f"{x}-{os.getpid()}").touch()
        return range(x % 3)

    def readers(self) -> list[tuple[int, int]]:
        """Elements and processes."""
        return sorted(tuple(map(int, path.name.split("-"))) for path in self.folder.iterdir())


class Slow(Counting):
    def __call__(self, x: int) -> Any:
        time.sleep(0.01)
        return super().__call__(x)


def test_a_loader_that_was_made_before_knows_its_length():
    pipe = source(list(range(20))).flat_map(tagged)
    loader = Loader(pipe.batch(4))
    with pytest.raises(TypeError, match="measure"):
        len(loader)
    pipe.measure()
    assert len(loader) == -(-len(pipe) // 4)


def test_workers_measure_each_element_once(tmp_path: Path):
    read = Slow(tmp_path)
    pipe = source(list(range(60))).flat_map(read)
    below = pipe.map(noisy).shuffle(window=7)
    below.measure(2)
    readers = read.readers()
    assert [x for x, _ in readers] == list(range(60))
    assert len({process for _, process in readers}) == 3, "this process begins, and two workers go on"
    assert len(pipe) == len(below) == len(pickle.loads(pickle.dumps(below))) == 60
    pipe.measure()
    assert read.readers() == readers, "it was measured again"
    with pytest.raises(TypeError, match="measure"):
        len(pipe.filter(bool))


def test_a_rank_measures_all_elements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    read = Slow(tmp_path)
    pipe = source(list(range(60))).flat_map(read).measure(2)
    assert [x for x, _ in read.readers()] == list(range(60))
    assert len(pipe) == 60


def test_a_function_of_count_is_called_by_the_workers_of_a_loader(tmp_path: Path):
    count = Slow(tmp_path)
    pipe = source(list(range(60))).flat_map(range_of, count=lambda x: len(count(x))).batch(8)
    loader = Loader(pipe, num_workers=2)
    readers = count.readers()
    assert [x for x, _ in readers] == list(range(60))
    assert len({process for _, process in readers}) == 3
    assert sum(len(batch) for batch in loader) == 60
    loader.close()
    assert count.readers() == readers


def range_of(x: int) -> Any:
    return range(x % 3)


def test_an_error_of_count_names_the_element():
    pipe = source([[1], 2, [3]]).flat_map(list, count=len)
    with pytest.raises(TypeError, match="has no len") as error:
        len(pipe)
    assert "in count= of .flat_map(list, count=...) in test_measure.py" in "".join(error.value.__notes__)
    assert "element 1 of source(list, 3 elements)" in "".join(error.value.__notes__)


@pytest.mark.parametrize(
    ("pipe", "why"),
    [
        (numbers(9).noise(noisy).flat_map(tagged).pipe, "draws random numbers"),
        (numbers(9).filter(lucky, random=True).pipe, "draws random numbers"),
        (source([[1, 2], [3]]).flat_map(list).pack(8), "which items come together"),
        (source([[1, 2], [3]]).flat_map(list).batch(8, size=int), 'which items come together.*leave ends="uneven"'),
    ],
)
def test_what_differs_between_epochs_cannot_be_measured(pipe: Pipe, why: str):
    with pytest.raises(InvalidError, match=why):
        pipe.measure()
    with pytest.raises(InvalidError, match=r"measure\(\) of the pipe \(not with \.pack or size=\)"):
        Loader(pipe, ends="pad")


def broken(x: int) -> Any:
    yield x
    if x == 7:
        raise OSError("the file of 7 cannot be read")


def test_an_element_that_cannot_be_read_is_an_error_of_measure():
    pipe = source(list(range(9))).flat_map(broken)
    with pytest.raises(OSError, match="the file of 7"):
        pipe.measure()
    with pytest.raises(InvalidError, match="measure"):
        Loader(pipe, ends="drop")


def test_a_named_cache_knows_the_lengths_that_other_programs_have_seen(tmp_path: Path):
    """No program has called measure()."""
    read, name = Counting(tmp_path), f"measured-{os.getpid()}"

    def made() -> Pipe:
        return source(list(range(20))).flat_map(read).cache("5MiB", name=name).map(noisy).shuffle(window=4).batch(3)

    try:
        with pytest.raises(InvalidError, match="measure"):
            Loader(made(), ends="pad")
        list(Loader(made(), num_workers=2))
        readers = read.readers()
        loaders = [Loader(made(), ends="pad", rank=rank, world_size=2) for rank in range(2)]
        assert len({sum(map(len, loader)) for loader in loaders}) == 1
        assert len(made().measure(2)) == -(-sum(x % 3 for x in range(20)) // 3)
        since = {x for x, process in read.readers() if (x, process) not in readers}
        assert len(since) <= 9, "more than looks at samples of a cache that was there"
    finally:
        Cache.attach(name).unlink()


def test_measure_fills_a_cache_on_the_way(tmp_path: Path):
    read = Counting(tmp_path)
    pipe = source(list(range(20))).flat_map(read).cache("16MiB").filter(bool).measure(2)
    readers = read.readers()
    loader = Loader(pipe.batch(4), num_workers=2)
    assert sum(len(batch) for batch in loader) == len(pipe)
    loader.close()
    anew = [one for one in read.readers() if one not in readers]
    assert len(anew) == 3, "they are compared, as a function that names a folder may read others now"
