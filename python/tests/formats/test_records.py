"""What is special about TFRecord files."""

from __future__ import annotations

import gzip
import os
import random
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made import plain
from tf_examples import SequenceExample, item_of, written

from stocached import BadSampleError, InvalidError, source
from stocached._formats import kept_index, records

# A file that the package tfrecord 1.14.6 wrote.
OF_TFRECORD = 2 * bytes.fromhex(
    "2600000000000000734fe3000a240a0d0a016212080a060a04746578740a130a0161120e1a0c0a0affffffffffffffffff011e330c86"
)


def varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])


def field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(data)) + data


def example(**values: bytes) -> bytes:
    """Of features as they are written."""
    entries = (field(1, field(1, name.encode()) + field(2, value)) for name, value in values.items())
    return field(1, b"".join(entries))


def test_values_are_those_of_protobuf(tmp_path: Path):
    """As protobuf writes numbers, as old programs do, one field each, and mixed."""
    draw, made = random.Random(1), list[bytes]()
    for _ in range(300):
        whole = [
            draw.choice([0, 127, 128, -1, 2**63 - 1, -(2**63), draw.getrandbits(40)]) for _ in range(draw.randrange(5))
        ]
        single = [b"\x08" + varint(number % 2**64) for number in whole]
        packed = field(1, b"".join(varint(number % 2**64) for number in whole))
        real = [struct.pack("<f", draw.choice([0, -1.5, np.inf, draw.random()])) for _ in range(draw.randrange(5))]
        texts = field(1, b"".join(field(1, draw.randbytes(draw.randrange(300))) for _ in range(draw.randrange(4))))
        made.append(
            example(
                a=field(3, draw.choice([packed, b"".join(single), packed + b"".join(single)])),
                b=field(2, draw.choice([field(1, b"".join(real)), b"".join(b"\x0d" + number for number in real)])),
                c=texts,
                d=draw.choice([b"", texts + field(3, packed), field(3, packed) + field(3, packed), field(2, b"")]),
                é=b"",
            )
            + draw.choice([b"", example(a=texts)])
        )
    found = list(source(written(tmp_path / "a.tfrecord", *made)))
    for data, item in zip(made, found):
        assert plain(item) == plain(item_of(data))
    assert all(value.flags.writeable for item in found for value in item.values() if isinstance(value, np.ndarray))
    assert list(source(tmp_path / "a.tfrecord", format="records")) == made


def test_files_of_other_programs(tmp_path: Path):
    (tmp_path / "a.tfrecord").write_bytes(OF_TFRECORD)
    assert [*map(plain, source(tmp_path / "a.tfrecord"))] == [plain({"a": np.int64(-1), "b": b"text"})] * 2
    assert written(tmp_path / "b", *source(tmp_path / "a.tfrecord", format="records")).read_bytes() == OF_TFRECORD


def test_damaged_and_hostile_examples(tmp_path: Path):
    """They are values or errors, of little memory. Checksums are right."""
    whole = example(
        a=field(3, field(1, varint(300) * 9)), b=field(2, field(1, bytes(40))), c=field(1, field(1, b"text"))
    )
    draw, made = (
        random.Random(2),
        [b"", b"\x0a", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x0b", b"\x0a\x02\x0a\x00"],
    )
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(len(data))] = draw.choice([0, 1, 8, 10, 0x7F, 0xFF, draw.randrange(256)])
        made.append(bytes(data[: draw.choice([len(data), draw.randrange(len(data))])]))
    pipe = source(written(tmp_path / "a.tfrecord", *made))
    assert (pipe[0], pipe[4]) == ({}, {"": None})
    bad = list[str]()
    for k, data in enumerate(made):
        try:
            item = pipe[k]
        except BadSampleError as error:
            bad.append(str(error))
        else:
            assert sum(np.asarray(value).nbytes for value in item.values() if value is not None) <= 8 * len(data)
            assert plain(item) == plain(item_of(data))
    assert 1000 < len(bad) < 3000
    words = re.compile(
        r'.*a\.tfrecord, record \d+ \(byte [\d,]+\): no tf.train.Example: .*format="records" gives its bytes'
    )
    assert all(map(words.match, bad))


def test_records_of_others_are_bytes(tmp_path: Path):
    made = SequenceExample()
    made.context.feature["a"].int64_list.value.append(1)
    made.feature_lists.feature_list["b"].feature.add().int64_list.value.append(2)
    written(tmp_path / "a.tfrecord", made.SerializeToString())
    with pytest.raises(
        BadSampleError, match=r'record 0 \(byte 0\): no tf.train.Example: it is a SequenceExample; format="rec'
    ):
        source(tmp_path / "a.tfrecord")[0]
    assert list(source(tmp_path / "a.tfrecord", format="records")) == [made.SerializeToString()]


def test_columns_that_a_record_lacks(tmp_path: Path):
    path = written(tmp_path / "a.tfrecord", example(a=b"", b=b""))
    assert list(source(path, columns=["b", "a"])[0]) == ["b", "a"]
    with pytest.raises(BadSampleError, match=r"it has no feature 'x'; it has \['a', 'b'\]"):
        source(path, columns=["a", "x"])[0]
    for wrong in ("a", []):
        with pytest.raises(InvalidError, match="columns=.*: give a list of names"):
            source(path, columns=wrong)


