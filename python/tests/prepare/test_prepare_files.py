"""Block files that Python writes and reads, compared with the Go code, and files that are
damaged."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from helpers import python
from prepared import BARE, FIELDS, VARIABLE, Made, same, sample, stocached, tree
from processes import held
from served import program

from stocached import CorruptError, UnsupportedError, VersionError, _native
from stocached._common.checksum import as_bytes, crc32c
from stocached._prepared import zstd
from stocached._prepared.block_reader import read_document
from stocached._prepared.block_writer import BlockWriter, Packed
from stocached._samples.dtypes import NAMES
from stocached.prepare import BlockStorage, DatasetInfo, NotPreparedError, prepare

SMALL = {"block_bytes": 4096, "file_bytes": 16384}
FLAGS = ("--block-size", "4096", "--file-size", "16384")


@pytest.fixture(scope="module", autouse=True)
def _built():
    program()


class Given(Made):
    """n samples of a function. like: has the name, kind and notes of this dataset."""

    def __init__(self, fields, n, sample, like=None):
        super().__init__(n, fields)
        self.sample, self.like = sample, like

    def dataset_info(self):
        info = super().dataset_info()
        if self.like is None:
            return info
        return DatasetInfo(self.fields, self.n, self.like.fingerprint, self.variable, self.like.notes, self.like.kind)

    def samples(self, first, stop):
        yield from map(self.sample, range(first, stop))


def test_checksum_goes_on_and_takes_any_memory():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0
    assert crc32c(np.frombuffer(b"123456789", np.uint8)) == 0xE3069283
    assert crc32c(memoryview(b"xx123456789")[2:]) == 0xE3069283
    data = np.random.default_rng(0).bytes(1 << 20)
    buffer = np.frombuffer(data, np.uint8)
    assert _native.crc32c(crc32c(buffer[:1000]), buffer[1000:].ctypes.data, buffer.size - 1000) == crc32c(data)
    assert bytes(as_bytes(np.array(7, np.int64))) == struct.pack("<q", 7)


# ------------------------------------------------------------ Go reads what Python wrote


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("fields", [FIELDS, VARIABLE, BARE], ids=["fixed", "variable", "bare"])
def test_go_reads_what_python_wrote(tmp_path, fields, compression):
    storage = BlockStorage(tmp_path / "d", compression=compression, **SMALL)
    preparer = Made(300, fields)
    prepare(preparer, storage)
    info = json.loads(stocached("source", "info", tmp_path / "d", "--json").stdout)
    assert info["samples"] == 300
    assert [field["name"] for field in info["fields"]] == list(fields)
    assert info["made_from"] == preparer.dataset_info().fingerprint
    assert [note["text"] for note in info["notes"]] == ["cat, <dog> & \u2028é\t"]
    assert b"failed   0" in stocached("source", "verify", tmp_path / "d").stdout
    for index in (0, 17, 299):
        want = sample(fields, index)
        for name in fields:
            value = want[name] if len(fields) > 1 else want
            raw = value if isinstance(value, bytes) else value.tobytes()
            assert stocached("source", "cat", tmp_path / "d", index, "--field", name).stdout == raw
        file, k = storage.reader.find(index)
        assert stocached("source", "cat", tmp_path / "d", index).stdout == file.read(k, True).tobytes()


@pytest.mark.parametrize("fields", [FIELDS, VARIABLE, BARE], ids=["fixed", "variable", "bare"])
def test_both_write_the_same_bytes(tmp_path, fields):
    """Go packs what Python prepared. Python prepares the same again under the name that Go gave
    it."""
    first = BlockStorage(tmp_path / "first")
    prepare(Made(700, fields), first)
    stocached("pack", tmp_path / "first", tmp_path / "go", *FLAGS)
    made = BlockStorage(tmp_path / "go").load_dataset_info()
    again = Given(fields, 700, lambda k: sample(fields, k), made)
    prepare(again, BlockStorage(tmp_path / "python", **SMALL), processes=2)
    assert len(tree(tmp_path / "go")) >= 3
    assert tree(tmp_path / "go") == tree(tmp_path / "python")
    assert not prepare(again, BlockStorage(tmp_path / "go", **SMALL))  # it is the same dataset


def test_sizes_at_the_edges(tmp_path):
    """Samples of no bytes, of exactly a block, of one byte more, and larger than a file; in Go and
    in Python."""
    sizes = [0, 0, 4096, 0, 1, 4095, 1, 4097, 0, 20_000, 1, 0, 4096, 8192, 0]
    edges = {"data": ((None,), "bytes")}, len(sizes), lambda k: bytes([k]) * sizes[k]
    storage = BlockStorage(tmp_path / "d", **SMALL)
    prepare(Given(*edges), storage)
    assert [storage.load_sample(k) for k in range(len(sizes))] == [bytes([k]) * size for k, size in enumerate(sizes)]
    assert storage.load_samples(range(len(sizes))) == [bytes([k]) * size for k, size in enumerate(sizes)]
    assert b"failed   0" in stocached("source", "verify", tmp_path / "d").stdout
    stocached("pack", tmp_path / "d", tmp_path / "go", *FLAGS)
    made = BlockStorage(tmp_path / "go").load_dataset_info()
    prepare(Given(*edges, made), BlockStorage(tmp_path / "again", **SMALL))
    assert tree(tmp_path / "go") == tree(tmp_path / "again")


@pytest.mark.parametrize("seed", range(3))
def test_random_sizes(tmp_path, seed):
    """Any sizes, blocks and files: Go packs the samples into the same bytes."""
    random = np.random.default_rng(seed)
    n, top = int(random.integers(1, 400)), int(random.choice([1, 50, 5000, 30_000]))
    sizes = random.integers(0, top, n, endpoint=True).tolist()
    block, file = int(random.choice([4096, 8192, 65536])), int(random.choice([4096, 10_000, 200_000]))
    sized = {"data": ((None,), "uint8")}, n, lambda k: np.full(sizes[k], k % 256, np.uint8)
    prepare(Given(*sized), BlockStorage(tmp_path / "d"))
    stocached("pack", tmp_path / "d", tmp_path / "go", "--block-size", block, "--file-size", file)
    made = BlockStorage(tmp_path / "go").load_dataset_info()
    storage = BlockStorage(tmp_path / "python", block_bytes=block, file_bytes=file)
    prepare(Given(*sized, made), storage)
    assert tree(tmp_path / "go") == tree(tmp_path / "python")
    order = random.permutation(n).tolist()
    assert [sample.size for sample in storage.load_samples(order)] == [sizes[k] for k in order]


def test_tiny_samples_fill_blocks_and_files_by_number(tmp_path):
    """65,536 samples a block and 1,048,576 a file, as in Go."""
    n = 1_048_576 + 70_000
    (tmp_path / "bytes").write_bytes(bytes(n))
    stocached("pack", tmp_path / "bytes", tmp_path / "go", "--kind", "raw", "--source", "sample_bytes=1")
    document = read_document(str(tmp_path / "go"))
    packed = Packed(b"\0", 1, crc32c(b"\0"))
    with BlockWriter(str(tmp_path / "python"), document.description, document.notes) as writer:
        for _ in range(n):
            writer.append(packed)
        writer.finish()
    assert [file.samples for file in document.files] == [1_048_576, 70_000]
    assert [file.blocks for file in document.files] == [16, 2]
    assert tree(tmp_path / "go") == tree(tmp_path / "python")


def test_all_dtypes(tmp_path):
    fields = {f"of_{name}": ((3,), name) for name in NAMES if name != "bytes"}

    def made(k):
        return {name: np.arange(k, k + 3).astype(_numpy(dtype)) for name, (_, dtype) in fields.items()}

    storage = BlockStorage(tmp_path / "d")
    prepare(Given(fields, 5, made), storage)
    for k in range(5):
        assert same(storage.load_sample(k), made(k))
    assert b"failed   0" in stocached("source", "verify", tmp_path / "d").stdout


def _numpy(name):
    from stocached._samples import dtypes

    return dtypes.NUMPY[dtypes.CODES[name]]


# ------------------------------------------------------------ Python reads what Go wrote


@pytest.mark.parametrize("compress", ["none", "zstd"])
def test_python_reads_what_go_packed(tmp_path, compress):
    pictures = tmp_path / "pictures"
    contents = {}
    for k, label in enumerate(["cat", "dog", "cat", "bird"] * 10):
        path = pictures / label / f"{k:03d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([k]) * (k * 97))
        contents[str(path)] = label
    stocached(
        "pack", pictures, tmp_path / "d", "--source", "glob=**/*.bin,labels=folders", "--compress", compress, *FLAGS
    )
    storage = BlockStorage(tmp_path / "d")
    info = storage.load_dataset_info()
    assert (info.kind, info.samples, info.variable, list(info.fields)) == ("dir", 40, True, ["data", "label"])
    for index, (path, label) in enumerate(sorted(contents.items())):
        got = storage.load_sample(index)
        assert got["data"] == Path(path).read_bytes()
        assert got["label"] == ["bird", "cat", "dog"].index(label)
    assert any("cat" in text for text in info.notes.values())


def test_python_reads_packed_arrays(tmp_path):
    array = np.random.default_rng(0).random((90, 7, 3), np.float32)
    np.save(tmp_path / "a.npy", array)
    stocached("pack", tmp_path / "a.npy", tmp_path / "d", *FLAGS)
    storage = BlockStorage(tmp_path / "d")
    assert np.array_equal(np.stack(storage.load_samples(range(90))), array)
    (name,) = storage.load_dataset_info().fields
    assert np.array_equal(storage.load_field(name), array)


@pytest.mark.parametrize("first", ["python", "go"])
def test_one_goes_on_where_the_other_stopped(tmp_path, first):
    """One language finishes the interrupted preparation of the other, to the last byte."""
    prepare(Made(700), BlockStorage(tmp_path / "source"))
    stocached("pack", tmp_path / "source", tmp_path / "whole", *FLAGS)
    made = BlockStorage(tmp_path / "whole").load_dataset_info()
    again = Given(FIELDS, 700, lambda k: sample(FIELDS, k), made)
    if first == "python":
        storage = BlockStorage(tmp_path / "d", **SMALL)
        storage.start_preparation(again.dataset_info())
        for k in range(400):
            storage.save_sample(k, sample(FIELDS, k))
        storage.stop_preparation()
        packed = json.loads(stocached("pack", tmp_path / "source", tmp_path / "d", *FLAGS, "--json").stdout)
        assert 0 < packed["kept_samples"] < 400
    else:  # a Go writer leaves the same: its first files
        shutil.copytree(tmp_path / "whole", tmp_path / "d.part")
        (tmp_path / "d.part" / "dataset.json").unlink()
        (tmp_path / "d.part" / "00001.stocblk").rename(tmp_path / "d.part" / "00001.stocblk.part")
        storage = BlockStorage(tmp_path / "d", **SMALL)
        assert 0 < storage.start_preparation(again.dataset_info()) < 400
        storage.stop_preparation()
        assert prepare(again, storage)
    assert tree(tmp_path / "d") == tree(tmp_path / "whole")


# ------------------------------------------------------------ compression


def test_zstd_makes_it_smaller(tmp_path):
    def even(k):
        return {"text": b"a" * 3000, "points": np.zeros((5, 2), np.float32), "label": k}

    plain, packed = BlockStorage(tmp_path / "plain"), BlockStorage(tmp_path / "packed", compression="zstd")
    for storage in (plain, packed):
        prepare(Given(VARIABLE, 200, even), storage)
    sizes = [sum(map(len, tree(storage.folder).values())) for storage in (plain, packed)]
    assert sizes[1] * 10 < sizes[0]
    assert all(same(plain.load_sample(k), packed.load_sample(k)) for k in range(200))
    assert packed.load_field("label").tolist() == list(range(200))


WITHOUT = """
    import sys
    sys.modules["zstandard"] = sys.modules["compression.zstd"] = None  # as if neither were installed
    sys.path.insert(0, sys.argv[2])
    from prepared import FIELDS, Made, sample, same
    from stocached import UnsupportedError
    from stocached.prepare import BlockStorage, prepare
    storage = BlockStorage(sys.argv[1])
    assert len(storage) == 50
    try:
        storage.load_sample(0)
    except UnsupportedError as error:
        print(error)
    try:
        prepare(Made(50), BlockStorage(sys.argv[1] + "-new", compression="zstd"))
    except UnsupportedError as error:
        print("new:", error)
