"""Writes a dataset in tar shards, in the format of webdataset, with the index of each beside it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tarfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from .._common.errors import CorruptError, SchemaError
from .._common.one_line import one_line, printable
from .._shards.tar_headers import BLOCK
from .._shards.tar_index import MOST_BYTES, SUFFIX, encoded, kept_index, split_name
from .description import NAME, check_object
from .errors import NotPreparedError
from .folder_writer import FolderWriter, Name

FORMAT, _VERSION = "stocached-tar", 1
_NAME = re.compile("(?!__)[^\\0\ud800-\udfff]*")  # and a key; webdataset's own names begin with __
_RECORD = 10240  # bytes: tar pads archives to a multiple


def shard_name(number: int) -> str:
    return f"{number:05d}.tar"


@dataclass(frozen=True)
class TarDocument:
    """dataset.json of tar shards. Without shards, the dataset is not whole."""

    kind: str
    fingerprint: str
    file_bytes: int
    shards: list[str] = field(default_factory=list)
    samples: int = 0

    @property
    def name(self) -> Name:
        said = json.dumps([FORMAT, _VERSION, self.kind, self.fingerprint, self.file_bytes])
        return Name(hashlib.sha256(said.encode()).digest()[:16], self.fingerprint)

    def text(self) -> bytes:
        return json.dumps({"format": FORMAT, "version": _VERSION, **asdict(self)}, indent=2).encode() + b"\n"


def tar_document(folder: str) -> TarDocument:
    """dataset.json of a folder. Raises NotPreparedError without one of tar shards, CorruptError, OSError."""
    path = os.path.join(folder, NAME)
    missing = NotPreparedError(f"{folder}: no dataset in tar shards, such as .write(format='tar') makes")
    try:
        with open(path, "rb") as file:
            said = json.loads(file.read())
    except (FileNotFoundError, NotADirectoryError):
        raise missing from None
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{path} is no JSON: {error}") from None
    if not isinstance(said, dict) or said.pop("format", None) != FORMAT:
        raise missing
    if said.pop("version", None) != _VERSION:
        raise CorruptError(f"{path} has another version than {_VERSION}, which this package knows")
    types = {"kind": str, "fingerprint": str, "file_bytes": int, "shards": list, "samples": int}
    check_object(path, said, types)
    if said["shards"] != [*map(shard_name, range(len(said["shards"])))]:
        raise CorruptError(f"{path}: shards are {one_line(said['shards'], 100)}; want {shard_name(0)} and so on")
    return TarDocument(**said)


class TarWriter(FolderWriter):
    """Writes shards. Members have the mode 0644 and no time and owner, so equal samples make equal shards."""

    kind = "tar"
    ours = re.compile(rf"(?:dataset\.json|(?:\d{{5}}|[1-9]\d{{5,}})\.tar(?:{re.escape(SUFFIX)})?)(?:\.part)?")

    def __init__(self, folder: str, document: TarDocument, *, wait: float | None = 0, restart: bool = False) -> None:
        """As FolderWriter."""
        self._document = document
        self._shards: list[str] = []
        self._key = ""  # the key of the last sample
        self._begin_shard()
        super().__init__(folder, document.name, wait=wait, restart=restart)
        try:
            if not self.whole and not os.path.exists(os.path.join(self.part, NAME)):
                self._write_file(NAME, document.text())
        except BaseException:
            self.close()  # the lock, which this process would wait for the next time
            raise

    @staticmethod
    def name_of(folder: str) -> Name:
        return tar_document(folder).name

    def _keep(self, restart: bool) -> bool:
        try:
            same = self.name_of(self.part).id == self.name.id
        except (NotPreparedError, CorruptError):
            return False
        if not same:
            if not restart:
                raise self._of_other_data()
            return False
        name = shard_name(len(self._shards))
        members = kept_index(os.path.join(self.part, name))
        if members is None:
            return False
        self._shards.append(name)
        self.next += len(members.starts) - 1
        return True

    def _kept(self) -> set[str]:
        return {NAME, *self._shards, *(name + SUFFIX for name in self._shards)} if self._shards else set()

    def _begin_shard(self) -> None:
        self._keys: list[str] = []
        self._members: list[list[tuple[str, int, int]]] = []  # as `encoded` takes them
        self._at = 0  # bytes of the shard

    def append(self, key: str, members: Mapping[str, bytes]) -> None:
        """Writes the next sample. Raises SchemaError for names that are none; OSError, after which nothing can be
        written any more."""
        self._check_usable()
        if not members:
            raise SchemaError(f"sample {self.next} has no members; a sample of a tar shard has one at least")
        if self._key == key:
            raise SchemaError(
                f"samples {self.next - 1} and {self.next} have the key {key!r}, so they would be one sample"
            )
        for name, data in members.items():
            if split_name(f"{key}.{name}") != (key, name) or not _NAME.fullmatch(f"{name}/{key}"):
                raise SchemaError(
                    f"sample {self.next} has the member {printable(f'{key}.{name}')!r}: readers take a key without dots, "
                    "and a name in lower case that does not begin with __; none is empty, or has a NUL"
                )
            if len(data) > MOST_BYTES:
                raise SchemaError(
                    f"the member {name!r} of sample {self.next} has {len(data):,} bytes; none has more than {MOST_BYTES:,}"
                )
        try:
            self._append(key, members)
        except BaseException as error:
            self._error = error
            raise

    def _append(self, key: str, members: Mapping[str, bytes]) -> None:
        if self._at >= self._document.file_bytes:
            self._end_shard()
        if self._file < 0:
            self._create(shard_name(len(self._shards)))
        parts, places = list[bytes](), list[tuple[str, int, int]]()
        for name, data in members.items():
            header = tarfile.TarInfo(f"{key}.{name}")
            header.size = len(data)
            head = header.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
            places.append((name, self._at + len(head), len(data)))
            parts += (head, data, bytes(-len(data) % BLOCK))
            self._at += sum(map(len, parts[-3:]))
        self._write(b"".join(parts))
        self._keys.append(key)
        self._key = key
        self._members.append(places)
        self.next += 1

    def _end_shard(self) -> None:
        self._write(bytes(2 * BLOCK + -(self._at + 2 * BLOCK) % _RECORD))
        name = shard_name(len(self._shards))
        self._finish_file(name)
        path = os.path.join(self.part, name)
        self._write_file(name + SUFFIX, encoded(path, self._keys, self._members))  # with it, the shard counts
        self._shards.append(name)
        self._begin_shard()

    def _write_rest(self) -> None:
        if self._keys:
            self._end_shard()
        said = self._document
        whole = TarDocument(said.kind, said.fingerprint, said.file_bytes, self._shards, self.next)
        self._write_file(NAME, whole.text())

    def _write_file(self, name: str, data: bytes) -> None:
        self._create(name)
        self._write(data)
        self._finish_file(name)

    def close(self) -> None:
        if self._lock >= 0 and not self._shards:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.part, NAME))  # nothing else stays
        super().close()
