"""The formats of files, and which one a text names."""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.errors import InvalidError
from .._common.one_line import one_line, printable
from .._common.remote_addresses import shown
from .._memory.texts import Texts
from .._shards.tar_index import compressed_by, unpack
from .._shards.wildcards import literal

PATHS = "paths"
INSTEAD = f'format="{PATHS}" for the paths of all'
_UNPACKED = {".gz": "gunzip", ".zst": "unzstd", ".bz2": "bunzip2", ".xz": "unxz", ".lz4": "unlz4"}
_TARS = {".tgz": ".gz", ".tbz2": ".bz2", ".txz": ".xz"}
_STREAM = (
    "it is a stream, as datasets of Hugging Face keep them: give source() the dataset, or write the file anew by "
    "pyarrow.ipc.new_file"
)
_FEATHER = "it is Feather of version 1: write it anew by pandas.read_feather(OLD).to_feather(NEW)"
_MATLAB = "it is of an older MATLAB: write it anew by save(NEW, '-v7.3')"
_SHARD = re.compile(r"-[\d*?]+-of-[\d*?]+$")  # after the ending: a.tfrecord-00000-of-00100
_HEAD = 16  # bytes that may tell a format
_SHOWN = 6  # endings of a folder, in an error


@dataclass(frozen=True)
class Format:
    """A row of the table. endings: of names, in lower case. magic: what files begin with, if all do. of: the class, or its
    module and name. others: how files begin that only have its ending, and what to do with them. block: whether bytes of
    another program may stand before the magic ones."""

    name: str
    endings: tuple[str, ...]
    magic: tuple[bytes, ...]
    of: Any
    others: tuple[tuple[bytes, str], ...] = ()
    block: bool = False

    def check(self, where: Any) -> None:
        """Raises InvalidError for a file that begins otherwise. where: a path, or a file."""
        head = head_of(where) if self.magic else b""
        if head.startswith(self.magic or b"") or (self.block and self._has_block(where)):
            return
        name, packing = printable(str(where)), compressed_by(head)
        if not head:
            raise InvalidError(f"{name} is empty; copy or write it again")
        if packing is not None:
            raise InvalidError(f"{name} is compressed with {packing}, and no {self.name} file; {unpack(name, packing)}")
        more = (more for magic, more in self.others if head.startswith(magic))
        raise InvalidError(
            f"{name} is no {self.name} file: it begins with {head[:8]!r}; "
            + next(more, "correct its name, or give format=")
        )

    def _has_block(self, where: Any) -> bool:
        """Of 512 bytes, 1,024, 2,048, ..."""
        size: int = os.path.getsize(where) if isinstance(where, str) else where.size
        return any(head_of(where, 1 << bit).startswith(self.magic) for bit in range(9, size.bit_length()))

    def load(self) -> Any:
        """The class."""
        if not isinstance(self.of, str):
            return self.of
        module, _, name = self.of.partition(":")
        return getattr(importlib.import_module(f".{module}", __package__), name)


FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        Format("jsonl", (".jsonl", ".ndjson"), (), "lines:JsonLines"),
        Format("csv", (".csv",), (), "lines:Csv"),
        Format("tsv", (".tsv",), (), "lines:Tsv"),
        Format("text", (), (), "lines:Text"),
        Format("tfrecord", (".tfrecord", ".tfrecords"), (), "records:TfRecord"),
        Format("records", (), (), "records:Records"),
        Format("tar", (".tar",), (), "tars:Tar"),
        Format("zip", (".zip",), (b"PK\3\4", b"PK\5\6"), "archives:Zip"),
        Format("mds", (".mds",), (), "mds:Shard"),
        Format("parquet", (".parquet",), (b"PAR1",), "tables:Parquet"),
        Format("npz", (".npz",), (b"PK\3\4", b"PK\5\6"), "arrays:Npz"),
        Format("safetensors", (".safetensors",), (), "arrays:Safetensors"),
        Format(
            "hdf5", (".h5", ".hdf5"), (b"\x89HDF\r\n\x1a\n",), "hdf5:Hdf5", others=((b"MATLAB 5", _MATLAB),), block=True
        ),
        Format(
            "arrow",
            (".arrow", ".feather"),
            (b"ARROW1\0\0",),
            "tables:Arrow",
            others=((b"\xff\xff\xff\xff", _STREAM), (b"FEA1", _FEATHER)),
        ),
    )
}


def file_format(*endings: str, magic: bytes = b"") -> Callable[[type], type]:
    """Registers a class of files, for `source`: @file_format(".fasta") above the class. The first ending names the format.

    The class is called with the path of a file, and with the options that `source` got. It has len() and [element],
    which gives an item. If an element is a list of items, as a block of rows is, it has `counts` too: how many items
    each element has. An object of it is pickled for workers, so it opens what cannot be pickled when it reads.

    magic: files begin with these bytes; those without an ending in their names are told by them.

    Raises InvalidError for an ending of another class."""
    for kind in endings:
        if isinstance(kind, type):  # @file_format without brackets
            raise InvalidError(
                f'write @file_format(".{kind.__name__.lower()}") above class {kind.__name__}, with the ending of its files'
            )
    names = [str(ending).lower() for ending in endings]
    if not names or not all(ending.startswith(".") and len(ending) > 1 for ending in names):
        raise InvalidError(f'file_format({", ".join(map(repr, endings))}): give endings such as ".fasta"')
    if not isinstance(magic, bytes) or len(magic) > _HEAD:
        raise InvalidError(f"magic={magic!r}: give bytes, {_HEAD} at most")

    def register(kind: type) -> type:
        if f".{PATHS}" in names:
            raise InvalidError(
                f'file_format({", ".join(map(repr, endings))}): format="{PATHS}" has a meaning; give others'
            )
        for method in ("__len__", "__getitem__"):
            if not hasattr(kind, method):
                raise InvalidError(f"class {kind.__name__} has no {method}: give it len() and [element]")
        taken = {ending: each for each in FORMATS.values() for ending in (*each.endings, f".{each.name}")}
        name = names[0][1:]
        for other in filter(None, map(taken.get, names)):
            if other.name != name or getattr(other.of, "__qualname__", "") != kind.__qualname__:
                raise InvalidError(
                    f"file_format({', '.join(map(repr, endings))}): one of them is of the format {other.name}; give others"
                )
        FORMATS[name] = Format(name, tuple(names), (magic,) if magic else (), kind)
        return kind

    return register


