"""What is special about files of lines: records of CSV, the index and where it is kept, and mistakes."""

from __future__ import annotations

import csv
import gzip
import io
import os
import random
import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from helpers import python

from stocached import BadSampleError, InvalidError, Loader, source
from stocached._formats import kept_index, line_index
from stocached._formats.lines import Text


def test_records_are_those_of_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Random texts of what csv gives a meaning. Those that a writer of CSV makes need no slow pass."""
    draw, path, slow = random.Random(3), tmp_path / "a.csv", line_index._exact
    for number in range(600):
        monkeypatch.setattr(line_index, "_exact", None if number % 3 else slow)
        parts = ["a", "é", ",", "\n", "\r\n", '"', '""'] + ["\r"] * (number % 50 == 0)
        fields = ["x", '"y\nz"', '"a ""b"" c"', '""', "", '"1,2"']
        if number % 3:
            rows = [[draw.choice(fields) for _ in range(draw.randint(0, 3))] for _ in range(draw.randint(1, 5))]
            text = "".join(",".join(row) + draw.choice(["\n", "\r\n", "\n\n"]) for row in rows)
        else:
            text = "".join(draw.choices(parts, k=draw.randint(1, 30)))
        path.write_bytes(text.encode())
        wanted = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
        starts = line_index.starts_of(str(path), line_index.Rule(False, ",")).tolist()
        data = text.encode()
        records = [data[a:b].decode() for a, b in pairwise(starts)]
        assert [next(csv.reader(io.StringIO(record, newline=""))) for record in records] == wanted, text


def test_pieces_of_any_size_have_the_same_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    draw = random.Random(5)
    for name, rule in (
        ("a.jsonl", line_index.Rule(False)),
        ("a.txt", line_index.Rule(True)),
        ("a.csv", line_index.Rule(False, ",")),
    ):
        lines = [draw.choice([b"", b"\r", b"1", b'"a\nb",2', b"long" * 9, b'"\r\n"']) for _ in range(200)]
        (tmp_path / name).write_bytes(b"\n".join(lines))
        whole = line_index.starts_of(str(tmp_path / name), rule)
        for piece in (1, 2, 3, 7, 64):
            monkeypatch.setattr(line_index, "_PIECE", piece)
            assert line_index.starts_of(str(tmp_path / name), rule).tolist() == whole.tolist()
        monkeypatch.setattr(line_index, "_PIECE", 1 << 20)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file whose index is kept."""
    monkeypatch.setattr(kept_index, "_KEPT", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "data" / "a.jsonl"
    path.parent.mkdir()
    path.write_text("".join(f"{k}\n" for k in range(1000)))
    return path


def made(path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the index is made, and not found."""
    came = []
    make = line_index._made
    monkeypatch.setattr(line_index, "_made", lambda *arguments: came.append(1) or make(*arguments))
    values = list(source(path))
    assert values == [int(line) for line in path.read_text().split()]
    monkeypatch.setattr(line_index, "_made", make)
    return bool(came)


def test_an_index_is_kept_beside_the_file(kept: Path, monkeypatch: pytest.MonkeyPatch):
    assert made(kept, monkeypatch)
    index = kept.with_name("a.jsonl.stocached-index")
    assert sorted(kept.parent.iterdir()) == [kept, index]
    assert not made(kept, monkeypatch)
    assert list(source(kept.parent, format="paths")) == [str(kept)]
    time = kept.stat().st_mtime_ns
    for data in (index.read_bytes()[:-8], b"", index.read_bytes()[:-9] + b"\1" + index.read_bytes()[-8:]):
        index.write_bytes(data)
        assert made(kept, monkeypatch)
        assert not made(kept, monkeypatch)
    index.chmod(0o666)  # anybody may have written it
    assert made(kept, monkeypatch)
    assert not made(kept, monkeypatch)
    kept.write_text(kept.read_text().replace("500\n", "5\n7\n"))
    os.utime(kept, ns=(time, time))
    assert made(kept, monkeypatch)  # other bytes, of the same size and time
    os.utime(kept)
    assert made(kept, monkeypatch)
    with kept.open("a") as file:
        file.write("3\n")
    os.utime(kept, ns=(time, time))
    assert made(kept, monkeypatch)


def test_an_index_is_kept_in_the_cache_folder_or_nowhere(kept: Path, monkeypatch: pytest.MonkeyPatch):
    """Root may write anywhere, so a folder that is in the way stands for one without the right."""
    kept.with_name("a.jsonl.stocached-index").mkdir()
    assert made(kept, monkeypatch)
    assert [path.name[:8] for path in (kept.parents[1] / "cache" / "stocached" / "lines").iterdir()] == ["a.jsonl-"]
    assert not made(kept, monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept / "no folder"))
    assert made(kept, monkeypatch)
    assert made(kept, monkeypatch)
    assert sorted(path.name for path in kept.parent.iterdir()) == ["a.jsonl", "a.jsonl.stocached-index"]


def test_processes_make_an_index_once(kept: Path):
    program = f"""
        import time
        from stocached import source
        from stocached._formats import kept_index, line_index, lines
        kept_index._KEPT, make, sleep = 1, line_index._made, time.sleep
        line_index._made = lambda *arguments: (print("makes", flush=True), input(), make(*arguments))[-1]
        time.sleep = lambda seconds: (print("waits", flush=True), sleep(seconds))
        print(len(source({str(kept)!r})), flush=True)
    """
    started = []
    for said in ("makes", "waits"):
        one = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert one.stdout is not None
        assert one.stdout.readline() == f"{said}\n"
        started.append(one)
    lines = [one.communicate("\n")[0].split() for one in started]
    assert lines[0][-1] == lines[1][-1]
    assert set(lines[1][:-1]) <= {"waits"}


def test_an_index_takes_little_memory(tmp_path: Path):
    """Of a file of 64 MB."""
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        for _ in range(64):
            file.write((b'"' + b"x" * 997 + b'"\n') * 1000)
    python(
        "import resource, sys, numpy\n"
        "from stocached import source\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10\n"
        "before = peak()\n"
        "assert len(source(sys.argv[1])) == 64_000\n"
        "assert peak() - before < 24, peak() - before\n",
        path,
    )


@pytest.mark.parametrize(
    ("name", "data", "options", "words"),
    [
        (
            "a.jsonl.gz",
            gzip.compress(b"1\n", mtime=0),
            {},
            r"a\.jsonl\.gz is compressed.*gunzip -k .*a\.jsonl\.gz; or .*paths",
        ),
        ("a.csv.zst", b"", {}, r"unzstd -k .*a\.csv\.zst"),
        ("a.jsonl", gzip.compress(b"1\n", mtime=0), {}, "compressed with gzip"),
        ("a.jsonl", "1\n".encode("utf-16"), {}, "UTF-16.*iconv -f utf-16 -t utf-8 .*a.jsonl"),
        ("a.csv", b"a,b\n1,2\n", {"columns": ["c"]}, r"no column 'c'; it has \['a', 'b'\]"),
        ("a.csv", b"a,b\n1,2\n", {"columns": "a"}, "give a list of names"),
        ("a.csv", b"1,2\n", {"names": "ab"}, "names='ab': give a list of names"),
        ("a.csv", b"a,a\n1,2\n", {}, "two columns have one name"),
        ("a.csv", b"a,b\n1,2\n", {"delimiter": ";;"}, "not one ASCII character"),
        ("a.csv", b"", {}, "is empty; give names="),
        ("a.csv", b'a,"' + b"x" * 200_000, {}, "csv does not read the record at byte 0.*field larger"),
        ("a.csv", b"a,b\n", {}, "there are no elements"),
        ("a.csv", b"a,b\n1,2\n", {"comma": ";"}, "files of csv take delimiter=, columns=, names=:"),
        ("a.jsonl", b"1\n", {"columns": ["a"]}, "files of jsonl take no options"),
        ("a.jsonl", b"1\n", {"format": "jsonlines"}, "there are jsonl, csv.*file_format"),
        ("a.bin", b"1\n", {"columns": ["a"]}, "columns are for files of a format"),
    ],
)
def test_mistakes(tmp_path: Path, name: str, data: bytes, options: dict[str, Any], words: str):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InvalidError, match=words):
        source(tmp_path / name, **options)


@pytest.mark.parametrize("piece", [1, 2, 5, 64, 1 << 18])
def test_lines_are_counted_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int):
    """Each piece once: a loader that skips bad samples asks for the line of each."""
    monkeypatch.setattr("stocached._formats.lines._PIECE", piece)
    draw = random.Random(6)
    (tmp_path / "a.txt").write_bytes(b"".join(draw.choice([b"\n", b"\r\n", b"a\n", b"long\r\n"]) for _ in range(99)))
    file = Text(str(tmp_path / "a.txt"))
    some = draw.sample(range(99), 99)
    assert [file._line_of(k) for k in some] == [k + 1 for k in some]


@pytest.mark.parametrize("record", ['3,"v3', '3,"x"y', '"3","v3\n"4","v4"'])
def test_quotation_marks_that_do_not_pair_are_bad_records(record: str, tmp_path: Path):
    """csv takes in the records that follow, up to the next mark."""
    (tmp_path / "a.csv").write_text(f"k,v\n1,2\n{record}\n5,6\n")
    made = source(str(tmp_path / "a.csv"))
    assert made[0] == {"k": "1", "v": "2"}
    with pytest.raises(BadSampleError, match=r"a\.csv, line 3 \(record 1, .*: no CSV: .*; correct its quotation marks"):
        made[1]


def test_a_bad_line_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'[\n1\n\n{"a": \n"\xff"\n' + b"[" * 100_000 + b'\n"\v"')
    pipe = source(path)
    assert pipe[1] == 1
    for number, words in (
        (0, r"line 1 \(element 0, byte 0\): no JSON: .*jq -c"),
        (2, r"line 4 \(element 2, byte 5\): no JSON: Expecting value at its character 8"),
        (3, r"line 5 .*: no UTF-8: .*iconv -f latin1 -t utf-8"),
        (4, "line 6.*recursion"),
        (5, "line 7.*no JSON: Invalid control character at its character 2"),
    ):
        with pytest.raises(BadSampleError, match=rf"a\.jsonl, {words}"):
            pipe[number]
    (tmp_path / "a.csv").write_text("a,b\n1,'2\n'\n1,2,3\n".replace("'", '"'))
    with pytest.raises(
        BadSampleError, match=r"a\.csv, line 4 \(record 1, byte 11\): it has 3 fields, and there are 2 columns"
    ):
        source(tmp_path / "a.csv")[1]
    (tmp_path / "a.txt").write_bytes(b"one\r\n\r\n\xff\r\n")
    with pytest.raises(BadSampleError, match=r"a\.txt, line 3 \(element 2, byte 7\): no UTF-8"):
        source(tmp_path / "a.txt", format="text")[2]
    monkeypatch.setattr("stocached._formats.lines._COUNTED", 4)
    with pytest.raises(BadSampleError, match=r"a\.txt, element 2 \(byte 7\): no UTF-8"):
        source(tmp_path / "a.txt", format="text")[2]


def test_a_delimiter_of_another_program_is_a_warning(tmp_path: Path):
    (tmp_path / "a.csv").write_text("k;text\n1;a\n")
    with pytest.warns(UserWarning, match=r"a\.csv has one column, 'k;text'; delimiter=';' makes several"):
        assert source(tmp_path / "a.csv")[0] == {"k;text": "1;a"}
    assert source(tmp_path / "a.csv", delimiter=";")[0] == {"k": "1", "text": "a"}


def test_long_fields_of_csv(tmp_path: Path):
    """csv takes 128 KiB by itself."""
    before = csv.field_size_limit()
    (tmp_path / "a.csv").write_text(f'a,b\n1,"{"x" * 200_000}"\n')
    try:
        assert len(source(tmp_path / "a.csv")[0]["b"]) == 200_000
    finally:
        csv.field_size_limit(before)


def test_a_file_that_changes_while_its_lines_are_found_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.jsonl").write_text("1\n2\n")
    monkeypatch.setattr(kept_index, "stamp_of", lambda status: (status.st_size + 1, 0))
    with pytest.raises(OSError, match=r"has changed while it was read; make the pipe again.*a\.jsonl"):
        source(tmp_path / "a.jsonl")


def test_compressed_lines_can_be_paths(tmp_path: Path):
    (tmp_path / "a.jsonl.gz").touch()
    assert list(source(tmp_path / "*.gz", format="paths")) == [str(tmp_path / "a.jsonl.gz")]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_unlike_lines(tmp_path: Path, workers: int):
    """Numbers stay numbers beside texts, and a key that is missing says in which item."""
    (tmp_path / "a.jsonl").write_text('{"k": 1}\n{"k": "a"}\n{"k": true}\n')
    (batch,) = Loader(source(tmp_path / "a.jsonl").batch(3), num_workers=workers)
    assert batch == {"k": [1, "a", True]}
    for lines, words in (
        (
            ['{"k": 1, "y": {"z": 1}}'] * 17 + ['{"k": 1, "y": {}}'],
            "sample 1 of a batch of 2 has no 'z', and its first one has it",
        ),
        (
            ['{"k": 1}'] * 17 + ['{"k": 1, "y": 2}'],
            "sample 1 of a batch of 2 has 'y', and its first one has not; give all",
        ),
    ):
        (tmp_path / "b.jsonl").write_text("\n".join(lines))
        with pytest.raises(ValueError, match=words):
            [*Loader(source(tmp_path / "b.jsonl").batch(2), num_workers=workers)]
