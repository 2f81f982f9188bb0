"""Files with labels and tar shards, whose pictures a step of a pipe decodes: native workers give the batches of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from native_samples import folder_of_small, shards_of_small, tar_of
from pictures import encoded, picture

from stocached import Loader, Pipe, image, source

FILES = 12
CROP, FLIP = image.RandomResizedCrop(24), image.RandomHorizontalFlip()
BOTH: dict[str, Any] = {"fields": ["jpg", "cls"], "int64": ["cls"]}
SOURCES: dict[str, Callable[[Path], Pipe]] = {
    "files with labels": lambda root: source(folder_of_small(root, FILES), labels="folders"),
    "tar shards": lambda root: source(shards_of_small(root, FILES), **BOTH),
    "one field of tar shards": lambda root: source(shards_of_small(root, FILES), fields=["png;jpg"]),
}
CHAINS: dict[str, Callable[[Pipe], Pipe]] = {
    "several stages": lambda pipe: pipe.map(image.Decode()).shuffle().map(CROP).map(FLIP),
    "one Compose": lambda pipe: pipe.shuffle().map(image.Compose([image.Decode(fast=True), CROP, FLIP])),
    "no random step": lambda pipe: pipe.map(image.Decode(size=24, layout="chw")),
    "pictures in a cache": lambda pipe: pipe.map(image.Decode(size=30)).cache("8MiB").shuffle().map(CROP).map(FLIP),
    "pictures of several sizes in a cache": lambda pipe: pipe.map(image.Decode()).cache("8MiB").map(CROP),
    "files in a cache": lambda pipe: pipe.cache("8MiB").shuffle().map(image.Decode()).map(CROP).map(FLIP),
    "store": lambda pipe: pipe.map(image.Decode(short_side=30)).cache("8MiB", store="encoded").shuffle().map(CROP),
}


def plain(batch: Any) -> Any:
    return {name: value.tolist() for name, value in batch.items()} if isinstance(batch, dict) else batch.tolist()


def read(pipe: Pipe, **options: Any) -> tuple[list[Any], Any]:
    """The batches of two epochs, and the stats."""
    loader = Loader(pipe.batch(5), seed=3, **options)
    made = [plain(batch) for _ in range(2) for batch in loader]
    stats = loader.stats()
    loader.close()
    return made, stats


@pytest.mark.parametrize(
    ("name", "chain"),
    [
        (name, chain)
        for k, chain in enumerate(CHAINS)
        for name in ("files with labels", ("one field of tar shards", "tar shards")[k % 2])
    ],
)
def test_native_workers_give_the_same(name: str, chain: str, tmp_path: Path):
    pipe = CHAINS[chain](SOURCES[name](tmp_path))
    wanted, _ = read(pipe)
    native, stats = read(pipe, num_workers=2)
    assert native == wanted
    assert "native" in repr(Loader(pipe.batch(5), num_workers=2))
    assert read(pipe, num_workers=2, worker="process")[0] == wanted
    first, last = stats.stages[0], stats.stages[-1]
    assert (first.items, last.items) == (FILES if "cache" in str(pipe) else 2 * FILES, 6)
    assert [*map(plain, Loader(pipe.batch(5), seed=3))] == wanted[:3]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("form", ["folder", "tar"])
def test_damaged_and_other_files(form: str, workers: int, tmp_path: Path):
    good, other = encoded(picture(40, 30)), encoded(picture(40, 30), "BMP")
    members = {"0.jpg": good, "0.cls": b"0", "1.jpg": good[:500], "1.cls": b"0", "2.jpg": other, "2.cls": b"0"}
    if form == "tar":
        pipe = source(tar_of(tmp_path / "a.tar", members), **BOTH)
    else:
        (tmp_path / "a").mkdir()
        for name in ("0.jpg", "1.jpg", "2.jpg"):
            (tmp_path / "a" / name).write_bytes(members[name])
        pipe = source(tmp_path, labels="folders")
    for below in (pipe.map(image.Decode(size=20)), pipe.map(image.Decode(size=20)).cache("8MiB").map(FLIP)):
        with pytest.raises(image.DecodeError, match=r"a\.tar, sample 1|a/1\.jpg"):
            list(Loader(below.batch(1), num_workers=workers))
        loader = Loader(below.batch(3), num_workers=workers, bad_samples="skip")
        with pytest.warns(UserWarning, match=r"a\.tar, sample 1|a/1\.jpg"):
            (batch,) = loader
        assert [value.shape for value in batch.values()] == [(2, 20, 20, 3), (2,)]
        loader.close()


def test_what_native_workers_refuse(tmp_path: Path):
    shards = shards_of_small(tmp_path, FILES)
    for options in ({"fields": ["cls", "jpg"], "int64": ["cls"]}, {"fields": ["jpg", "cls"]}, {}):
        pipe = source(shards, **options).map(image.Decode(size=20)).batch(1)
        with pytest.raises(ValueError, match=r"not a Folder or Shards.* tar shards with fields=\[picture, number\]"):
            Loader(pipe, num_workers=2, worker="native")
        pictures = next(iter(Loader(pipe, num_workers=2)))["jpg"]
        assert pictures.shape == (1, 20, 20, 3)
    with pytest.raises(ValueError, match=r"\.map\(len\) does not begin with a Decode"):
        Loader(source(shards, **BOTH).map(len).batch(2), num_workers=2, worker="native")
