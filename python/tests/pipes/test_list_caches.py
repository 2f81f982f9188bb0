"""Caches of the lists of pipes without an index: what they open, keep, share and refuse."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from stocached import (
    BadSampleError,
    Cache,
    FingerprintError,
    InvalidError,
    Loader,
    NondeterministicDatasetError,
    Pipe,
    mix,
    source,
)

FILES, ITEMS, BYTES = 200, 4, 20_000  # BYTES are an item's
QUARTER = (4 << 20) + FILES * ITEMS * (BYTES + 200) // 4  # 4 MiB are for the tables of a cache
WANTED = Counter((file, item) for file in range(FILES) for item in range(ITEMS))


class Reader:
    """Gives the items of a file, and notes in a log that it opened the file.

    slow: seconds, of one file in four. bullets: a folder. A read removes a file of it with this chance, and ends its
    process."""

    def __init__(self, log: Path, slow: float = 0.0, bullets: Path | None = None) -> None:
        self.log, self.slow, self.bullets = log, slow, bullets

    def __call__(self, path: str) -> Iterator[dict[str, Any]]:
        number = int(Path(path).name)
        with self.log.open("a") as log:
            log.write(f"{number}\n")
        if number % 4 == 0:
            time.sleep(self.slow)
        text = Path(path).read_bytes()
        for item in range(ITEMS):
            if item == 2 and self.bullets is not None:
                self._shoot()
            yield {"file": number, "item": item, "data": np.frombuffer(text[:4], np.uint8).repeat(BYTES // 4)}

    def _shoot(self) -> None:
        bullets = sorted(os.listdir(self.bullets))
        if bullets and os.urandom(1)[0] < 40:
            try:
                os.unlink(Path(self.bullets, bullets[0]))
            except FileNotFoundError:
                return
            os.kill(os.getpid(), signal.SIGKILL)


def files_in(folder: Path) -> list[str]:
    folder.mkdir()
    paths = [folder / f"{k:03d}" for k in range(FILES)]
    for k, path in enumerate(paths):
        path.write_bytes(k.to_bytes(4, "little"))
    return [str(path) for path in paths]


def opened(log: Path) -> list[int]:
    """The files that were opened since the last look."""
    numbers = [int(line) for line in log.read_text().split()] if log.exists() else []
    log.write_text("")
    return numbers


def check(item: dict[str, Any]) -> tuple[int, int]:
    number = int.from_bytes(item["data"][:: BYTES // 4].tobytes(), "little")
    assert number == item["file"]
    assert item["data"].shape == (BYTES,)
    return number, int(item["item"])


def read(loader: Loader) -> Counter[tuple[int, int]]:
    return Counter(
        check({name: column[k] for name, column in batch.items()})
        for batch in loader
        for k in range(len(batch["file"]))
    )


@pytest.mark.parametrize("policy", [None, "cost"])
def test_a_quarter_in_the_cache_saves_nearly_a_quarter_of_the_openings(tmp_path: Path, policy: Any):
    paths, log = files_in(tmp_path / "files"), tmp_path / "files" / "log"
    pipe = source(paths).flat_map(Reader(log)).cache(QUARTER, policy=policy)
    loader = Loader(pipe.shuffle(seed=1, window=8).batch(10), num_workers=2)
    assert len(opened(log)) <= 6  # three on trial, twice each
    for epoch in range(4):
        assert read(loader) == WANTED
        files = opened(log)
        assert len(files) == FILES if epoch == 0 else len(files) <= 0.78 * FILES, epoch
    stats = loader.stats()
    assert stats.hits >= 3 * 0.22 * FILES
    assert stats.hits + stats.misses == 4 * FILES
    assert (stats.stages[2].hits, stats.stages[2].misses) == (stats.hits, stats.misses)
    before = loader.stats()
    read(loader)
    since = loader.stats() - before
    assert since.stages[2].hits + since.stages[2].misses == FILES


def rank(paths: list[str], log: Path, name: str, number: int, epochs: int, answers: Any) -> None:
    pipe = source(paths).flat_map(Reader(log)).cache(QUARTER, name=name).shuffle(seed=1, window=8).batch(10)
    loader = Loader(pipe, num_workers=1, rank=number, world_size=2)
    answers.put([read(loader) for _ in range(epochs)])


def test_ranks_and_jobs_share_a_cache_by_its_name(tmp_path: Path):
    paths, log, name = files_in(tmp_path / "files"), tmp_path / "files" / "log", f"lists-{os.getpid()}"
    context = multiprocessing.get_context("forkserver")
    answers = context.Queue()
    ranks = [context.Process(target=rank, args=(paths, log, name, k, 2, answers)) for k in range(2)]
    try:
        for process in ranks:
            process.start()
        for one, other in zip(answers.get(timeout=300), answers.get(timeout=300)):
            assert one + other == WANTED
        for process in ranks:
            process.join(300)
        assert len(opened(log)) <= (1 + 0.78) * FILES + 2 * 9
        loader = Loader(source(paths).flat_map(Reader(log)).cache(QUARTER, name=name).batch(10), num_workers=2)
        assert read(loader) == WANTED
        assert len(opened(log)) <= 0.78 * FILES + 9  # 9 on trial, and compared with the cache
    finally:
        Cache.attach(name).unlink()


def test_the_costly_lists_stay(tmp_path: Path):
    paths, log = files_in(tmp_path / "files"), tmp_path / "files" / "log"
    pipe = source(paths).flat_map(Reader(log, slow=0.05)).cache(QUARTER, policy="cost")
    loader = Loader(pipe.batch(10), num_workers=2)
    for _ in range(2):
        assert read(loader) == WANTED
    opened(log)
    assert read(loader) == WANTED
    costly = sum(number % 4 == 0 for number in opened(log))
    assert costly <= 0.4 * FILES / 4  # 0.75 by chance; a busy machine makes others as slow at times


@pytest.mark.parametrize("policy", [None, "cost"])
def test_killed_workers_lose_and_double_nothing(tmp_path: Path, policy: Any):
    paths, log, bullets = files_in(tmp_path / "files"), tmp_path / "files" / "log", tmp_path / "bullets"
    bullets.mkdir()
    pipe = source(paths).flat_map(Reader(log, bullets=bullets)).cache(QUARTER, policy=policy).shuffle(seed=3, window=8)
    loader = Loader(pipe.batch(10), num_workers=2, restart_workers=True, persistent_workers=True)
    for epoch in range(3):
        for k in range(3):
            (bullets / str(k)).touch()
        assert read(loader) == WANTED
        assert len(os.listdir(bullets)) < 3, epoch
    loader.close()
    assert pipe._stage.above[0].kept.cache.verify() == []


def test_a_disk_keeps_what_memory_does_not(tmp_path: Path):
    paths, log = files_in(tmp_path / "files"), tmp_path / "files" / "log"
    (tmp_path / "disk").mkdir()

    def made() -> Loader:
        pipe = source(paths).flat_map(Reader(log)).cache(QUARTER, disk="64MiB", disk_dir=tmp_path / "disk")
        return Loader(pipe.batch(10), num_workers=2)

    loader = made()
    for _ in range(3):
        assert read(loader) == WANTED
    assert len(opened(log)) <= 1.2 * FILES + 6  # the disk may be slow, and drop some
    loader = made()
    opened(log)
    assert read(loader) == WANTED
    assert len(opened(log)) <= 0.2 * FILES


# ------------------------------------------------------------ values


def several(n: int) -> list[Any]:
    """n items of all kinds. The first and the second have the same bytes."""
    whole = np.arange(12, dtype=np.float64).reshape(3, 4)
    kinds = [
        whole, "ä text", {"a": [np.ones(3, np.int16), (n, None)], "b": {"c": whole[:, ::2]}}, b"bytes", {1, 2, "x"},
        Image.new("RGB", (5, 4), (n, 2, 3)), np.array(["a", None], object), 1.5, np.float32(2), whole.astype(">i4"),
        np.zeros((0, 3)), np.frombuffer(b"abcd", np.uint8),
    ]  # fmt: skip
    return kinds[: n % (len(kinds) + 1)]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tolist() == b.tolist()
    if isinstance(a, Image.Image):
        return a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(map(same, a.values(), b.values()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


NUMBERS = source(list(range(15)))
OTHERS = source(list(range(20, 30)))


@pytest.mark.parametrize(
    "made",
    [
        lambda side, cache: cache(side(NUMBERS)),
        lambda side, cache: cache(side(NUMBERS.shuffle(seed=1))),
        lambda side, cache: cache(side(NUMBERS) + side(OTHERS)),
        lambda side, cache: cache(side(NUMBERS)) + side(OTHERS),
        lambda side, cache: cache(mix([side(NUMBERS), side(OTHERS)], weights=[2, 1])),
        lambda side, cache: mix([cache(side(NUMBERS)), cache(side(OTHERS))], weights=[2, 1], stop=40),
        lambda side, cache: cache(side(NUMBERS).zip(side(NUMBERS))),
        lambda side, cache: cache(side(NUMBERS)).zip(side(NUMBERS)),
        lambda side, cache: cache(cache(side(NUMBERS)).filter(fine)),
        lambda side, cache: cache(side(cache(NUMBERS))),
    ],
)
def test_items_are_those_of_the_pipe_without_a_cache(made: Callable[[Any, Any], Pipe]):
    def side(pipe: Pipe) -> Pipe:
        return pipe.flat_map(several)

    wanted = list(made(side, lambda pipe: pipe))
    cached = made(side, lambda pipe: pipe.cache("8MiB"))
    for _ in range(2):
        assert same(list(cached), wanted)


def fine(item: Any) -> bool:
    return not isinstance(item, str)


KEPT = [np.zeros(9, np.uint8), {"x": np.zeros(9)}]


def test_items_are_the_programs_own():
    pipe = source([0, 1]).flat_map(lambda _: KEPT).cache("8MiB")
    for _ in range(3):
        for array, inner in zip(*[iter(pipe)] * 2):
            assert not array.any()
            assert not inner["x"].any()
            array += 1
            inner["x"] += 1
    assert not KEPT[0].any()


def test_equal_lists_may_have_other_bytes():
    """Such as sets, and texts that are one object or two."""
    first: list[str] = []

    def texts(n: int) -> list[str]:
        first.append("")
        text = f"a long text of {n}"
        return [text, text if len(first) % 2 else "".join(list(text))]

    made = [texts(1), texts(1)]
    assert made[0] == made[1]
    assert pickle.dumps(made[0]) != pickle.dumps(made[1])
    assert list(source([1, 2]).flat_map(texts).cache("8MiB")) == [*made[0], *texts(2)]


def long(n: int) -> Iterator[Any]:
    yield np.full((20 << 20) if n == 2 else 1000, n, np.uint8)


@pytest.mark.parametrize("policy", [None, "cost", "lru"])
def test_a_list_above_the_size_of_the_cache_is_given_and_not_kept(policy: Any):
    pipe = source(list(range(6))).flat_map(long).cache("6MiB", policy=policy)
    for _ in range(3):
        assert [int(item[-1]) for item in pipe] == list(range(6))
    stats = pipe._stage.kept.cache.stats()
    assert (stats.ready, stats.full, stats.hits) == (5, 3, 10)


def test_without_a_size_there_is_room_for_lists_like_the_first_ones():
    pipe = source(list(range(30))).flat_map(several).cache()
    list(pipe)
    stats = pipe._stage.kept.cache.stats()
    assert (stats.ready, stats.full) == (30, 0)


class Broken:
    """The second item of list 3 is bad."""

    def __init__(self, reads: Any) -> None:
        self.reads = reads

    def __call__(self, pair: tuple[int, int]) -> int:
        with self.reads.get_lock():
            self.reads.value += 1
        if pair == (3, 1):
            raise BadSampleError("it is torn")
        return pair[0] * 10 + pair[1]


def pairs(n: int) -> list[tuple[int, int]]:
    return [(n, k) for k in range(3)]


@pytest.mark.filterwarnings("ignore:stocached. a bad sample was left out:UserWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_item_costs_no_other_item_of_its_list(workers: int):
    reads = multiprocessing.Value("i", 0)
    pipe = source(list(range(8))).flat_map(pairs).map(Broken(reads)).cache("8MiB", allow_random=True).batch(2)
    loader = Loader(pipe, num_workers=workers, bad_samples="skip")
    for epoch in range(3):
        with reads.get_lock():
            reads.value = 0
        assert [int(n) for batch in loader for n in batch] == [
            n * 10 + k for n in range(8) for k in range(3) if (n, k) != (3, 1)
        ]
        assert reads.value <= 24 + 2 if epoch == 0 else reads.value == 5  # list 3 alone, to its error and then whole
    with pytest.raises(BadSampleError, match="torn"):
        list(Loader(pipe, num_workers=workers))


def without_ends(n: int) -> int:
    if n in (0, 9):
        raise BadSampleError("it is torn")
    return n


@pytest.mark.filterwarnings("ignore:stocached. a bad sample was left out:UserWarning")
def test_the_first_item_of_a_cache_that_a_stage_reads_may_be_bad():
    side = source(range(10)).map(without_ends).cache()
    loader = Loader((side + source(range(10, 12))).batch(2), bad_samples="skip")
    for _ in range(2):
        assert [int(n) for batch in loader for n in batch] == [*range(1, 9), 10, 11]


# ------------------------------------------------------------ what is refused


def test_another_chain_under_one_name_is_refused(tmp_path: Path):
    name, table = f"lists-other-{os.getpid()}", {"times": [1, 2]}
    paths, log = files_in(tmp_path / "files"), tmp_path / "files" / "log"

    def repeated(n: int) -> list[int]:
        return [n] * table["times"][1]

    def one(pipe: Pipe) -> Loader:
        return Loader(pipe.cache("8MiB", name=name).batch(4))

    def numbers() -> Pipe:
        return source(list(range(10)))

    made = one(numbers().flat_map(repeated))
    try:
        assert sum(len(batch) for batch in made) == 20
        list(one(numbers().shuffle(seed=3).flat_map(repeated)))  # only the order differs
        with pytest.raises(FingerprintError, match="code of the dataset"):
            one(numbers().flat_map(repeated).filter(fine))
        with pytest.raises(FingerprintError, match="sample 0 was compared, and its list of items differs"):
            one(source(list(range(1, 11))).flat_map(repeated))
        table["times"][1] = 3
        with pytest.raises(FingerprintError, match="its list of items differs"):
            one(numbers().flat_map(repeated))
    finally:
        Cache.attach(name).unlink()
    made = one(source(paths).flat_map(Reader(log)))
    try:
        list(one(source(paths).flat_map(Reader(log))))
        Path(paths[7]).write_bytes(b"another file")
        with pytest.raises(FingerprintError, match="data of the dataset"):
            one(source(paths).flat_map(Reader(log)))
    finally:
        Cache.attach(name).unlink()


def noisy(n: int, generator: Any) -> list[float]:
    return [generator.random()]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: source([1]).flat_map(noisy).cache(), NondeterministicDatasetError, "write it below .cache"),
        (lambda: source(noisy, parts=3).cache(), NondeterministicDatasetError, "noisy, parts=3.* draws random"),
        (lambda: source([1]).flat_map(pairs).cache(store="auto"), InvalidError, "leave store= and"),
        (lambda: source([1]).flat_map(pairs).cache(store="encoded"), InvalidError, "leave store= and"),
        (lambda: source([1]).flat_map(pairs).cache(variable=False), InvalidError, "leave store= and"),
        (lambda: source([1]).flat_map(pairs).shuffle(seed=1).cache(), InvalidError, "above the shuffle"),
    ],
)
def test_a_cache_that_could_not_do_what_it_says_is_refused_at_once(make: Any, error: Any, words: str):
    with pytest.raises(error, match=words):
        make()


def test_hidden_random_numbers_are_found_on_trial():
    numbers = np.random.default_rng(1)
    with pytest.raises(NondeterministicDatasetError, match=r"Write the random part below .cache"):
        list(source([1, 2]).flat_map(lambda n: [numbers.random()]).cache("8MiB"))


def test_hits_of_caches_above_a_zip_are_counted():
    left, right = (source([np.full(9, k + first) for k in range(30)]).cache("8MiB") for first in (0, 100))
    loader = Loader(left.shuffle(seed=1).zip(right.shuffle(seed=2)).batch(5), num_workers=2)
    for _ in range(3):
        assert sum(len(batch[0]) for batch in loader) == 30
    stats = loader.stats()
    assert (stats.hits, stats.misses) == (120, 60)
    caches = [one for one in stats.stages if ".cache" in one.stage]
    assert [(one.stage, one.hits, one.misses) for one in caches] == [(".cache(size='8MiB')", 60, 30)] * 2
