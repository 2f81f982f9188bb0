"""Files that change while they are read, that are cut, and that others have made to do harm: an error names the file and the
element, or the values are right."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from helpers import python
from made import CASES, ONE_OF_EACH, Made, plain

from stocached import FingerprintError, InvalidError, Loader, source
from stocached._checks.derived_fingerprint import derive


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    return CASES[request.param](tmp_path)


def first_file(made: Made) -> Path:
    first = sorted(Path(made.text).parent.iterdir())[0]
    return sorted(first.glob("shard*"))[0] if first.is_dir() else first


def test_a_file_that_changes_is_an_error(case: Made):
    pipe = source(case.text, **case.options)
    path = first_file(case)
    assert plain(pipe[0]) == plain(case.items[0])
    os.utime(path, ns=(1, 10**18))
    with pytest.raises(InvalidError, match=f"{path.name} has changed since it was opened; make the pipe again"):
        pipe[1]
    path.unlink()
    with pytest.raises(OSError, match=path.name):
        pipe[1]


def test_fingerprints_are_the_same_in_a_worker(case: Made):
    stage = source(case.text, **case.options)._stage
    data = (stage if case.counts is None else stage.above[0]).data
    assert str(derive(pickle.loads(pickle.dumps(data)))) == str(derive(data))


@pytest.mark.parametrize("case", ONE_OF_EACH, indirect=True)
def test_a_named_cache_knows_the_file_and_the_options(case: Made, cache_name: str):
    def read(**options: Any) -> int:
        pipe = source(case.text, **case.options | options).map(str).cache("16MiB", name=cache_name, variable=None)
        return sum(map(len, Loader(pipe.batch(2))))

    path = first_file(case)
    os.utime(path, ns=(1, 10**18))
    assert read() == read() == len(case.items)
    os.utime(path, ns=(1, 10**18 + 1))
    with pytest.raises(FingerprintError, match="changed"):
        read()
    os.utime(path, ns=(1, 10**18))
    if "columns" in case.options:
        with pytest.raises(FingerprintError, match="changed"):
            read(columns=case.options["columns"][:1])
    assert read() == len(case.items)


PROGRAM = """
import pickle, random, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
sys.path[:0] = sys.argv[1], str(Path(sys.argv[1]).parent)
from made import plain
from stocached import source

def damaged(whole, change):
    data = bytearray(whole)
    if change == "cut":
        del data[draw.randrange(len(data)):]
        return data
    for _ in range(draw.choice([1, 1, 4])):
        at = draw.choice([draw.randrange(len(data)), len(data) - 1 - min(draw.randrange(200), len(data) - 1)])
        data[at] = draw.choice([0, 1, 0x7F, 0xFF, draw.randrange(256)])
    return data

draw = random.Random(7)
for path, text, options, items, checked in pickle.loads(Path(sys.argv[2]).read_bytes()):
    whole = path.read_bytes()
    wanted = [repr(plain(item)) for item in items]
    for number in range(18):
        path.write_bytes(damaged(whole, "cut" if number % 3 == 0 else "bytes"))
        errors = []
        try:
            pipe = source(text, **options)
        except Exception as error:
            errors.append(error)
        else:
            for k in range(number % 3, min(len(pipe), 60), 3):
                try:
                    item = repr(plain(pipe[k]))
                except Exception as error:
                    errors.append(error)
                else:
                    assert not checked or item == wanted[k], (path, number, k, item)
        for error in errors:
            said = str(error) + "".join(getattr(error, "__notes__", []))
            assert path.name in said, (path, number, repr(error), said)
print("done")
"""


def test_damaged_files_give_errors_that_name_them(tmp_path: Path):
    """In a process of its own, which a wrong address would end, with bounded memory. Files without
    checksums cannot tell all damage."""
    cases = []
    for name, make in CASES.items():
        (tmp_path / name).mkdir()
        case = make(tmp_path / name)
        checked = name.startswith(("zip ", "tfrecord", "mds, gz", "npz, compressed"))
        cases.append((first_file(case), case.text, case.options, case.items, checked))
    (tmp_path / "cases").write_bytes(pickle.dumps(cases))
    said = python(PROGRAM, Path(__file__).parent, tmp_path / "cases", timeout=120)
    assert said.stdout == "done\n"
