"""Neighbouring stages of steps of stocached.image are one call, and their items those of a Compose."""

from __future__ import annotations

import contextlib
import pickle
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import outcomes
from native_samples import tar_of
from pictures import difference, encoded, folder_of, picture

from stocached import InvalidError, Loader, NondeterministicDatasetError, Pipe, image, source

DECODE, CROP, FLIP = image.Decode(), image.RandomResizedCrop(24), image.RandomHorizontalFlip()
JITTER, ERASE = image.ColorJitter(0.4, 0.3), image.RandomErasing(value=7)
N = 9  # files


class Alone:
    """A step that stands alone: a function of the program."""

    def __init__(self, step: Any) -> None:
        self.step = step

    def __call__(self, item: Any, generator: Any) -> Any:
        return self.step(item, generator)


class Without(Alone):
    """One that draws nothing, and so counts as no random stage."""

    def __call__(self, item: Any) -> Any:  # type: ignore[override]
        return self.step(item)


def alone(step: Any) -> Any:
    draws = getattr(step, "random", False)
    return (Alone if draws else Without)(step)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("files")
    for k in range(N):
        data = encoded(picture(90 + k, 70, seed=k), "PNG" if k == 3 else "JPEG", orientation=1 + k % 8)
        (folder / f"{k}.jpg").write_bytes(data)
    return sorted(map(str, folder.iterdir()))


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory, paths: list[str]) -> list[str]:
    """As webdataset writes them."""
    folder = tmp_path_factory.mktemp("tars")
    for number in range(3):
        members = {}
        for path in paths[number::3]:
            members |= {f"{Path(path).stem}.jpg": Path(path).read_bytes(), f"{Path(path).stem}.cls": b"%d" % number}
        tar_of(folder / f"{number}.tar", members)
    return sorted(map(str, folder.iterdir()))


def read(path: str) -> Iterator[dict[str, Any]]:
    with tarfile.open(path) as tar:
        for jpg, cls in zip(*[iter(tar)] * 2):
            yield {
                "__key__": jpg.name,
                "jpg": tar.extractfile(jpg).read(),  # type: ignore[union-attr]
                "cls": int(tar.extractfile(cls).read()),  # type: ignore[union-attr]
            }


def pairs(path: str) -> list[tuple[Any, int]]:
    return [(Path(path).read_bytes(), k) for k in range(2)]


def large(item: Any) -> bool:
    return bool(item["jpg"].mean() > 110)


def brighter(item: Any) -> Any:
    return item | 3


Make = Callable[[Any, Any, Callable[[Any], Any]], Pipe]
CHAINS: dict[str, Make] = {
    "indexed": lambda paths, tars, f: source(paths).map(f(DECODE)).map(f(CROP)),
    "random stages": lambda paths, tars, f: source(paths).map(f(DECODE)).map(f(CROP)).map(f(FLIP)).map(f(JITTER)),
    "shuffled": lambda paths, tars, f: source(paths).map(f(DECODE)).shuffle(seed=1).map(f(CROP)).map(f(ERASE)),
    "weights": lambda paths, tars, f: (
        source(paths).shuffle(weights=range(1, N + 1), seed=2).map(f(DECODE)).map(f(CROP)).map(f(FLIP))
    ),
    "cached": lambda paths, tars, f: (
        source(paths).map(f(DECODE)).map(f(image.Resize((40, 30)))).cache("8MiB").map(f(CROP)).map(f(FLIP))
    ),
    "tars": lambda paths, tars, f: (
        source(tars).flat_map(read).shuffle(window=2).map(f(DECODE)).map(f(CROP)).map(f(FLIP))
    ),
    "cached tars": lambda paths, tars, f: (
        source(tars).flat_map(read).map(f(DECODE)).map(f(image.Resize(40))).cache("8MiB").map(f(CROP)).map(f(JITTER))
    ),
    "filtered": lambda paths, tars, f: (
        source(tars).flat_map(read).map(f(DECODE)).map(f(CROP)).filter(large).map(f(FLIP)).map(f(ERASE))
    ),
    "pairs": lambda paths, tars, f: source(paths).flat_map(pairs).map(f(DECODE)).map(f(CROP)).map(f(FLIP)),
    "lists of items": lambda paths, tars, f: (
        source(paths).map(f(DECODE)).map(f(CROP)).flat_map(lambda item: [item, item]).map(f(FLIP)).map(f(ERASE))
    ),
    "counted": lambda paths, tars, f: source(paths).flat_map(pairs, count=2).map(f(DECODE)).map(f(CROP)),
    "others between": lambda paths, tars, f: (
        source(paths).map(f(DECODE)).map(f(CROP)).map(brighter).map(f(FLIP)).map(f(image.CenterCrop(20))).map(f(JITTER))
    ),
    "zip": lambda paths, tars, f: (
        source(paths).map(f(DECODE)).map(f(CROP)).zip(source(paths).map(f(DECODE)).map(f(CROP)).map(f(FLIP)))
    ),
    "Compose": lambda paths, tars, f: (
        source(paths)
        .map(f(image.Compose([DECODE, image.Resize(60)])))
        .map(f(image.Compose([CROP, FLIP])))
        .map(f(image.Compose([image.ToDtype("float32", scale=True), ERASE])))
    ),
}


