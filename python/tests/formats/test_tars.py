"""What tar shards and labelled files refuse. Their elements beside those of a server: test_addresses.py."""

from __future__ import annotations

import contextlib
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from helpers import python
from native_samples import tar_of

from stocached import BadSampleError, InvalidError, Loader, image, source
from stocached._common.checksum import crc32c
from stocached._shards.tar_index import SUFFIX, encoded, members_of


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for k in range(2):
        tar_of(tmp_path / f"{k}.tar", {f"{k}.jpg": b"picture", f"{k}.cls": b" 7\n", f"x{k}.cls": b"cat"})
    return tmp_path


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"fields": ["jpg", "cls"]},
            r"0\.tar: sample 1 has none of the fields jpg; missing='skip' skips it. It has cls$",
        ),
        ({"fields": "jpg"}, r"fields='jpg': give a list"),
        ({"fields": ["cls", ".CLS"]}, "each field once"),
        ({"fields": [";"]}, r"fields=\[';'\]: give a list"),
        ({"fields": {"cls"}}, r"fields=\{'cls'\}: give a list"),
        ({"fields": []}, r"fields=\[\]: give a list"),
        (
            {"fields": ["jpg"], "missing": "skip", "int64": ["cls"]},
            r"0\.tar: int64=\['cls'\], and its fields are \['jpg'\]",
        ),
        ({"missing": "drop", "fields": ["cls"]}, "missing='drop'"),
        ({"missing": "skip"}, "missing='skip' needs fields="),
        ({"columns": ["cls"]}, "files of tar take fields=, int64=, missing="),
    ],
)
def test_wrong_options(shards: Path, options: dict[str, Any], words: str):
    with pytest.raises(InvalidError, match=words):
        source(shards, **options)


def test_a_label_that_is_no_number(shards: Path):
    pipe = source(shards / "*.tar", fields=["cls"], int64=["cls"])
    assert pipe[0] == 7
    with pytest.raises(BadSampleError, match=r"1\.tar, sample x1: cls: no whole number of 64 bits: b'cat'"):
        pipe[3]
    loader = Loader(pipe.batch(2), bad_samples="skip")
    with pytest.warns(UserWarning, match="sample 1: .*no whole number"):
        assert [batch.tolist() for batch in loader] == [[7], [7]]
    assert loader.stats().bad_samples == 2


@pytest.mark.parametrize("workers", [0, 1])
def test_no_sample_of_a_changed_shard_is_left_out_as_bad(shards: Path, workers: int):
    loader = Loader(source(shards, fields=["cls"]).batch(2), num_workers=workers, bad_samples="skip")
    (shards / "1.tar").write_bytes(b"")
    with pytest.raises(InvalidError, match=r"1\.tar has changed since it was opened"):
        list(loader)


@pytest.mark.parametrize("text", [b"9223372036854775808", b"-9223372036854775809", b"1_0", b""])
def test_numbers_that_a_server_refuses(text: bytes, tmp_path: Path):
    pipe = source(
        tar_of(tmp_path / "a.tar", {"0.cls": text, "1.cls": b"-9223372036854775808\n"}), fields=["cls"], int64=["cls"]
    )
    with pytest.raises(BadSampleError, match="sample 0: cls: no whole number of 64 bits"):
        pipe[0]
    assert pipe[1] == -(2**63)


@pytest.mark.parametrize("options", [{}, {"int64": ["cls"]}, {"fields": ["cls"], "int64": ["cls"]}])
def test_a_shard_without_samples_comes_first(shards: Path, options: dict[str, Any]):
    with tarfile.open(shards / "-.tar", "w"):
        pass
    pipe = source(shards, **options)
    assert len(pipe) == len(source(shards / "[01].tar", **options)) == 4
    assert len(pipe.map(image.Decode(size=4))._stage.rows) == 4


def test_paths_and_compressed_shards(shards: Path):
    assert source(shards / "*.tar", format="paths")[1] == str(shards / "1.tar")
    for name, words in (("2.tar.gz", "gunzip -k"), ("2.tgz", "gunzip -k"), ("2.txz", "unxz -k")):
        (shards / name).write_bytes(b"")
        with pytest.raises(InvalidError, match=f"{name} is compressed.*{words}"):
            source(shards / name)


def test_labels_of_files(tmp_path: Path):
    for name in ("cat/a/1.txt", "dog/2.txt", ".hidden/3.txt"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(name)
    with pytest.warns(UserWarning, match=r"also \.hidden \(class 0, hidden\)"):
        pipe = source(tmp_path, labels="folders")
    assert [*pipe] == [{"data": b"cat/a/1.txt", "label": 1}, {"data": b"dog/2.txt", "label": 2}]
    assert (pipe.classes, pipe.targets) == ([".hidden", "cat", "dog"], [1, 2])
    assert f"{tmp_path}/dog/2.txt" in pipe._stage.where(1)
    with pytest.warns(UserWarning, match="cat"):
        assert source(f"{tmp_path}//dog//2.txt", labels="folders")[0]["label"] == 2
    (tmp_path / "4.txt").write_text("")
    (tmp_path / "-.txt").write_text("")
    with pytest.warns(UserWarning, match=": 2 files outside folders were left out|each folder counts"):
        assert [*source(tmp_path, labels="folders")] == [*pipe]
    for text, options, words in (
        (tmp_path / "*", {"labels": "folders"}, "no file in a folder of a class; 2 lie beside the folders"),
        (tmp_path, {"labels": "manifest"}, "labels='manifest' is not \"folders\""),
        (tmp_path, {"labels": "folders", "hidden": True}, "hidden are for files of a format"),
        (f"{tmp_path}/{{cat,dog}}/*", {"labels": "folders"}, "name several: .*/cat/, .*/dog/; join their pipes"),
    ):
        with pytest.raises(InvalidError, match=words):
            source(text, **options)


def test_a_pipe_that_lives_to_the_end_of_python(shards: Path):
    """Python empties modules that something holds, names with _ first."""
    python(
        "import sys\n"
        "from stocached import source\n"
        "from stocached._formats import local_file\n"
        "local_file.kept = source(sys.argv[1])\n"
        "sys.kept = local_file, local_file.kept[0]\n",
        shards / "0.tar",
    )


def test_hostile_numbers_of_an_index(tmp_path: Path):
    """With a right checksum. They count as no index, or the keys are damaged."""
    path = tmp_path / "a.tar"
    tar_of(path, {f"{k}.cls": b"%d" % k for k in range(9)})
    members = [[("cls", at, 1)] for at in range(512, 9 * 1024, 1024)]
    whole = encoded(os.fspath(path), [str(k) for k in range(9)], members)
    index, want = Path(f"{path}{SUFFIX}"), list(source(path))
    index.write_bytes(whole)
    assert list(source(path)) == want
    for at in range(16, len(whole), 4):
        for number in (0, 1, 2**31, 2**64 - 1):
            data = bytearray(whole)
            data[at : at + 8] = number.to_bytes(8, "little")
            data[12:16] = crc32c(bytes(data[16 : len(whole)])).to_bytes(4, "little")
            index.write_bytes(data)
            found = members_of(os.fspath(path))
            assert (found.places + found.sizes <= path.stat().st_size).all()
            with contextlib.suppress(ValueError):
                found.keys()