@pytest.mark.parametrize(
    ("at", "words"),
    [(0, "the checksum of its length"), (8, "the checksum of its length"), (12, "its checksum"), (31, "its checksum")],
)
def test_checksums(tmp_path: Path, at: int, words: str):
    """The place of a record is found first, so that a kept index changes nothing."""
    data = b"0123456789abcdef"
    path = written(tmp_path / "a.tfrecord", b"", data, data)
    time = path.stat().st_mtime_ns
    pipe = source(path, format="records")
    assert list(pipe) == [b"", data, data]
    whole = bytearray(path.read_bytes())
    whole[16 + at] ^= 1
    path.write_bytes(whole)
    os.utime(path, ns=(time, time))
    with pytest.raises(
        BadSampleError, match=rf"a\.tfrecord, record 1 \(byte 16\): {words}.* is wrong: the file is damaged"
    ):
        pipe[1]
    assert pipe[2] == data


def test_cut_and_damaged_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = written(tmp_path / "a.tfrecord", *(bytes(20 * k) for k in range(9))).read_bytes()
    starts = source(tmp_path / "a.tfrecord")._stage.data.files[0]._starts.tolist()
    monkeypatch.setattr(kept_index.OpenFile, "piece", 64)
    assert source(tmp_path / "a.tfrecord")._stage.data.files[0]._starts.tolist() == starts
    path = tmp_path / "b.tfrecord"
    for size in range(12, len(whole), 5):
        path.write_bytes(whole[:size])
        if size in starts:
            assert len(source(path)) == starts.index(size)
        else:
            k = sum(start < size for start in starts) - 1
            with pytest.raises(
                InvalidError, match=rf"b\.tfrecord ends in the middle of record {k} \(byte {starts[k]:,}\)"
            ):
                source(path)
    for k in range(1, 9):
        for value in (1, 2**64 - 1, len(whole) - starts[k] - 15):
            path.write_bytes(whole[: starts[k]] + struct.pack("<Q", value) + whole[starts[k] + 8 :])
            with pytest.raises(
                InvalidError, match=rf"b\.tfrecord: the length of record {k} \(byte {starts[k]:,}\) is damaged"
            ):
                source(path)


def test_other_and_compressed_files(tmp_path: Path):
    data = written(tmp_path / "a.tfrecord", b"1" * 0x8B1F).read_bytes()
    assert data[:2] == b"\x1f\x8b"  # as gzip begins
    assert source(tmp_path / "a.tfrecord", format="records")[0] == b"1" * 0x8B1F
    for other, words in (
        (gzip.compress(data), "is compressed with gzip, so no record of it can be read by itself; unpack it"),
        (zlib.compress(data), "is compressed with zlib"),
        (b"text", "is no TFRecord file: it does not begin with the length of a record"),
    ):
        (tmp_path / "b.tfrecord").write_bytes(other)
        with pytest.raises(InvalidError, match=rf"b\.tfrecord {words}"):
            source(tmp_path / "b.tfrecord")
    (tmp_path / "c.tfrecord.gz").write_bytes(gzip.compress(data))
    with pytest.raises(InvalidError, match=r"c\.tfrecord\.gz is compressed.*gunzip -k .*c\.tfrecord\.gz"):
        source(tmp_path / "*.gz")


def test_an_index_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = written(tmp_path / "a.tfrecord", *(b"%d" % k for k in range(500)))
    (tmp_path / "a.txt").write_bytes(path.read_bytes())
    monkeypatch.setattr(kept_index, "_KEPT", 1)
    wanted = list(source(path, format="records"))
    assert (tmp_path / "a.tfrecord.stocached-index").exists()
    assert len(source(path, format="text")) == len(source(tmp_path / "a.txt", format="text"))  # not that of records
    assert list(source(path, format="records")) == wanted
    monkeypatch.setattr(records, "_check", None)  # nothing looks at the records again
    assert list(source(path, format="records")) == wanted


def test_names_of_shards(tmp_path: Path):
    for number in range(2):
        written(tmp_path / f"a.TFRECORD-{number:05}-of-00002", example(a=field(3, field(1, bytes([number])))))
    assert list(source(tmp_path)) == [{"a": 0}, {"a": 1}]
    (tmp_path / "b.txt-00000-of-00001").touch()
    assert len(source(tmp_path, format="paths")) == len(list(source(tmp_path))) == 3


def test_few_numbers_are_read_as_many_are(monkeypatch: pytest.MonkeyPatch):
    draws = np.random.default_rng(0)
    for _ in range(2000):
        data = (draws.integers(0, 256, draws.integers(0, 41)) | draws.choice((0, 128))).astype(np.uint8).tobytes()
        made = list[Any]()
        for few in (40, -1):
            monkeypatch.setattr(records, "_FEW", few)
            try:
                values = records._varints(data)
                made.append((values.dtype, values.tolist()))
            except ValueError as error:
                made.append(str(error))
        assert made[0] == made[1]
