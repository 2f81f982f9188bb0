"""What is special about shards of Streaming."""

from __future__ import annotations

import json
import shutil
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mds_samples
import numpy as np
import pytest
from made import plain

from stocached import BadSampleError, InvalidError, Loader, UnsupportedError, source


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """One that Streaming's writer made."""
    with zipfile.ZipFile(Path(__file__).with_name("mds.zip")) as archive:
        archive.extractall(tmp_path)
    return tmp_path / getattr(request, "param", "raw")


def changed(folder: Path, change: Callable[[Any], Any]) -> None:
    """Changes the index."""
    index = json.loads((folder / "index.json").read_text())
    change(index)
    (folder / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("folder", ["encodings"], indirect=True)
def test_all_encodings(folder: Path):
    (found,) = source(folder)
    wanted = {name.replace(":", "_"): value for name, value in mds_samples.ENCODINGS.items()}
    assert plain(found) == plain(wanted)
    assert {name: type(value) for name, value in found.items()} == {name: type(value) for name, value in wanted.items()}
    assert all(value.flags.writeable for value in found.values() if isinstance(value, np.ndarray))


@pytest.mark.parametrize("folder", ["pickled"], indirect=True)
def test_pickles_are_not_read(folder: Path):
    for read in (lambda: source(folder), lambda: source(folder / "*.mds")):
        with pytest.raises(
            InvalidError, match=r"shard\.00000\.mds: column 'a' is pickled, and .*; name others in columns="
        ):
            read()
    assert list(source(folder, columns=["b"])) == [{"b": 2}]


def test_shards_without_their_index(folder: Path):
    (folder / "index.json").unlink()
    pipe = source(folder / "*.mds", columns=["cls"])
    assert [item["cls"] for item in pipe] == [*range(60)]


def test_shards_have_the_order_of_the_index(folder: Path):
    """As several indexes that were merged have it."""
    (folder / "2").mkdir()
    (folder / "shard.00000.mds").rename(folder / "2" / "shard.00000.mds")
    changed(folder, lambda index: index["shards"][0]["raw_data"].update(basename="2/shard.00000.mds"))
    changed(folder, lambda index: index["shards"].reverse())
    assert [item["cls"] for item in source(folder)] == [*range(40, 60), *range(20, 40), *range(20)]


@pytest.mark.parametrize("folder", ["zstd"], indirect=True)
def test_unpacked_shards_count_if_all_are_there(folder: Path):
    import zstandard

    packed = sorted(folder.glob("*.zstd"))
    for number, path in enumerate(packed):
        path.with_suffix("").write_bytes(zstandard.decompress(path.read_bytes()))
        assert ("8 elements, 60 items" in repr(source(folder))) == (number < len(packed) - 1)
    assert "60 elements" in repr(source(folder))
    packed[0].unlink()
    assert plain(list(source(folder))) == plain(mds_samples.SAMPLES)
    packed[0].with_suffix("").unlink()
    with pytest.raises(InvalidError, match=r"index\.json lists .*shard\.00000\.mds\.zstd, which is not there"):
        source(folder)


@pytest.mark.parametrize(
    ("folder", "extra"), [("zstd", "zstd"), ("snappy", "parquet"), ("br", "parquet")], indirect=["folder"]
)
def test_missing_packages_are_named(folder: Path, extra: str, monkeypatch: pytest.MonkeyPatch):
    from stocached._prepared import zstd

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr(zstd, "_functions", lambda: (_ for _ in ()).throw(UnsupportedError("none")))
    with pytest.raises(
        UnsupportedError, match=rf"is compressed with {folder.name}; run: pip install stocached\[{extra}\]"
    ):
        source(folder)


@pytest.mark.parametrize("folder", ["gz", "zstd", "bz2", "snappy", "br"], indirect=True)
def test_damaged_and_hostile_packed_shards(folder: Path):
    path = folder / f"shard.00000.mds.{folder.name}"
    data = path.read_bytes()
    for at in range(0, len(data), 37) if folder.name in ("gz", "bz2") else ():  # others have no checksum
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        with pytest.raises(BadSampleError, match=r"shard\.00000"):
            source(folder)[0]
    path.write_bytes(data)
    for size in (30, 1 << 60):  # it unpacks to far more, or to far less
        changed(folder, lambda index, size=size: index["shards"][0]["raw_data"].update(bytes=size))  # type: ignore[misc]
        with pytest.raises(BadSampleError, match=r"shard\.00000.*its samples: it does not unpack"):
            source(folder)[0]


@pytest.mark.parametrize("folder", ["gz"], indirect=True)
def test_hashes_of_packed_shards(folder: Path):
    size = shutil.copyfile(folder / "shard.00001.mds.gz", folder / "shard.00000.mds.gz").stat().st_size
    changed(folder, lambda index: index["shards"][0]["zip_data"].update(bytes=size))
    with pytest.raises(BadSampleError, match=r"its sha1 is not that of index\.json"):
        source(folder)[0]


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "bytes": (
        lambda shard: shard["raw_data"].update(bytes=7),
        r"00000\.mds has 1,540 bytes, and index\.json says 7; copy",
    ),
    "samples": (lambda shard: shard.update(samples=7), r"00000\.mds has 20 samples, and index\.json says 7"),
    "none": (lambda shard: shard.pop("samples"), r"index\.json: shard 0 of it is {"),
    "negative": (lambda shard: shard.update(samples=-1), r"index\.json: shard 0 of it is {"),
    "outside": (lambda shard: shard["raw_data"].update(basename="../raw/shard.00000.mds"), "shard 0 of it is {"),
    "absolute": (lambda shard: shard["raw_data"].update(basename="/etc/passwd"), "shard 0 of it is {"),
    "gone": (lambda shard: shard["raw_data"].update(basename="other.mds"), r"lists .*other\.mds, which is not there"),
    "version": (lambda shard: shard.update(format="csv"), r"of 'csv, mds'; version 2 of mds is read.*\*\.jsonl"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_damaged_and_hostile_indexes(folder: Path, change: str):
    do, words = CHANGES[change]
    changed(folder, lambda index: do(index["shards"][0]))
    with pytest.raises(InvalidError, match=words):
        source(folder)


def test_indexes_of_others_are_files(folder: Path):
    for text in ('{"chunks": []}', "[1]", "{", '{"version": 2, "shards": {"a": 1}}', "[" * 100_000):
        (folder / "index.json").write_text(text)
        assert len(source(folder, format="paths")) == 4
        with pytest.raises(InvalidError, match="several formats: 3 .mds, 1 .json"):
            source(folder)


HEADS: dict[str, tuple[int, bytes]] = {
    "count": (0, struct.pack("<I", 2**32 - 1)),
    "begin": (4, struct.pack("<I", 1)),
    "order": (8, struct.pack("<I", 2**32 - 1)),
    "end": (84, struct.pack("<I", 1541)),
    "columns": (88, b"}}}}}"),
}


@pytest.mark.parametrize("head", HEADS)
def test_damaged_and_hostile_heads(folder: Path, head: str):
    at, value = HEADS[head]
    path = folder / "shard.00000.mds"
    data = path.read_bytes()
    path.write_bytes(data[:at] + value + data[at + len(value) :])
    with pytest.raises(InvalidError, match=r"shard\.00000\.mds is no MDS shard that can be read: its head"):
        source(folder)
    path.write_bytes(data[: len(value)])
    with pytest.raises(InvalidError, match=r"shard\.00000\.mds"):
        source(path)


def shard(path: Path, columns: dict[str, str], *samples: bytes) -> Path:
    """A shard as its documentation says, with samples that no writer makes."""
    config = {
        "column_names": [*columns], "column_encodings": [*columns.values()], "column_sizes": [None] * len(columns)
    }  # fmt: skip
    head = json.dumps(config).encode()
    ends = np.cumsum([8 + 4 * len(samples) + len(head), *map(len, samples)])
    path.write_bytes(struct.pack(f"<{len(samples) + 2}I", len(samples), *ends) + head + b"".join(samples))
    return path


BAD: list[tuple[str, bytes, str]] = [
    ("str", b"\xff", "column 'a' is no str: .*can't decode"),
    ("int", b"1234567", "column 'a' is no int: buffer size"),
    ("int", bytes(16), "column 'a' is no int: too many values"),
    ("float16", b"", "column 'a' is no float16: not enough values"),
    ("json", b"[" * 100_000, "column 'a' is no json"),
    ("str_int", b"9" * 5000, "column 'a' is no str_int"),
    ("str_decimal", b"x", "column 'a' is no str_decimal"),
    ("ndarray", b"", "column 'a' is no ndarray"),
    ("ndarray", b"\7\4\1\1", "column 'a' is no ndarray: 7"),
    ("ndarray", b"\10\4\4", "column 'a' is no ndarray: cannot reshape"),
    ("ndarray:uint8", b"\xff" + b"\xff" * 7, "column 'a' is no ndarray:uint8: buffer is smaller"),
    ("ndarray:uint8", b"\7" + b"\xff" * 8 + b"1", "column 'a' is no ndarray:uint8: .*"),
    ("ndarray:uint8:3,3", bytes(8), "column 'a' is no ndarray:uint8:3,3: cannot reshape"),
    ("pil", struct.pack("<3I", 2**31, 2**31, 3) + b"RGB", "column 'a' is no pil: "),
    ("pil", struct.pack("<3I", 1, 1, 1) + b"P\0", "column 'a' is no pil: its mode is 'P', and L, LA"),
    ("list[pil]", struct.pack("<2I", 0, 2**32 - 1), "column 'a' is no list"),
    ("jpeg_array", struct.pack("<3I", 1, 9, 0), r"column 'a' is no jpeg_array: it has 12 bytes, and its values 17"),
]  # fmt: skip


@pytest.mark.parametrize(("encoding", "value", "words"), BAD)
def test_hostile_samples_leave_the_others(tmp_path: Path, encoding: str, value: bytes, words: str):
    made = source(shard(tmp_path / "a.mds", {"a": encoding}, struct.pack("<I", len(value)) + value))
    with pytest.raises(BadSampleError, match=rf"a\.mds, sample 0: {words}"):
        made[0]


def test_samples_that_do_not_go_with_their_columns(tmp_path: Path):
    made = source(shard(tmp_path / "a.mds", {"a": "bytes"}, b"\xff\xff\xff\xff", b"\1", b"\1\0\0\0ab"))
    for number, words in enumerate(["4 bytes, and its columns 4,294,967,299", "buffer of at least 4", "6 bytes.*5"]):
        with pytest.raises(BadSampleError, match=rf"a\.mds, sample {number}: .*{words}"):
            made[number]


def test_shards_that_do_not_say_their_columns(tmp_path: Path):
    path = shard(tmp_path / "a.mds", {"a": "bytes"}, b"\0\0\0\0")
    for key in (b"names", b"sizes"):
        (tmp_path / "b.mds").write_bytes(path.read_bytes().replace(key, b"other"))
        with pytest.raises(InvalidError, match=r"b\.mds does not say how its columns are written: {'"):
            source(tmp_path / "b.mds")


@pytest.mark.parametrize(
    "encoding", ["pkl", "new", "ndarray:float128", "ndarray:uint8:0", "ndarray:uint8:x", "bytes:1"]
)
def test_encodings_that_are_not_known(tmp_path: Path, encoding: str):
    path = shard(tmp_path / "a.mds", {"a": encoding, "b": "str"}, b"\0\0\0\0\1\0\0\0b")
    with pytest.raises(InvalidError, match=r"a\.mds: column 'a' is .*; name others in columns=, or write it as json"):
        source(path)
    assert source(path, columns=["b"])[0] == {"b": "b"}


def test_bad_samples_are_skipped(tmp_path: Path):
    path = shard(tmp_path / "a.mds", {"a": "str"}, b"\1\0\0\0a", b"\1\0\0\0\xff", b"\1\0\0\0c")
    with pytest.warns(UserWarning, match="sample 1"):
        (batch,) = Loader(source(path).batch(3), bad_samples="skip")
    assert batch["a"] == ["a", "c"]