def batches(pipe: Pipe, workers: int = 0, **options: Any) -> list[Any]:
    loader = Loader(pipe.batch(4), num_workers=workers, seed=5, **options)
    made = [plain(batch) for _ in range(2) for batch in loader]
    loader.close()
    return made


def plain(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: plain(value) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)) and not isinstance(batch[0], (str, int)):
        return [plain(value) for value in batch]
    return batch.tolist() if hasattr(batch, "tolist") else batch


@pytest.mark.parametrize("name", CHAINS)
def test_items_are_those_of_the_steps_one_by_one(name: str, paths: list[str], tars: list[str]):
    """Each random stage draws what it draws alone, and the loader what the pipe has without one."""
    pipe, expected = CHAINS[name](paths, tars, lambda step: step), CHAINS[name](paths, tars, alone)
    right = batches(expected)
    assert batches(pipe) == right
    assert batches(pickle.loads(pickle.dumps(pipe)) if name == "tars" else pipe, 2) == right
    one, other = ([plain(item) for item in made] for made in (pipe, expected))
    assert one == other


@pytest.mark.parametrize("at", [0, 2])
def test_several_random_stages_run_in_native_workers(tmp_path: Path, at: int):
    """A shuffle may stand between them. at: how many stand above it."""
    folder_of(tmp_path, {"a": 4, "b": 4}, (50, 40))
    steps = [CROP, FLIP, image.CenterCrop(20), JITTER]

    def chain(dataset: Any, of: Callable[[Any], Any]) -> Pipe:
        pipe = source(dataset)
        for k, step in enumerate(steps):
            pipe = (pipe.shuffle(seed=1) if k == at else pipe).map(of(step))
        return pipe.batch(3)

    for dataset in (image.Folder(tmp_path), image.Folder(tmp_path, size=40)):
        loader = Loader(chain(dataset, lambda step: step), num_workers=2, seed=5)
        assert loader.worker == "native"
        native = [plain(batch) for _ in range(2) for batch in loader]
        assert [stage.items for stage in loader.stats().stages] == [16] * 6 + [6]
        loader.close()
        python = Loader(chain(dataset, alone), num_workers=2, seed=5, worker="process")
        assert native == [plain(batch) for _ in range(2) for batch in python]
        python.close()


class Noise(image.CenterCrop):
    """Draws, unlike the step that it is derived from."""

    def __call__(self, item: Any, generator: Any = None) -> Any:
        return super().__call__(item) ^ np.uint8(generator.integers(256))


def test_a_step_that_a_program_derives_gets_the_generator_that_it_takes():
    pipe = source([np.zeros((9, 9, 3), np.uint8)] * 8).map(Noise(2))
    assert len({item[0, 0, 0] for item in pipe}) > 1
    with pytest.raises(NondeterministicDatasetError, match="Noise.* draws random numbers"):
        pipe.cache("8MiB")


