"""What is special about npz and safetensors: rows without reading the whole, other types, and headers that do harm."""

from __future__ import annotations

import json
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import python

from stocached import InvalidError, Loader, SchemaError, source
from stocached._formats import arrays


def saved(path: Path, save: Any = np.savez, **values: Any) -> Path:
    save(path, **values)
    return path


def tensors(path: Path, header: Any, data: bytes = bytes(16)) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_one_array_and_names_of_arrays(tmp_path: Path):
    np.savez(tmp_path / "a.npz", np.arange(5))
    assert list(source(tmp_path / "a.npz"))[3] == {"arr_0": 3}
    path = saved(tmp_path / "b.npz", x=np.zeros((5, 2)), y=np.arange(5), n=3)
    with pytest.raises(
        InvalidError,
        match=r"b\.npz: .*x has 5, y has 5, n has one value\. Choose some, as columns=\['x', 'y'\]; format=\"paths\"",
    ):
        source(path)
    with pytest.raises(InvalidError, match=r"b\.npz has no column 'z'; it has \['x', 'y', 'n'\]"):
        source(path, columns=["z"])
    assert source(path, columns=["y"])[4] == {"y": 4}
    assert [*source(saved(tmp_path / "d.npz", **{".x": [1], "a/.y": [2], "": [3]}))] == [{".x": 1, "a/.y": 2, "": 3}]
    with pytest.raises(InvalidError, match=r"c\.npz has no arrays"):
        source(saved(tmp_path / "c.npz"))


def test_rows_may_be_changed(tmp_path: Path):
    for save in (np.savez, np.savez_compressed):
        pipe = source(saved(tmp_path / "a.npz", save, x=np.zeros((300_000, 2)), day=np.zeros(300_000, "M8[D]")))
        pipe[7]["x"][:] = 1
        assert pipe[7]["x"].tolist() == [0, 0]
        assert pipe[7]["day"] == np.datetime64("1970-01-01")
        with pytest.raises(SchemaError, match=r"'day': dtype .*M8\[D\].* cannot be cached.* \.astype"):
            next(iter(Loader(pipe.cache("64MiB").batch(2))))


def test_stored_rows_take_no_memory_and_compressed_ones_are_shared(tmp_path: Path):
    """Of 32 MiB. What is pickled for workers has no rows."""
    x = np.zeros((1 << 17, 64), np.float32)
    for save, most in ((np.savez, 8), (np.savez_compressed, 42)):
        python(
            "import resource, sys, pickle, numpy\n"
            "from stocached import source\n"
            "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10\n"
            "source(sys.argv[1]); before = peak()\n"
            "pipe = source(sys.argv[2])\n"
            "assert all(row['x'].shape == (64,) for row in map(pipe.__getitem__, range(0, len(pipe), 512)))\n"
            "assert peak() - before < int(sys.argv[3]), peak() - before\n"
            "assert len(pickle.dumps(pipe)) < 2000\n",
            saved(tmp_path / "small.npz", x=x[:5]),
            saved(tmp_path / "a.npz", save, x=x),
            most,
        )


def test_unpacked_arrays_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of all files. The line of the error mends it."""
    monkeypatch.setattr(arrays, "_MOST_HELD", 110_000)
    x = np.arange(20_000).astype(np.float32)
    first = saved(tmp_path / "a.npz", np.savez_compressed, x=x[:10_000])
    second = saved(tmp_path / "b.npz", np.savez_compressed, x=x, y=np.zeros(20_000, "i1"))
    pipe = source(first)
    with pytest.raises(
        InvalidError, match=r"b\.npz, array x: it is compressed or in Fortran's order, so its 80,\d+ bytes"
    ):
        source(second)
    assert source(second, columns=["y"])[3] == {"y": 0}
    turned = saved(tmp_path / "c.npz", x=np.asfortranarray(x.reshape(10_000, 2)), y=np.zeros(10_000))
    with pytest.raises(InvalidError, match=r"c\.npz, array x: .*; or leave it out by columns=") as raised:
        source(turned)
    line = re.search(r"lie: (.*); or", str(raised.value))
    assert line
    exec(line[1], {})
    assert source(turned)[3]["x"].tolist() == [6, 7]
    del pipe
    assert source(second)[3]["x"] == 3


class Fires:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("fired"),)


def test_pickles_are_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for save in (np.savez, np.savez_compressed):
        path = saved(tmp_path / "a.npz", save, x=np.arange(3), y=np.array([Fires()] * 3, object))
        assert b"fired" in zipfile.ZipFile(path).read("y.npy")
        with pytest.raises(InvalidError, match=r"a\.npz, array y: it has objects, which only pickle reads.*columns="):
            source(path)
        assert source(path, columns=["x"])[2] == {"x": 2}
    assert not (tmp_path / "fired").exists()


def npy(shape: str, dtype: str = "<f8", version: bytes = b"\1\0", data: bytes = bytes(16)) -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + version + struct.pack("<H" if version[0] == 1 else "<L", len(header)) + header + data


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    ("member", "words"),
    [
        (npy(f"({2**60},)"), r"its shape \(1152921504606846976,\) of float64 cannot be in \d+ bytes"),
        (npy(f"({2**60}, 0)"), "its 1,152,921,504,606,846,976 rows have no bytes"),
        (npy("(2, -1)"), r"its shape \(2, -1\) of float64 cannot"),
        (npy(f"({2**62}, {2**62})"), "its shape .* cannot be in"),
        (npy("(3,)"), r"its shape \(3,\) of float64 cannot"),
        (npy('(2,), """'), "no header: "),
        (npy("[2]"), "no header: "),
        (npy("(" * 200 + ")" * 200), "no header: "),
        (npy("(2,)", "O"), "it has objects"),
        (npy("(2,)", "nonsense"), "no header: "),
        (npy("(2,)", version=b"\3\0"), "it has version 3.0 of the format"),
        (b"\x93NUMPY\1\0\xff\xff{", "no header: "),
        (b"PK", "no header: "),
    ],
)
def test_hostile_headers_of_arrays_are_errors(tmp_path: Path, member: bytes, words: str, method: int):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as archive:
        archive.writestr("x.npy", member)
    with pytest.raises(InvalidError, match=rf"a\.npz, array x: {words}"):
        source(tmp_path / "a.npz")


