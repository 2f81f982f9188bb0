"""decode=True: files of several kinds, whose names say what they are, and which of them are one item."""

from __future__ import annotations

import json
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import python
from pictures import encoded

from stocached import BadSampleError, FingerprintError, InvalidError, Loader, source
from stocached._image import codecs

PIXELS = [np.full((8, 8, 3), 9 * k, np.uint8) for k in range(12)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures with masks, classes and notes of some; a folder whose name begins as a stem does; files without partners."""
    made = tmp_path / "made"
    (made / "cats" / "01.more").mkdir(parents=True)
    for k, pixels in enumerate(PIXELS):
        stem = made / "cats" / f"{k:02}"
        stem.with_suffix(".JPG").write_bytes(encoded(pixels))
        stem.with_suffix(".seg.png").write_bytes(encoded(pixels, "PNG"))
        stem.with_suffix(".cls").write_text(f"{k}\n")
        if k % 2:
            stem.with_suffix(".json").write_text(json.dumps({"k": k}))
    (made / "cats" / "01.more" / "x.txt").write_text("é")
    (made / "cats" / "01.pickle").write_bytes(pickle.dumps(os.getcwd))
    (made / "cats" / "thumb").write_bytes(encoded(PIXELS[1], "WEBP", lossless=True))
    (made / "__meta__").mkdir()
    (made / "__meta__" / "x.txt").touch()
    (made / ".hidden.txt").touch()
    return made


def test_files_of_one_stem_are_one_item(folder: Path):
    pipe = source(folder, decode=True)
    assert len(pipe) == 14
    items = {item["__key__"]: item for item in pipe}
    assert [*items] == [
        *(f"cats/{k:02}" for k in range(2)),
        "cats/01.more/x",
        *(f"cats/{k:02}" for k in range(2, 12)),
        "cats/thumb",
    ]
    one = items["cats/01"]
    assert [*one] == ["__key__", "jpg", "cls", "json", "pickle", "seg.png"]
    assert (one["cls"], one["json"], one["pickle"]) == (1, {"k": 1}, pickle.dumps(os.getcwd))
    assert np.array_equal(one["seg.png"], PIXELS[1])
    assert np.abs(one["jpg"].astype(int) - PIXELS[1]).max() <= 2
    assert items["cats/01.more/x"] == {"__key__": "cats/01.more/x", "txt": "é"}
    assert np.array_equal(items["cats/thumb"]["data"], PIXELS[1])
    assert "json" not in items["cats/02"]  # it has none
    assert "made/cats/01" in source(folder, decode=True)._stage.where(1)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_reads_them(folder: Path, workers: int, cache_name: str):
    def batches() -> list[Any]:
        pipe = source(folder / "**" / "*.{seg.png,cls}", decode=True).cache("16MiB", name=cache_name).shuffle(seed=1)
        return [*Loader(pipe.batch(4), num_workers=workers)]

    found = {key: value for batch in batches() for key, value in zip(batch["__key__"], batch["seg.png"], strict=True)}
    assert all(np.array_equal(found[f"cats/{k:02}"], pixels) for k, pixels in enumerate(PIXELS))
    assert sorted(number for batch in batches() for number in batch["cls"].tolist()) == [*range(12)]
    os.utime(folder / "cats" / "03.cls", ns=(1, 1))
    with pytest.raises(FingerprintError, match="changed"):
        batches()


@pytest.mark.parametrize("ending", ["tar", "zip"])
def test_archives_have_the_items_of_the_folder(folder: Path, tmp_path: Path, ending: str):
    wanted = {item["__key__"]: repr(item) for item in source(folder, decode=True)}
    del wanted["cats/thumb"]  # tars have it as no sample
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*") if path.is_file())
    with tarfile.open(tmp_path / "a.tar", "w") as tar, zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in sorted(names, key=lambda name: name.split(".")[0] + ("~" if "more" in name else "")):
            tar.add(folder / name, name)
            archive.write(folder / name, name)
    found = {item["__key__"]: repr(item) for item in source(tmp_path / f"a.{ending}", decode=True)}
    assert found == wanted


def test_the_index_of_a_server_has_the_keys(tmp_path: Path):
    items = [{"__key__": f"{'é' * (k % 3)}/{k:03}", "cls": k} for k in range(150)]
    pipe = source(items).write(tmp_path / "tars", format="tar")
    assert len(list((tmp_path / "tars").glob("*.stocached-index"))) == 1
    kept = list(source(tmp_path / "tars" / "*.tar", decode=True))
    for index in (tmp_path / "tars").glob("*.stocached-index"):
        index.unlink()
    assert kept == list(source(tmp_path / "tars" / "*.tar", decode=True)) == items
    assert len(pipe) == 150


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.jpg", b"no picture", "no picture"),
        ("a.png", encoded(PIXELS[0], "PNG")[:40], "the PNG file is cut off"),
        ("a.cls", b"cat", "no cls: invalid literal"),
        ("a.json", b"[" * 100_000, "no json: .*recursion"),
        ("a.txt", b"\xff", "no txt: .*utf-8"),
        ("a.npy", b"\x93NUMPY", "no npy"),
        ("a.npy", np.array([print]).dumps(), "no npy: .*pickle"),
        ("a", b"\xff\xd8\xff", "libjpeg"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, data: bytes, words: str):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BadSampleError, match=f"{tmp_path}/{name}: {words}"):
        source(tmp_path, decode=True)[0]
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(f"b/{name}", data)
    with pytest.raises(BadSampleError, match=rf"a\.zip, item b/a: member b/{name}: {words}"):
        source(tmp_path / "a.zip", decode=True)[0]
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / name, f"b/{name if '.' in name else 'a.jpg'}")
    with pytest.raises(BadSampleError, match=rf"a\.tar, sample b/a: {name[2:]}.*: {words}"):
        source(tmp_path / "a.tar", decode=True)[0]


@pytest.mark.parametrize(
    ("names", "make", "words"),
    [
        (["1.JPG", "1.jpg"], lambda p: source(p, decode=True), r"1 has two files of the ending jpg, such as 1\.jpg"),
        ([f"a.{k}.jpg" for k in range(65)], lambda p: source(p, decode=True), "a has more than 64 files.*first dot"),
        (["1.jpg", "a.tar"], lambda p: source(p, decode=True), r"a\.tar is an archive among other files.*\*\*/\*\.tar"),
        (["a.tar.gz"], lambda p: source(p / "*", decode=True), r"a\.tar\.gz is compressed.*unpack it"),
        (["a.csv"], lambda p: source(p, decode=True), "csv is read without it"),
        (["__a__/b.txt"], lambda p: source(p, decode=True), "has no file of an item"),
        (["a.jpg"], lambda p: source(p, decode=True, format="zip"), "format= does not go with it"),
        (["a.jpg"], lambda p: source(p, decode=True, columns=["a"]), "columns= does not go with it"),
        (["a.jpg"], lambda p: source(p, decode=224), "decode=224 is neither True nor False"),
        (["a.jpg"], lambda p: source([p], decode=True), "decode= goes with a text"),
        (["a.b"], lambda p: source(p / "*.jpg", decode=True), "no file in"),
    ],
)
def test_mistakes(tmp_path: Path, names: list[str], make: Callable[[Path], Any], words: str):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(InvalidError, match=words):
        make(tmp_path)


def test_pillow_is_never_needed(folder: Path):
    """And steps of pictures change the first picture."""
    if not codecs.pixels():
        pytest.skip("this installation decodes by Pillow")
    (folder / "a.gif").write_bytes(b"GIF89a")
    said = python(
        "import sys\n"
        "sys.modules['PIL'] = None\n"
        "from stocached import image, source\n"
        "assert {item.get('gif') for item in source(sys.argv[1], decode=True)} == {None, b'GIF89a'}\n"
        "print(source(sys.argv[1] + '/**/*.JPG', decode=True).map(image.Resize((4, 4)))[0]['jpg'].shape)\n",
        folder,
    )
    assert said.stdout == "(4, 4, 3)\n"
