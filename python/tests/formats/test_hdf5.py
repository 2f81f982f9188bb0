"""What is special about HDF5: which rows come together, other types, and files that h5py reads only with care."""

from __future__ import annotations

import fcntl
import gc
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Later, python, without
from made import plain
from processes import in_child

from stocached import BadSampleError, InvalidError, Loader, source
from stocached._formats import hdf5

h5py = Later("h5py")


def counts(path: Path, *columns: str) -> list[int]:
    return [*source(path, columns=[*columns] or None)._stage.lengths().tolist()]


def test_elements_are_chunks(tmp_path: Path):
    """A row of x has 1 KiB, and of text about 3 KiB. Elements have 256 KiB at least."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros((2000, 1024), np.uint8)
        file.create_dataset("short", data=np.zeros((2000, 1024), np.uint8), chunks=(10, 1024))
        file.create_dataset("long", data=np.zeros((2000, 1024), np.uint8), chunks=(300, 64))
        file.create_dataset("y", data=np.arange(2000, dtype=np.uint8), chunks=(900,))
        file["text"] = ["." * 3072] * 2000
    assert counts(path, "x")[:2] == [256, 256]
    assert counts(path, "short")[:2] == [260, 260]
    assert counts(path, "long") == [300] * 6 + [200]
    assert counts(path, "short", "long")[0] == 300
    assert counts(path, "short", "y") == [900, 900, 200]  # so that no chunk of y is read twice
    assert 60 <= counts(path, "text")[0] <= 90


def test_a_chunk_is_read_again_if_the_rows_beside_it_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hdf5, "_LARGE", 900 << 10)
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.zeros((1000, 1024), np.uint8), chunks=(300, 1024))
        file.create_dataset("y", data=np.arange(1000), chunks=(900,))
    assert counts(path)[0] == 300
    monkeypatch.setattr(hdf5, "_HUGE", 200 << 10)
    with pytest.warns(UserWarning, match=r"chunks of 300 rows, .*h5repack -l x:CHUNK=1024x1024 .*a\.h5 NEW-FILE"):
        assert source(path)[999]["y"] == 999


def test_rows_of_other_types(tmp_path: Path):
    values: dict[str, Any] = {
        "flag": np.array([True, False]),
        "complex": np.array([1j, 2]),
        "kind": np.array([0, 1]).astype(h5py.enum_dtype({"cat": 0, "dog": 1}, "u1")),
        "opaque": np.array([b"abc", b"d\0\0"], "V3"),
        "fixed": np.array([[b"a", b"bc"], [b"", b"\xc3\xa9"]]),
        "time": np.array(["2026-01-02", "2026-01-03"], "M8[s]").astype(h5py.opaque_dtype("M8[s]")),
        "half": np.array([0.5, 2], ">f2"),
        "boxes": np.zeros((2, 3), [("at", ">i2"), ("name", "S2")]),
    }
    with h5py.File(made(tmp_path / "a.hdf5", **values), "a") as file:
        ragged = file.create_dataset("ragged", (2,), h5py.vlen_dtype(np.float32))
        ragged[0] = [1, 2]
    first, second = source(tmp_path / "a.hdf5")
    assert plain(first["boxes"]) == {"at": ("<i2", [0, 0, 0]), "name": [["", "", ""]][0]}
    assert first["ragged"].tolist() == [1, 2]
    assert second["ragged"].tolist() == []
    assert [second[name] for name in ("flag", "complex", "kind", "opaque", "fixed", "half")] == [
        False, 2, 1, b"d\0\0", ["", "é"], 2
    ]  # fmt: skip
    assert second["time"] == np.datetime64("2026-01-03")
    assert second["half"].dtype == np.float16


def made(path: Path, **values: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, value in values.items():
            file[name] = value
    return path


def test_datasets_that_are_no_rows_are_errors_that_name_them(tmp_path: Path):
    path = made(tmp_path / "a.h5", x=np.zeros(1000), y=np.zeros((1000, 2)), z=np.zeros(7), one=1.0)
    with h5py.File(path, "a") as file:
        file["ref"] = np.array([file["x"].ref] * 7, h5py.ref_dtype)
        layout = h5py.VirtualLayout((1000,), "f8")
        layout[:] = h5py.VirtualSource(path, "x", (1000,))
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("outside", (1000,), "f8", external=[("/etc/passwd", 0, 8000)])
        file["link"] = h5py.ExternalLink(made(tmp_path / "other.h5", x=[1]), "x")
        file.create_dataset("empty", (1000,), "f8", chunks=(10,))
        file.create_dataset("vast", (2**57,), "f8", chunks=(10,))[3] = 1
        file.create_dataset("texts", (2**57,), h5py.string_dtype(), chunks=(10,))[3] = "a"
    for columns, words in (
        (
            ["x", "y", "z", "one"],
            r"need one length: x has 1,000, y .*, z has 7, one has one value.*columns=\['x', 'y'\]",
        ),
        (["one"], 'one has one value. Choose others; format="paths"'),
        (["ref"], "dataset ref: its values are references"),
        (["virtual"], "dataset virtual: its rows are in other files"),
        (["outside"], "dataset outside: its rows are in other files"),
        (["empty"], "dataset empty: none of its 1,000 rows was written; or leave it out by columns="),
        (["vast"], "dataset vast: its 144,115,188,075,855,872 rows of 8 bytes cannot be in a file of"),
        (["texts"], "dataset texts: its 144,115,188,075,855,872 rows of 16 bytes cannot be in a file of"),
        (["link"], "dataset link: its rows are in other files"),
        (["q"], r"no column 'q'; it has \['empty', 'one'"),
    ):
        with pytest.raises(InvalidError, match=rf"a\.h5.*{words}"):
            source(path, columns=columns)
    with pytest.raises(InvalidError, match=r"b\.h5 has no arrays"):
        source(made(tmp_path / "b.h5"))
    (tmp_path / "c.h5").write_bytes(path.read_bytes()[:2000])
    with pytest.raises(InvalidError, match=r"c\.h5 is no HDF5 file that can be read: .*truncated"):
        source(tmp_path / "c.h5")


def test_columns_name_a_dataset_by_any_of_its_links(tmp_path: Path):
    with h5py.File(made(tmp_path / "a.h5", **{"g/y": [1, 2]}), "a") as file:
        file["hard"], file["soft"], file["h"] = file["g/y"], h5py.SoftLink("/g/y"), file["g"]
        file["nothing"] = h5py.SoftLink("/gone")
    for name in ("g/y", "/g/y", "hard", "soft", "h/y"):
        assert source(tmp_path / "a.h5", columns=[name])[1] == {name: 2}
    for name in ("nothing", "g"):
        with pytest.raises(InvalidError, match=f"no column '{name}'"):
            source(tmp_path / "a.h5", columns=[name])


def test_groups_that_are_too_deep_are_an_error(tmp_path: Path):
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        group = h5py.h5g.open(file.id, b"/")
        for _ in range(5000):
            group = h5py.h5g.create(group, b"a")
    with pytest.raises(InvalidError, match=r"a\.h5 has groups in groups, more than 64 deep"):
        source(tmp_path / "a.h5")
    assert source(made(tmp_path / "b.h5", **{"a/" * 60 + "x": [1, 2]}))[1] == {"a/" * 60 + "x": 2}


def test_a_filter_that_is_missing_is_named(tmp_path: Path):
    with h5py.File(tmp_path / "a.h5", "w", libver="earliest") as file:
        file.create_dataset("x", data=np.arange(1000), compression="gzip")
        file["y"] = np.arange(1000)
    data = bytearray((tmp_path / "a.h5").read_bytes())
    at = data.index(b"deflate")
    data[at - 8 : at - 6], data[at : at + 7] = (32_015).to_bytes(2, "little"), b"unheard"
    (tmp_path / "a.h5").write_bytes(data)
    with pytest.raises(
        InvalidError, match=r"a\.h5, dataset x: h5py lacks its filter 32015, unheard.*pip install hdf5plugin"
    ):
        source(tmp_path / "a.h5")
    assert source(tmp_path / "a.h5", columns=["y"])[999] == {"y": 999}


def test_texts_that_are_no_utf_8_are_errors_that_name_the_rows(tmp_path: Path):
    path = made(tmp_path / "a.h5", x=np.array([b"a", b"\xff"]))
    with pytest.raises(BadSampleError, match=r"a\.h5, rows 0 to 1: h5py does not read the dataset x: .*utf-8"):
        source(path)[0]


def test_a_file_that_is_written_anew_gives_its_new_rows(tmp_path: Path):
    """In place, while it is open. HDF5 would give what it knows of the old one."""
    path = made(tmp_path / "a.h5", x=np.arange(100))
    old = source(path)
    assert old[1] == {"x": 1}
    path.write_bytes(made(tmp_path / "b.h5", x=np.arange(100, 400)).read_bytes())
    new = source(path)
    assert [new[1]["x"], len(new)] == [101, 300]
    with pytest.raises(InvalidError, match=r"a\.h5 has changed since it was opened"):
        old[1]
    assert new[299] == {"x": 399}


def test_the_program_may_open_the_file_too(tmp_path: Path):
    """HDF5 refuses a second opening with other locks, and one that writes."""
    path = made(tmp_path / "a.h5", x=np.arange(100))
    for locking in (None, False):
        with h5py.File(path, locking=locking):
            pipe = source(path)
            assert pipe[99] == {"x": 99}
            del pipe
            gc.collect()
    pipe = source(path)
    with h5py.File(path):
        assert pipe[98] == {"x": 98}
    del pipe
    gc.collect()
    made(path, x=np.arange(50))
    assert source(path)[49] == {"x": 49}


def test_a_forked_child_opens_files_of_its_own(tmp_path: Path):
    path = made(tmp_path / "a.h5", x=np.arange(100))
    pipe = source(path)
    assert [pipe[0]["x"], opened(path)] == [0, 1]
    in_child(lambda: [opened(path), pipe[99]["x"], opened(path)] == [0, 99, 1])
    assert [pipe[98]["x"], opened(path)] == [98, 1]


def opened(path: Path) -> int:
    """How many descriptors of a file this process has."""
    return sum(os.path.realpath(f"/proc/self/fd/{each}") == str(path) for each in os.listdir("/proc/self/fd"))


def test_a_file_that_another_program_writes_is_an_error(tmp_path: Path):
    path = made(tmp_path / "a.h5", x=np.arange(100))
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(OSError, match=r"unable to lock file.*a\.h5"):
            source(path)
        fcntl.flock(file, fcntl.LOCK_UN)
        assert source(path)[99] == {"x": 99}


def test_more_files_than_stay_open(tmp_path: Path):
    for k in range(40):
        made(tmp_path / f"{k:02}.h5", x=np.arange(10 * k, 10 * k + 10))
    pipe = source(tmp_path / "*.h5")
    loader = Loader(pipe.shuffle(seed=1).batch(7), num_workers=2)
    assert sorted(number for batch in loader for number in batch["x"].tolist()) == [*range(400)]
    assert len(hdf5._files._files) <= 16


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize(("chunks", "block"), [(None, 0), ((7,), 0), (None, 512), ((7,), 1024)])
def test_a_damaged_length_takes_no_memory(tmp_path: Path, chunks: tuple[int] | None, block: int, scheme: str):
    """HDF5 would take 4 GiB before it sees that the file is shorter."""
    if scheme:
        pytest.importorskip("fsspec", reason="fsspec is missing")
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", userblock_size=block) as file:
        for name, kind in (("text", h5py.string_dtype()), ("ragged", h5py.vlen_dtype(np.uint8))):
            found = file.create_dataset(name, (50,), kind, chunks=chunks)
            for k in range(50):
                found[k] = "x" * (1000 + k) if name == "text" else np.zeros(2000 + k, np.uint8)
    assert [len(row["text"]) for row in source(f"{scheme}{path}")] == [*range(1000, 1050)]
    data = path.read_bytes()
    for name, length in (("text", 1033), ("ragged", 2033)):
        (at,) = (  # after it stands where the value lies, which has its length too
            at
            for at in range(len(data) - 16)
            if data.startswith(struct.pack("<I", length), at)
            and 0 < struct.unpack_from("<Q", data, at + 4)[0] < len(data)
        )
        path.write_bytes(data[: at + 3] + b"\xff" + data[at + 4 :])
        with pytest.raises(
            BadSampleError, match=f"dataset {name}: it has a value of 4,278,19.* items, and the file has"
        ):
            source(f"{scheme}{path}", columns=[name])[33]


def test_reading_takes_the_memory_of_some_rows(tmp_path: Path):
    """Of 64 MiB."""
    made(tmp_path / "a.h5", x=np.zeros((256, 1 << 18), np.uint8), y=np.zeros(256))
    python(
        "import resource, sys, h5py\n"
        "from stocached import source\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10\n"
        "pipe = source(sys.argv[1])\n"
        "before = pipe[0] and peak()\n"
        "assert sum(len(row['x']) for row in pipe) == 64 << 20\n"
        "assert peak() - before < 16, peak() - before\n",
        tmp_path / "a.h5",
    )


def test_without_h5py_the_error_says_what_to_install(tmp_path: Path):
    said = without("h5py", "stocached.source(sys.argv[1])", made(tmp_path / "a.h5", x=[1]))
    assert "pip install stocached[hdf5]" in said
