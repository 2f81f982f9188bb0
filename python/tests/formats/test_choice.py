"""Which format a text names, and formats that programs register."""

from __future__ import annotations

import contextlib
import gzip
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
from helpers import python
from made import CASES, ONE_OF_EACH, Made

from stocached import FingerprintError, InvalidError, Loader, file_format, source
from stocached._formats.registry import FORMATS


def test_files_of_several_formats_are_counted(tmp_path: Path):
    for name in ("a.jsonl", "b.ndjson", "c.JSONL", "x.jpg", "y.csv", "z.csv", "sub/_SUCCESS"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1\n2\n")
    with (
        pytest.raises(
            InvalidError,
            match=r'several formats: 2 \.jsonl, 2 \.csv, 1 \.ndjson, .*1 no ending.*"/.*/\*\*/\*\.csv".*"paths"',  # most have this
        ) as raised
    ):
        source(tmp_path)
    assert "1 .jpg" in str(raised.value)
    assert list(source(tmp_path / "*.[njJ]*[lLn]")) == [1, 2] * 3
    assert len(source(tmp_path, format="paths")) == 7


def test_files_of_other_endings_stay_paths(tmp_path: Path):
    for name in ("a.jpg", "a.txt", "a.json", "zip", "xzip"):
        (tmp_path / name).touch()
    assert len(list(source(tmp_path))) == 5
    with zipfile.ZipFile(tmp_path / "weights.pt", "w") as archive:
        archive.writestr("a.txt", "b")
    assert list(source(tmp_path / "*.pt")) == [str(tmp_path / "weights.pt")]


def test_magic_bytes_tell_files_without_an_ending(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "photos", "w") as archive:
        archive.writestr("a.txt", "b")
        archive.writestr("README", "c")
    assert list(source(tmp_path / "photos")) == [{"__key__": "a", "txt": b"b"}, {"__key__": "README", "data": b"c"}]
    (tmp_path / "photos").rename(tmp_path / "photos.parquet")
    with pytest.raises(InvalidError, match=r"photos\.parquet is no parquet file: it begins with b'PK"):
        source(tmp_path / "photos.parquet")
    assert len(source(tmp_path / "photos.parquet", format="zip")) == 2


def test_formats_are_for_texts():
    with pytest.raises(InvalidError, match="format= goes with a text"):
        source([1], format="csv")
    with pytest.raises(InvalidError, match="columns= goes with a text"):
        source([1], columns=["a"])


class Fixed:
    """Records of four bytes."""

    def __init__(self, path: str) -> None:
        self.data = Path(path).read_bytes()

    def __len__(self) -> int:
        return len(self.data) // 4

    def __getitem__(self, element: int) -> int:
        return int.from_bytes(self.data[4 * element : 4 * element + 4], "little")


@pytest.fixture
def registered() -> Any:
    yield file_format(".fixed", ".fix")(Fixed)
    del FORMATS["fixed"]


def test_a_class_of_the_program(tmp_path: Path, registered: Any, cache_name: str, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.fixed").write_bytes(bytes(range(80)))
    (tmp_path / "b.FIX").write_bytes(bytes(range(40)))
    pipe = source(tmp_path / "*")
    assert (len(pipe), pipe[21]) == (30, 0x07060504)
    assert file_format(".fixed", ".fix")(Fixed) is Fixed  # a notebook's cell that runs again
    with pytest.raises(InvalidError, match="one of them is of the format fixed"):
        file_format(".other", ".fix")(Fixed)
    with pytest.raises(InvalidError, match="one of them is of the format zip"):
        file_format(".zip")(Fixed)
    for endings in (("fixed",), (3,)):
        with pytest.raises(InvalidError, match='give endings such as ".fasta"'):
            file_format(*endings)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match=r'^write @file_format\("\.fixed"\) above class Fixed, with the ending'):
        file_format(Fixed)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match=r"class Endless has no __len__: give it len\(\) and \[element\]"):
        file_format(".endless")(type("Endless", (), {"__getitem__": Fixed.__getitem__}))
    with pytest.raises(InvalidError, match='format="paths" has a meaning'):
        file_format(".paths")(Fixed)
    for magic in ("FIX", b"longer than what is read"):
        with pytest.raises(InvalidError, match="magic=.*: give bytes, 16 at most"):
            file_format(".other", magic=magic)(Fixed)  # type: ignore[arg-type]

    def read() -> int:
        return sum(map(len, Loader(source(tmp_path / "*").cache("16MiB", name=cache_name).batch(2))))

    assert read() == 30
    monkeypatch.setattr(Fixed, "__getitem__", lambda self, element: 7)
    with pytest.raises(FingerprintError, match="changed"):
        read()