"""


def test_without_zstandard_compressed_samples_are_a_clear_error(tmp_path):
    even = {"image": np.zeros((3, 5, 5), np.uint8), "label": 0, "weights": [0.0, 0.0]}
    prepare(Given(FIELDS, 50, lambda k: even), BlockStorage(tmp_path / "d", compression="zstd"))
    output = python(WITHOUT, tmp_path / "d", os.path.dirname(os.path.dirname(__file__))).stdout.splitlines()
    assert len(output) == 2
    assert all("pip install zstandard" in line for line in output)
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_invalid_frames():
    frame = zstd.compress(b"a" * 1000)
    assert zstd.decompress(frame, 1000) == b"a" * 1000
    for wrong, length in [(frame, 999), (frame, 1001), (frame[:-1], 1000), (b"nonsense", 8), (frame + b"x", 1000)]:
        with pytest.raises(ValueError, match="."):
            zstd.decompress(wrong, length)
    assert issubclass(UnsupportedError, NotImplementedError)


# ------------------------------------------------------------ damage


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "d"
    prepare(Made(400), BlockStorage(folder, **SMALL))
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "d")
    return tmp_path / "d"


def refused(folder, text="", kind=CorruptError):
    with pytest.raises(kind, match=text):
        BlockStorage(folder).load_sample(0)


def test_each_byte_of_a_footer_is_checked(folder):
    """For every byte of a footer, Python refuses what Go refuses."""
    path = folder / "00001.stocblk"
    data = path.read_bytes()
    (footer,) = struct.unpack_from("<Q", data, len(data) - 80)
    for at in [*range(len(data) - footer, len(data) - 80, 11), *range(len(data) - 80, len(data))]:
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(bytes([data[at] ^ 1]))
        refused(folder, "00001.stocblk", (CorruptError, VersionError))
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(data[at : at + 1])
    BlockStorage(folder).load_sample(0)


def resealed(path, change):
    """Changes a footer and corrects its checksum. The rest of the file stays."""
    data = bytearray(path.read_bytes())
    (footer,) = struct.unpack_from("<Q", data, len(data) - 80)
    begin = len(data) - footer
    change(data, begin)
    crc = crc32c(bytes(data[begin:-16]))
    struct.pack_into("<I", data, len(data) - 16, crc)
    path.write_bytes(data)
    document = json.loads((path.parent / "dataset.json").read_text())
    document["files"][int(path.stem)]["footer_crc32c"] = f"{crc:08x}"
    del document["crc32c"]
    compact = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    for plain in "<>&\u2028":
        compact = compact.replace(plain, f"\\u{ord(plain):04x}")
    seal = crc32c(compact[:-1].encode())
    (path.parent / "dataset.json").write_bytes(compact[:-1].encode() + f',"crc32c":"{seal:08x}"}}'.encode())


BLOCKS = 4  # blocks of a file of the fixture


@pytest.mark.parametrize(
    ("at", "form", "value", "text"),
    [
        (24 + 0, "<Q", 4096 + 1, "block 1 says offset 4097"),
        (24 + 0, "<Q", 2**63, "block 1 says"),
        (24 + 8, "<Q", 4000, "block 1 says|offset"),
        (24 + 8, "<Q", 2**63, "block 1 says"),
        (16, "<Q", 7, "block 0 says first sample 7"),
        (24 + 16, "<Q", 0, "block 1 says first sample 0"),
        (24 + 16, "<Q", 10**6, "block 1 says first sample 1000000"),
        (BLOCKS * 24 + 24, "<Q", 87, "sample 1 says offset 87"),
        (BLOCKS * 24 + 24 + 8, "<I", 87, "offset|takes|says"),
        (BLOCKS * 24 + 24 + 12, "<I", 87, "sample 1 has 87 bytes"),
        (BLOCKS * 24 + 24 + 20, "<I", 1, "reserved bytes of its sample 1"),
    ],
)
def test_invalid_records(folder, at, form, value, text):
    """The checksum is right. Go refuses the same records."""
    path = folder / "00000.stocblk"
    (there,) = struct.unpack_from("<Q", path.read_bytes(), path.stat().st_size - 56)
    assert there == BLOCKS
    resealed(path, lambda data, begin: struct.pack_into(form, data, begin + at, value))
    refused(folder, text)
    assert stocached("source", "info", folder, check=False).returncode == 4


def test_resealing_does_no_harm(folder):
    resealed(folder / "00000.stocblk", lambda data, begin: None)
    BlockStorage(folder).load_sample(0)
    stocached("source", "verify", folder)


def test_each_byte_of_a_sample_is_checked(folder):
    path = folder / "00000.stocblk"
    for at in (0, 1, 80, 91):
        data = path.read_bytes()
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(CorruptError, match=r"00000.stocblk: sample 0, 92 bytes at 0: its bytes have CRC-32C"):
            BlockStorage(folder).load_sample(0)
        with pytest.raises(CorruptError, match="sample 0"):
            BlockStorage(folder).load_samples([1, 0])
        BlockStorage(folder, verify=False).load_sample(0)
        path.write_bytes(data)


@pytest.mark.parametrize("kept", [0, 64 << 20])
def test_a_file_that_changes_while_it_is_open(folder, kept, monkeypatch):
    """kept: bytes of indexes that stay in memory."""
    monkeypatch.setattr("stocached._prepared.block_reader._KEPT", kept)
    storage = BlockStorage(folder)
    storage.load_sample(0)
    with open(folder / "00000.stocblk", "r+b") as file:
        file.write(b"x")
    os.utime(folder / "00000.stocblk", ns=(1, 1))
    with pytest.raises(CorruptError, match="has changed since it was opened"):
        storage.load_sample(0)
    for size in (100, 0):  # also its index is gone
        os.truncate(folder / "00000.stocblk", size)
        for load in (
            lambda: storage.load_sample(1),
            lambda: storage.load_samples([1, 2]),
            lambda: storage.load_field("label"),
        ):
            with pytest.raises(CorruptError, match=f"has changed since it was opened: it had .* it has {size}"):
                load()


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (lambda text: text.replace('"samples": 400', '"samples": 401'), CorruptError, "changed after it was written"),
        (lambda text: text.replace('"version": 1', '"version": 2', 1), VersionError, "version 2"),
        (lambda text: text.replace("stocached-block", "other"), VersionError, "format"),
        (lambda text: text[:-10], CorruptError, "no JSON"),
        (lambda text: text + "x", CorruptError, "no JSON"),
        (lambda text: "[]", VersionError, "format"),
        (lambda text: "[" * 100_000, CorruptError, "no JSON"),
        (lambda text: "\udcff", CorruptError, "no JSON"),
        (lambda text: text.replace('"crc32c"', '"crc"'), CorruptError, "changed after"),
    ],
)
def test_invalid_descriptions(folder, change, kind, text):
    path = folder / "dataset.json"
    path.write_bytes(change(path.read_text()).encode(errors="surrogateescape"))
    refused(folder, text, kind)
    assert stocached("source", "info", folder, check=False).returncode != 0


def test_whitespace_is_no_change(folder):
    path = folder / "dataset.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=7).replace("é", "é"))
    if "\\u00e9" in path.read_text():  # json writes other escapes, which are other bytes
        path.write_text(
            path.read_text()
            .replace("\\u00e9", "é")
            .replace("<", "\\u003c")
            .replace(">", "\\u003e")
            .replace("&", "\\u0026")
        )
    assert same(BlockStorage(folder).load_sample(0), sample(FIELDS, 0))
    stocached("source", "info", folder)


@pytest.mark.parametrize("wrong", ["missing", "short", "swapped", "other", "folder", "pipe"])
def test_files_that_are_not_those(folder, tmp_path, wrong):
    first, second = folder / "00000.stocblk", folder / "00001.stocblk"
    kind: type[Exception] = CorruptError
    if wrong == "missing":
        second.unlink()
        kind = FileNotFoundError
    elif wrong == "short":
        os.truncate(second, 79)
    elif wrong == "swapped":
        first.rename(folder / "x")
        second.rename(first)
        (folder / "x").rename(second)
    elif wrong == "other":
        prepare(Made(399), BlockStorage(tmp_path / "other", **SMALL))
        shutil.copy(tmp_path / "other" / "00001.stocblk", second)
    else:
        second.unlink()
        second.mkdir() if wrong == "folder" else os.mkfifo(second)
        kind = ValueError
    refused(folder, "00001.stocblk|00000.stocblk", kind)


def test_no_descriptors_stay_open_after_an_error(folder):
    (folder / "00002.stocblk").unlink()
    before = held()
    for _ in range(5):
        refused(folder, "00002", FileNotFoundError)
    assert not held() - before


def test_too_few_descriptors(folder):
    code = """
        import resource, sys
        from stocached.prepare import BlockStorage
        storage = BlockStorage(sys.argv[1])
        resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))
        try:
            storage.load_sample(0)
        except OSError as error:
            print(error.errno, error)
    """
    output = python(code, folder).stdout
    assert output.startswith("24 ")
    assert "ulimit -n" in output


def test_not_whole(tmp_path):
    (tmp_path / "d.part").mkdir()
    with pytest.raises(NotPreparedError, match="not whole: run again"):
        BlockStorage(tmp_path / "d").load_sample(0)
    (tmp_path / "f").write_text("")
    with pytest.raises(NotPreparedError, match="is a file"):
        BlockStorage(tmp_path / "f").load_sample(0)
