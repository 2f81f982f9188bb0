"""What is special about zip archives."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import encoded

from stocached import BadSampleError, InvalidError, Loader, image, source
from stocached._formats import archives


def archive(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as made:
        for name, data in members.items():
            made.writestr(name, data)
    return path


MEMBERS = {"a.txt": b"text", "b.bin": bytes(1000), "c/d.bin": b"abc" * 99}


@pytest.mark.parametrize("fast", [True, False])
def test_deflate_with_and_without_the_library_of_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: bool):
    noise = np.random.default_rng(0).bytes(100_000)
    members = {"0.bin": b"", "1.bin": b"x", "2.bin": noise, "3.bin": bytes(1 << 20), "4.bin": b"abc" * 999}
    path = archive(tmp_path / "a.zip", members)
    monkeypatch.setattr(archives, "_MOST_AT_ONCE", 64 << 20 if fast else -1)
    assert archives._inflate() is not None
    elements = archives.Zip(str(path))
    assert [elements[k]["bin"] for k in range(5)] == [*members.values()]
    data = path.read_bytes()
    at = data.index(noise[:64]) if noise[:64] in data else data.index(b"2.bin") + 100
    path.write_bytes(data[:at] + bytes(9) + data[at + 9 :])
    with pytest.raises(BadSampleError, match="checksum|unpack|has .* bytes"):
        elements[2]


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_methods_are_errors_that_name_the_member(tmp_path: Path, method: int):
    pipe = source(archive(tmp_path / "a.zip", MEMBERS, method))
    words = r"a\.zip, member b\.bin: it is compressed with (bzip2|lzma), and deflate is read; pack it again: zip -r"
    with pytest.raises(BadSampleError, match=words):
        pipe[1]


def patched(path: Path, signature: bytes, offset: int, value: bytes) -> None:
    """Writes into the header of the second member."""
    data = bytearray(path.read_bytes())
    at = data.index(signature, data.index(signature) + 4) + offset
    data[at : at + len(value)] = value
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("signature", "offset", "value", "words"),
    [
        (b"PK\1\2", 8, b"\1\0", "member b.bin: it is encrypted; make an archive without a password"),
        (b"PK\1\2", 24, struct.pack("<L", 999), "member b.bin: it has 1,000 bytes, and the directory says 999"),
        (b"PK\1\2", 16, b"1234", "member b.bin: its checksum is wrong"),
        (b"PK\3\4", 30, b"x.bin", "member b.bin: its own header names it x.bin"),
        (b"PK\3\4", 0, b"xxxx", "member b.bin: there is no header of a member at byte"),
    ],
)
def test_damaged_members_are_errors_that_name_them(
    tmp_path: Path, signature: bytes, offset: int, value: bytes, words: str
):
    path = archive(tmp_path / "a.zip", MEMBERS)
    patched(path, signature, offset, value)
    pipe = source(path)
    assert [pipe[0]["txt"], pipe[2]["bin"]] == [b"text", b"abc" * 99]
    with pytest.raises(BadSampleError, match=words):
        pipe[1]
    with pytest.warns(UserWarning, match="b.bin"):
        assert list(Loader(pipe.map(key).batch(3), bad_samples="skip")) == [["a", "c/d"]]


def key(member: dict[str, Any]) -> str:
    return str(member["__key__"])


@pytest.mark.parametrize(
    ("signature", "offset", "value", "words"),
    [
        (b"PK\1\2", 24, struct.pack("<L", 4_000_000_000), "member b.bin cannot have 4,000,000,000 bytes, packed"),
        (b"PK\1\2", 42, struct.pack("<L", 4_000_000_000), "member b.bin cannot have .* at byte 4,000,000,000"),
        (b"PK\1\2", 28, b"\xff\xff", "its directory has 2 members, and its end says 3"),
        (b"PK\1\2", 0, b"xxxx", "member 1 of 3 is not in its directory"),
    ],
)
def test_hostile_directories_are_errors(tmp_path: Path, signature: bytes, offset: int, value: bytes, words: str):
    path = archive(tmp_path / "a.zip", MEMBERS)
    patched(path, signature, offset, value)
    with pytest.raises(InvalidError, match=f"a.zip is no zip archive that can be read: {words}"):
        source(path)


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [
        (10, struct.pack("<H", 2), "3 members, and its end says 2"),
        (10, struct.pack("<H", 60_000), "directory of 60,000 members cannot have"),
        (12, struct.pack("<L", 4_000_000_000), "cannot have 4,000,000,000 bytes"),
        (16, struct.pack("<L", 4_000_000_000), "at byte 4,000,000,000"),
        (4, struct.pack("<H", 3), "a part of several; join them: zip -s 0"),
        (0, b"xxxx", "no directory at its end: is the file whole"),
    ],
)
def test_hostile_ends_are_errors(tmp_path: Path, at: int, value: bytes, words: str):
    path = archive(tmp_path / "a.zip", MEMBERS)
    data = path.read_bytes()
    path.write_bytes(data[: at - 22] + value + data[len(data) - 22 + at + len(value) :])
    with pytest.raises(InvalidError, match=words):
        source(path)


def test_archives_of_64_bits_and_with_bytes_before_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As of more members than 16 bits count, and of more bytes than 32 bits count, after a program that unpacks them."""
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 5)
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 50)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        for number in range(9):
            file.writestr(zipfile.ZipInfo(f"{number:05}.bin"), bytes(60 * number))
    assert made.getvalue().count(b"PK\6\6") == 1
    (tmp_path / "a.zip").write_bytes(b"PK\3\4" + b"#" * 100 + made.getvalue())
    assert [len(member["bin"]) for member in source(tmp_path / "a.zip")] == [60 * number for number in range(9)]