def test_wrong_counts_are_errors(tmp_path: Path):
    class Groups(Fixed):
        counts = [2, 2]

        def __getitem__(self, element: int) -> Any:
            return [1] * (2 + element)

    (tmp_path / "a.groups").write_bytes(bytes(8))
    file_format(".groups")(Groups)
    pipe = source(tmp_path / "a.groups")
    assert pipe[1] == 1
    with pytest.raises(ValueError, match=r"a\.groups, element 1: it has 3 items, and its file says 2"):
        list(pipe)
    (tmp_path / "b.groups").write_bytes(bytes(12))
    with pytest.raises(InvalidError, match=r"b\.groups: its counts are not one number of items for each of 3 elements"):
        source(tmp_path / "*.groups")
    Groups.counts = None  # type: ignore[assignment]
    Groups.__init__ = lambda self, path: vars(self).update(data=bytes(8), counts=[2, 2] if "a." in path else None)  # type: ignore[method-assign]
    with pytest.raises(InvalidError, match=r"b\.groups: its counts are not one number of items for each of 2 elements"):
        source(tmp_path / "*.groups")
    del FORMATS["groups"]


def test_a_class_that_raises_stop_iteration_ends_no_epoch(
    tmp_path: Path, registered: Any, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "a.fixed").write_bytes(bytes(20))
    monkeypatch.setattr(Fixed, "__getitem__", lambda self, element: 1 if element < 2 else next(iter(())))
    with pytest.raises(RuntimeError, match="Fixed raised StopIteration"):
        list(Loader(source(tmp_path / "a.fixed").batch(1)))


def test_names_without_an_ending_need_not_open(tmp_path: Path):
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")
    assert list(source(tmp_path)) == [str(tmp_path / "gone")]


def test_a_million_paths_are_looked_at_quickly(tmp_path: Path):
    """No path is a text for that: 8 bytes of numbers for each are enough."""
    python(
        "import tracemalloc, numpy as np\n"
        "from stocached._formats.registry import chosen\n"
        "from stocached._memory.texts import Texts\n"
        "paths = Texts.of_list([f'/data/{k:07}.jpg' for k in range(300_000)])\n"
        "tracemalloc.start()\n"
        "assert chosen(paths, paths[0], 'data/', '') is None\n"
        "assert tracemalloc.get_traced_memory()[1] < 60 * 300_000\n"
    )


@pytest.mark.parametrize("case", [name for name in ONE_OF_EACH if not name.startswith("mds")], indirect=True)
def test_files_that_are_empty_or_compressed_say_what_to_do(case: Made, tmp_path: Path):
    path = sorted(tmp_path.iterdir())[0]
    options = {name: value for name, value in case.options.items() if name != "columns"}
    whole, own = path.read_bytes(), path.suffix == ".points"
    path.write_bytes(b"")
    with pytest.raises(InvalidError, match=rf"{path.name}( is empty|.* has (no end mark|0 bytes)|$)"):
        source(path, **options)
    path.write_bytes(gzip.compress(whole))
    with pytest.raises(
        InvalidError, match=rf"{path.name}.* is compressed with gzip.*; unpack it: gzip -dc .* > new-file"
    ):
        source(path, **options)
    packed = path.rename(f"{path}.gz")
    if own:  # the program may read them itself
        assert [*source(packed)] == [str(packed)]
    else:
        with pytest.raises(
            InvalidError, match=rf"{packed.name} is compressed.*unpack it.*(gunzip|gzip -dc) .*{packed.name}"
        ):
            source(packed, **options)


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    return CASES[request.param](tmp_path)


def test_what_the_program_may_not_read_is_no_missing_file(folder: Path):
    """For root, a child that is another user asks."""
    (folder / "closed").mkdir()
    for name in ("a.jsonl", "closed/b.jsonl"):
        (folder / name).write_text("1\n")
    folder.chmod(0o755)
    (folder / "a.jsonl").chmod(0)
    (folder / "closed").chmod(0)
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            for name in ("a.jsonl", "closed/b.jsonl", "closed/*.jsonl", "closed/"):
                with pytest.raises(PermissionError, match=rf"{folder}/(a|closed)") as raised:
                    source(folder / name)
                said = str(raised.value) + "".join(getattr(raised.value, "__notes__", []))
                assert f"user id {os.geteuid()} may not read it; its owner permits that by chmod" in said
            os._exit(0)
        os._exit(1)
    ended = os.waitpid(child, 0)[1]
    (folder / "closed").chmod(0o700)
    assert ended == 0


@pytest.mark.parametrize("text", ["~/no such folder/*.csv", "$HOME/rows.csv"])
def test_texts_of_a_shell_say_what_expands_them(text: str):
    with pytest.raises(
        InvalidError, match=r"~ and \$ are for shells: give os\.path\.expanduser and os\.path\.expandvars"
    ):
        source(text)