def named(text: str, name: str | None, here: bool) -> Format | None:
    """The format that the program gives; None: none, or the paths. here: files of this machine. Raises InvalidError."""
    if name is not None and name not in FORMATS and not (here and name == PATHS):
        paths = f", and {PATHS} for the paths of files" * here
        raise InvalidError(
            f"source({one_line(shown(text))}, format={name!r}): there are {', '.join(FORMATS)}{paths}; "
            "stocached.file_format adds others"
        )
    return None if name is None else FORMATS.get(name)


def names_read() -> str:
    """What tells names of objects that are not read whole, for Python and Go. An object of another name may be among them."""
    endings = "|".join(re.escape(ending) for each in FORMATS.values() for ending in each.endings)
    packed = "|".join(map(re.escape, _UNPACKED))
    tars = "|".join(map(re.escape, _TARS))
    return rf"(?i)(?:(?:{endings})(?:-\d+-of-\d+|{packed})?|{tars})$|^index\.json$"


def options_read() -> set[str]:
    """The names of the options of all formats."""
    return {name for each in FORMATS.values() for name in [*inspect.signature(each.load()).parameters][1:]}


def chosen(paths: Texts, first: Any, text: str, instead: str) -> Format | None:
    """The format of the files that a text names; None: they are elements themselves. first: the first path, or file.
    instead: an argument that makes them so, and what it gives. Raises InvalidError for files of several formats, and for
    compressed lines."""
    marks = _marks(paths)
    known = np.flatnonzero(marks >= 0)
    if not len(known):
        _refuse_compressed(paths[0], text, instead)
        found = of_ending(paths[0])  # the format of shards
        return found if found is not None and all(of_ending(path) is found for path in paths) else _by_magic(first)
    if (marks == marks[0]).all():
        return list(FORMATS.values())[int(marks[0])]
    endings = Counter(os.path.splitext(path)[1].lower() or "no ending" for path in paths)
    listed = [f"{count:,} {ending}" for ending, count in endings.most_common(_SHOWN)]
    others = len(endings) - len(listed)
    ending = Counter(os.path.splitext(paths[k])[1] for k in known.tolist()).most_common(1)[0][0]
    raise InvalidError(
        f"source({one_line(shown(text))}): its files have several formats: {', '.join(listed)}"
        f"{f' and {others} more' if others else ''}. "
        f'Name those of one, such as "{os.path.join(literal(printable(paths.folder)) or ".", "**", "*" + ending)}", or write {instead}'
    )


def of_ending(text: str) -> Format | None:
    """The format of a file, or of the files of a pattern."""
    ending = os.path.splitext(_SHARD.sub("", text))[1].lower()
    return next((each for each in FORMATS.values() if ending in each.endings), None)


def _marks(paths: Texts) -> npt.NDArray[np.int64]:
    """The number of the format of each path; -1: none."""
    made = np.full(len(paths), -1)
    ends, starts = paths.ends[1:].astype(np.int64), paths.ends[:-1].astype(np.int64)
    for number, format in enumerate(FORMATS.values()):
        for ending in map(str.encode, format.endings):
            some = np.flatnonzero(ends - starts > len(ending))  # in the name itself
            for back, byte in enumerate(reversed(ending), 1):
                found = paths.data[ends[some] - back]
                some = some[(found == byte) | ((found == byte - 32) & (97 <= byte <= 122))]
            made[some] = number
    return made


def _by_magic(where: Any) -> Format | None:
    """Of a file without an ending."""
    if "." in os.path.basename(str(where)):
        return None
    try:
        head = head_of(where)
    except OSError:  # its path can be given nonetheless
        return None
    return next((each for each in FORMATS.values() for magic in each.magic if head.startswith(magic)), None)


def head_of(where: Any, at: int = 0) -> bytes:
    """where: a path, or a file."""
    if not isinstance(where, str):
        return where.read(at, max(0, min(_HEAD, where.size - at)))  # type: ignore[no-any-return]
    with open(where, "rb", buffering=0) as file:
        file.seek(at)
        return file.read(_HEAD)


def _refuse_compressed(path: str, text: str, instead: str) -> None:
    """Raises InvalidError for a compressed file of a format of ours. instead: what gives whole files.

    A program may have a class of its own for such paths, and those of MDS are read by their folder."""
    stem, ending = os.path.splitext(path.lower())
    if ending in _TARS:
        stem, ending = stem + ".tar", _TARS[ending]
    inner = of_ending(stem)
    if ending in _UNPACKED and inner is not None and isinstance(inner.of, str) and inner.name != "mds":
        name = printable(path)
        packed = name.rpartition("/")[2] if "://" in name else name
        raise InvalidError(
            f"source({one_line(shown(text))}): {name} is compressed, so no part of it can be read by itself; unpack it: "
            f"{_UNPACKED[ending]} -k {packed}; or write {instead}, and read whole files in .flat_map"
        )


file_format.__module__ = "stocached"  # where users find it