def test_a_comment_may_have_the_bytes_of_an_end(tmp_path: Path):
    path = archive(tmp_path / "a.zip", MEMBERS)
    with zipfile.ZipFile(path, "a") as file:
        file.comment = b"PK\5\6" + bytes(30)
    assert len(source(path)) == 3
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(InvalidError, match="a.zip"):
        source(path)
    path = archive(tmp_path / "b.zip", MEMBERS)
    path.write_bytes(path.read_bytes() + b"more")
    assert len(source(path)) == 3


def test_names_may_begin_with_the_working_folder(tmp_path: Path):
    """As bsdtar writes them."""
    pipe = source(archive(tmp_path / "a.zip", {"./a.txt": b"1", "./.b.txt": b"2", "./c/.d/e.txt": b"3", ".f": b"4"}))
    assert list(pipe) == [{"__key__": "./a", "txt": b"1"}]


def test_members_that_cannot_be_read_leave_the_others(tmp_path: Path):
    """bzip2 packs zeros 200,000 times, and deflate 1,032."""
    path = archive(tmp_path / "a.zip", {"a.bin": bytes(1 << 20)}, zipfile.ZIP_BZIP2)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("c.txt", "1", zipfile.ZIP_STORED)
    pipe = source(path)
    assert pipe[1]["txt"] == b"1"
    with pytest.raises(BadSampleError, match=r"member a\.bin: it is compressed with bzip2"):
        pipe[0]


def test_names_of_old_archives(tmp_path: Path):
    path = archive(tmp_path / "a.zip", {"xx.txt": b"1"})
    path.write_bytes(path.read_bytes().replace(b"xx.txt", b"\x81\x82.txt"))
    with zipfile.ZipFile(path) as file:
        assert file.namelist() == ["üé.txt"]
    assert source(path)[0] == {"__key__": "üé", "txt": b"1"}


def test_pictures_decode_and_become_tars(tmp_path: Path):
    pixels = [np.full((8, 8, 3), 9 * number, np.uint8) for number in range(12)]
    files = {f"class{number % 3}/{number:02}.png": encoded(each, "PNG") for number, each in enumerate(pixels)}
    pipe = source(archive(tmp_path / "photos.zip", files))
    for batch in Loader(pipe.map(image.Decode(size=8)).cache("16MiB").batch(12), num_workers=1):
        assert (batch["png"] == np.stack(pixels)).all()
        assert batch["__key__"][4] == "class1/04"
    written = pipe.write(tmp_path / "tars", format="tar")
    assert written[4]["png"] == files["class1/04.png"]
