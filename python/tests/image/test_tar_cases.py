"""Odd tar shards, and patterns of shards: files in source/tar/testdata, which the tests of Go read too."""

from __future__ import annotations

import base64
import gzip
import json
import tarfile
from pathlib import Path

import pytest

from stocached import InvalidError, image
from stocached._shards import tar_index
from stocached._shards.braces import expanded

TESTDATA = Path(__file__).resolve().parents[3] / "source/tar/testdata"
CASES = json.loads((TESTDATA / "cases.json").read_text())
WILDCARDS = json.loads((TESTDATA / "wildcards.json").read_text())
PATTERNS = json.loads((TESTDATA / "braces.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_odd_shards_are_read_as_servers_read_them(tmp_path, case):
    path = tmp_path / "no.tar"
    shard = gzip.decompress(base64.b64decode(case["shard"]))
    path.write_bytes(shard)
    if "refused" in case:
        with pytest.raises(InvalidError, match=case["refused"]) as raised:
            image.Shards(path)
        str(raised.value).encode()  # can be printed
        return
    members = tar_index.members_of(str(path))
    found = []
    for first, end in zip(members.starts[:-1], members.starts[1:]):
        sample = {}
        for k in range(first, end):
            at = members.places[k]
            sample[members.fields[members.numbers[k]]] = shard[at : at + members.sizes[k]].decode()
        found.append(sample)
    assert found == case["samples"]


def test_patterns_have_the_paths_that_servers_find():
    for case in PATTERNS["expanded"]:
        assert expanded(case["pattern"]) == case["paths"], case
    for case in PATTERNS["refused"]:
        with pytest.raises(InvalidError) as raised:
            expanded(case["pattern"])
        assert case["error"] in str(raised.value), case


def test_wildcards_match_what_servers_match(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in WILDCARDS["files"]:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(bytes(1024))
    for case in WILDCARDS["matched"]:
        assert image.Shards(case["pattern"]).shards == case["paths"], case
    for case in WILDCARDS["refused"]:
        with pytest.raises(InvalidError) as raised:
            image.Shards(case["pattern"])
        assert case["error"] in str(raised.value), case


@pytest.mark.parametrize("pattern", ["{a,a}.tar", "{,./}a.tar", "{a,?}.tar"])
def test_a_pattern_that_names_a_shard_twice(tmp_path, monkeypatch, pattern):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.tar").write_bytes(bytes(1024))
    with pytest.raises(InvalidError, match="names a shard twice"):
        image.Shards(pattern)


def test_long_records_are_refused_before_they_are_read(tmp_path):
    """A header may say that its records are as long as the file."""
    path = tmp_path / "a.tar"
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 1 << 40
    path.write_bytes(header.tobuf(tarfile.GNU_FORMAT))
    with open(path, "r+b") as file:
        file.truncate(1 << 41)
    with pytest.raises(InvalidError, match=r"a\.tar is damaged at 512: a name or its records have 1099511627776 bytes"):
        image.Shards(path)