def damaged() -> bytes:
    """Only its first rows decode."""
    data = encoded(picture(300, 200))
    return data[: len(data) // 2] + data[-2:]


class Top(image.RandomCrop):
    """Of the program: it stands alone."""


def ways(pipe: Pipe) -> list[Pipe]:
    """The pipe with an index, and without."""
    return [pipe, pipe.flat_map(lambda item: [item])]


def test_neighbouring_stages_decode_only_what_they_use():
    """So they are one call: damage outside of the box is not looked at."""
    from stocached import BadSampleError

    crop = image.RandomCrop((20, 300), padding=(0, 0, 0, -180))  # the crop has the first rows
    for pipe in ways(source([damaged()])):
        (item,) = pipe.map(DECODE).map(crop)
        assert item.shape == (20, 300, 3)
        for apart in (pipe.map(DECODE).cache("8MiB").map(crop), pipe.map(DECODE).map(Top((20, 300), (0, 0, 0, -180)))):
            with pytest.raises(BadSampleError, match="damaged"):
                list(apart)


def test_pixels_are_those_of_a_compose():
    """With fast=True, they are not those of the steps one by one."""
    data, steps = encoded(picture(300, 200)), [image.Decode(fast=True), image.Resize(40)]
    for pipe in ways(source([data])):
        (together,) = pipe.map(steps[0]).map(steps[1])
        (apart,) = pipe.map(steps[0]).map(alone(steps[1]))
        assert np.array_equal(together, image.Compose(steps)(data))
        assert 0 < difference(together, apart)[1] < 3
        (larger,) = pipe.map(image.Decode(max_pixels=60_000)).map(image.Resize((300, 300)))
        assert np.array_equal(larger, image.Resize((300, 300))(image.decode(data))), "the limit is that of one stage"


def test_a_stage_is_used_in_several_places(paths: list[str]):
    """One that waits for the stages below it is also one of its own."""
    for pipe in ways(source(paths)):
        decoded = pipe.map(DECODE)
        cropped, flipped = decoded.map(image.CenterCrop(30)), decoded.map(image.RandomHorizontalFlip(1))
        whole = [image.decode(path) for path in paths]
        assert all(map(np.array_equal, decoded, whole))
        assert all(map(np.array_equal, cropped, map(image.CenterCrop(30), whole)))
        assert all(map(np.array_equal, flipped, (pixels[:, ::-1] for pixels in whole)))
        assert [line[:12] for line in str(cropped).splitlines()[-2:]] == [".map(Decode(", ".map(CenterC"]


# ------------------------------------------------------------ errors and counts


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("indexed", [True, False])
def test_errors_name_their_stage(indexed: bool, workers: int, paths: list[str]):
    small = encoded(picture(30, 30))
    for bad, stage in ((b"no picture", ".map(Decode("), (small, ".map(RandomCrop(size=40"), (7, ".map(Decode(")):
        files = [Path(paths[0]).read_bytes(), bad]
        pipe = ways(source(files))[not indexed]
        below = pipe.map(image.Decode())
        below = below.map(image.RandomHorizontalFlip())
        below = below.map(image.RandomCrop(40))
        below = below.map(image.CenterCrop(20))
        line = {step: test_errors_name_their_stage.__code__.co_firstlineno + at for step, at in LINES.items()}
        with pytest.raises(Exception) as caught:  # noqa: PT011
            list(Loader(below.batch(1), num_workers=workers))
        error = caught.value  # a worker's error has its traceback, with the notes, as its cause
        said = "\n".join([str(error), *getattr(error, "__notes__", ()), str(error.__cause__)])
        assert f"stocached: in {stage}" in said, said
        assert f"in test_picture_stages.py, line {line[stage]}" in said
        assert "element 1 of source(list, 2 elements)" in said or isinstance(error, image.DecodeError)


LINES = {".map(Decode(": 7, ".map(RandomCrop(size=40": 9}  # after the decorators


def test_items_are_counted_in_each_stage(paths: list[str]):
    """Bad items count above the stage that fails. Seconds and bytes are those of the last one."""
    files = [Path(path).read_bytes() for path in paths]
    for workers in (0, 2):
        for given, counts in ((files, [N, N, N, N, N, 3]), ([*files, b"no picture"], [N + 1, N + 1, N, N, N, 3])):
            pipe = source(given).flat_map(lambda item: [item]).map(DECODE).map(CROP).map(FLIP).batch(4)
            loader = Loader(pipe, num_workers=workers, bad_samples="skip")
            with contextlib.nullcontext() if given is files else pytest.warns(UserWarning, match="left out"):
                assert sum(map(len, loader)) == N
            stages = loader.stats().stages
            assert [stage.items for stage in stages] == counts
            assert stages[2].bytes == stages[3].bytes == 0 < stages[4].bytes
            assert stages[4].seconds > 0
            loader.close()


@pytest.mark.parametrize("worker", ["process", "thread"])
def test_items_that_workers_read_again_after_errors_count_once(worker: Any):
    pictures = [np.zeros((4, 5) if k % 3 == 2 else (40, 40, 3), np.uint8) for k in range(12)]
    pipe = source(pictures).filter(lambda item: True).map(image.CenterCrop(24)).map(FLIP).batch(3)
    loader = Loader(pipe, num_workers=2, worker=worker)
    errors = [one for one in outcomes(iter(loader)) if isinstance(one, InvalidError)]
    assert len(errors) == 4
    assert [stage.items for stage in loader.stats().stages[:4]] == [12, 12, 8, 8]
    loader.close()