def test_damage_of_a_compressed_array_is_found(tmp_path: Path):
    path = saved(tmp_path / "a.npz", np.savez_compressed, x=np.arange(1000))
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\1\2") - 400
    data[at : at + 4] = bytes(4)
    path.write_bytes(data)
    with pytest.raises(InvalidError, match=r"a\.npz, array x: (it does not unpack|its size or its checksum is wrong)"):
        source(path)
    patched = path.read_bytes().replace(struct.pack("<H", 8), struct.pack("<H", 14))
    path.write_bytes(patched)
    with pytest.raises(InvalidError, match=r"a\.npz.*: it is compressed with lzma"):
        source(path)


def test_an_array_of_zeros_is_unpacked_a_piece_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Deflate makes 1,000 zeros one byte. A read gives a piece at most."""
    monkeypatch.setattr(arrays, "_PIECE", 4096)
    longest = 0
    unpacked = arrays.Npz._unpacked

    def noted(self: Any, *arguments: Any) -> Any:
        nonlocal longest
        for piece in unpacked(self, *arguments):
            longest = max(longest, len(piece))
            yield piece

    monkeypatch.setattr(arrays.Npz, "_unpacked", noted)
    path = saved(tmp_path / "a.npz", np.savez_compressed, x=np.zeros(1 << 20, "u1"))
    assert len(source(path)) == 1 << 20
    assert 0 < longest <= 4096


def one(dtype: str = "F64", shape: Any = (2,), ends: Any = (0, 16)) -> dict[str, Any]:
    return {"x": {"dtype": dtype, "shape": shape, "data_offsets": ends}}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (one(shape=[2**60]), r"array x: its shape \(1152921504606846976,\) of F64 does not have 16 bytes"),
        (one(ends=[0, 2**60]), "its arrays end at byte 1,152,921,504,606"),
        (one(ends=[8, 16]), "x lies from byte 8 to 16, and the one before ends at 0"),
        (one(ends=[0, 8]), "its arrays end at byte .*, and the file has"),
        (one(ends=[0, 16.0]), "no whole number"),
        (one(shape=[-2]), "no whole number"),
        (one(shape=[True]), "no whole number"),
        (one(shape=2), "no header: TypeError"),
        (one(ends=[0]), "no header: "),
        (one(ends=[0, 0, 16]), "no header: "),
        (one(shape=[2] + [1] * 80), "array x: it has 81 dimensions, and 32 are the most"),
        (one("F4"), "array x: its type .*F4.* is none of BOOL, U8"),
        (one([]), "array x: its type .* is none of"),  # type: ignore[arg-type]
        (one() | {"y": one()["x"]}, "(x|y) lies from byte 0 to 16, and the one before ends at 16"),
        ([1], "no header: "),
        (b"[" * 100_000, "no header: "),
        (b'{"x": 1', "no header: "),
        (b'{"x": {"dtype": "F64", "shape": [' + b"9" * 5000 + b'], "data_offsets": [0, 16]}}', "no header: "),
        ({}, r"b\.safetensors has no arrays|its arrays end at byte"),
    ],
)
def test_hostile_headers_of_safetensors_are_errors(tmp_path: Path, header: Any, words: str):
    path = tensors(tmp_path / "b.safetensors", header)
    with pytest.raises(InvalidError, match=rf"b\.safetensors.*({words})"):
        source(path)


def test_a_header_that_is_longer_than_the_file_is_an_error(tmp_path: Path):
    path = tmp_path / "a.safetensors"
    for data in (b"", bytes(7), struct.pack("<Q", 2**60) + bytes(99), struct.pack("<Q", 2**64 - 1) + bytes(99)):
        path.write_bytes(data)
        with pytest.raises(
            InvalidError, match=r"a\.safetensors is no safetensors file that can be read: (it has . bytes|its header)"
        ):
            source(path)
    with path.open("r+b") as file:
        file.truncate(1 << 30)
        file.write(struct.pack("<Q", 1 << 29))
    with pytest.raises(InvalidError, match="its header cannot have 536,870,912 bytes"):
        source(path)


def test_numbers_that_numpy_lacks_are_their_bits(tmp_path: Path):
    header = {
        "a": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]},
        "b": {"dtype": "F8_E4M3FNUZ", "shape": [2, 4], "data_offsets": [8, 16]},
    }
    pipe = source(
        tensors(tmp_path / "a.safetensors", header, struct.pack("<4H", 0, 0, 0x3F80, 0x4000) + bytes(range(8)))
    )
    assert pipe[1]["a"].view(np.uint16).tolist() == [0x3F80, 0x4000]
    assert (pipe[1]["b"].dtype, pipe[1]["b"].tolist()) == (np.uint8, [4, 5, 6, 7])


def test_rows_are_weighed_and_joined_by_their_numbers(tmp_path: Path):
    """As a source with an index."""
    pipe = source(saved(tmp_path / "a.npz", x=np.arange(100)))
    drawn = [
        int(number) for batch in Loader(pipe.shuffle(weights=[0] * 90 + [1] * 10).batch(10)) for number in batch["x"]
    ]
    assert min(drawn) >= 90
    assert pipe.zip(source(np.arange(100) * 2))[7] == ({"x": 7}, 14)
