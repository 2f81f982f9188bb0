"""dataset.json, as docs/spec/block.md has it: written byte for byte as the Go code does, and
checked as it does."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .._common.checksum import crc32c
from .._common.errors import CorruptError, InvalidError, VersionError
from .._samples import dtypes
from .._samples.schema import Field
from . import layout
from .folder_writer import Name
from .info import MAX_SAMPLE_BYTES, DatasetInfo, sample_bytes, specs_of

NAME = "dataset.json"
FORMAT = "stocached-block"
MAX_BYTES = 64 << 20
COMPRESSIONS = ("none", "zstd")


def file_name(number: int) -> str:
    return f"{number:05d}.stocblk"


@dataclass(frozen=True)
class Description:
    """What is known of a dataset in block files before its first sample, creation parameters
    included."""

    fields: tuple[Field, ...]  # laid out
    variable: bool
    compression: str
    block_bytes: int
    file_bytes: int
    kind: str
    fingerprint: str

    def checked(self) -> Description:
        """Itself. Raises InvalidError for impossible settings."""
        if self.compression not in COMPRESSIONS:
            raise InvalidError(f"compression {self.compression!r} is neither none nor zstd")
        if not layout.ALIGN <= self.block_bytes <= layout.MAX_BLOCK_BYTES or self.block_bytes % layout.ALIGN:
            raise InvalidError(
                f"blocks of {self.block_bytes} bytes; want a multiple of {layout.ALIGN}, at most {layout.MAX_BLOCK_BYTES}"
            )
        if not layout.ALIGN <= self.file_bytes <= layout.MAX_FILE_BYTES:
            raise InvalidError(f"files of {self.file_bytes} bytes; want {layout.ALIGN} to {layout.MAX_FILE_BYTES}")
        return self

    @property
    def least(self) -> int:
        """Bytes that a sample has at least."""
        return 0 if self.variable else sample_bytes(self.fields)

    @property
    def most(self) -> int:
        """Bytes that a sample may have at most."""
        return MAX_SAMPLE_BYTES if self.variable else sample_bytes(self.fields)

    def document(self) -> dict[str, Any]:
        return {
            "variable": self.variable,
            "fields": [
                {"name": one.name, "dtype": dtypes.NAMES[one.code], "dims": list(one.shape)} for one in self.fields
            ],
            "compression": self.compression,
            "block_bytes": self.block_bytes,
            "file_bytes": self.file_bytes,
            "source": {"kind": self.kind, "fingerprint": self.fingerprint},
        }

    @property
    def name(self) -> Name:
        return Name(_identity(_compact(self.document())), self.fingerprint)


@dataclass(frozen=True)
class File:
    """A block file in dataset.json."""

    name: str
    bytes: int
    samples: int
    blocks: int
    footer_crc32c: str


@dataclass(frozen=True)
class Document:
    """All of dataset.json."""

    description: Description
    id: bytes
    samples: int
    sample_bytes: int  # length of the largest
    notes: Mapping[str, str]
    files: tuple[File, ...]

    def text(self) -> bytes:
        document = {
            "format": FORMAT,
            "version": layout.VERSION,
            "id": self.id.hex(),
            "description": self.description.document(),
            "samples": self.samples,
            "sample_bytes": self.sample_bytes,
            "notes": [{"name": name, "text": text} for name, text in self.notes.items()],
            "files": [vars(file) for file in self.files],
        }
        crc = crc32c(_compact(document)[:-1])  # up to the comma before crc32c
        return _escaped(json.dumps({**document, "crc32c": f"{crc:08x}"}, indent=2, ensure_ascii=False)) + b"\n"

    def info(self) -> DatasetInfo:
        said = self.description
        return DatasetInfo(specs_of(said.fields), self.samples, said.fingerprint, said.variable, self.notes, said.kind)


def parse(text: bytes) -> Document:
    """Checks dataset.json, except what the block files must confirm. Raises CorruptError, or
    VersionError for another version or format."""
    try:
        compact = _without_whitespace(text.decode())
        whole = json.loads(compact)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"it is no JSON: {error}") from None
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise VersionError(
            f"its format is {whole.get('format') if isinstance(whole, dict) else whole!r}, want {FORMAT!r}"
        )
    if whole.get("version") != layout.VERSION:
        raise VersionError(
            f"it has version {whole.get('version')} of the block format, this package knows {layout.VERSION}"
        )
    _check_seal(compact)
    check_object(
        "it",
        whole,
        {
            "format": str, "version": int, "id": str, "description": dict, "samples": int, "sample_bytes": int, "notes": list, "files": list, "crc32c": str,
        },
    )  # fmt: skip
    description, identity = _parse_description(whole["description"], _value_text(compact, "description"))
    if whole["id"] != identity.hex():
        raise CorruptError(f"its id is {whole['id']!r}, and its description gives {identity.hex()!r}")
    for note in whole["notes"]:
        check_object("a note", note, {"name": str, "text": str})
    samples, largest = whole["samples"], whole["sample_bytes"]
    if not description.least <= largest <= description.most:
        raise CorruptError(f"sample_bytes is {largest}; its fields take {description.least} to {description.most}")
    files = []
    for k, entry in enumerate(whole["files"]):
        types = {"name": str, "bytes": int, "samples": int, "blocks": int, "footer_crc32c": str}
        check_object(f"its file {k}", entry, types)
        file = File(**entry)
        if file.name != file_name(k) or file.samples < 1 or file.blocks < 1 or file.bytes < layout.TRAILER_BYTES:
            raise CorruptError(
                f"its file {k} is {file}; want the name {file_name(k)} and at least one sample and one block"
            )
        files.append(file)
    there = sum(file.samples for file in files)
    if there != samples or samples < 1:
        raise CorruptError(f"it has {samples} samples, and its files {there}")
    return Document(
        description, identity, samples, largest, {note["name"]: note["text"] for note in whole["notes"]}, tuple(files)
    )


def _parse_description(said: Any, text: str) -> tuple[Description, bytes]:
    it = "its description"
    check_object(
        it,
        said,
        {"variable": bool, "fields": list, "compression": str, "block_bytes": int, "file_bytes": int, "source": dict},
    )
    check_object(it, said["source"], {"kind": str, "fingerprint": str})
    specs: dict[str, tuple[Any, str]] = {}
    for one in said["fields"]:
        check_object(it, one, {"name": str, "dtype": str, "dims": list})
        if one["name"] in specs or not all(
            dim is None or (type(dim) is int and 0 < dim <= MAX_SAMPLE_BYTES) for dim in one["dims"]
        ):
            raise CorruptError(f"its field {one['name']!r} comes twice, or has impossible dimensions: {one['dims']}")
        specs[one["name"]] = (tuple(one["dims"]), one["dtype"])
    source = said["source"]
    try:
        fields = DatasetInfo(specs, None, source["fingerprint"], said["variable"]).schema()
        made = Description(
            fields,
            said["variable"],
            said["compression"],
            said["block_bytes"],
            said["file_bytes"],
            source["kind"],
            source["fingerprint"],
        )
        return made.checked(), _identity(text.encode())
    except InvalidError as error:
        raise CorruptError(f"its description: {error}") from None


def check_object(what: str, value: Any, types: Mapping[str, type]) -> None:
    """Checks keys and types of a JSON object: no key is optional, none may be added. Raises CorruptError."""
    if not isinstance(value, dict) or value.keys() != types.keys():
        raise CorruptError(f"{what} is {value!r}; want an object with {list(types)}")
    for key, kind in types.items():
        if type(value[key]) is not kind or (kind is int and value[key] < 0):
            want = "a whole number of 0 or more" if kind is int else f"a {kind.__name__}"
            raise CorruptError(f"{what}: {key} is {value[key]!r}; want {want}")


# --------------------------------------------------------------------------------------------- text

_STRING_OR_SPACE = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\r\n]+', re.DOTALL)
_SEAL = re.compile(r',"crc32c":"([0-9a-f]{8})"}\Z')


def _without_whitespace(text: str) -> str:
    return _STRING_OR_SPACE.sub(lambda match: match[1] or "", text)


def _check_seal(compact: str) -> None:
    found = _SEAL.search(compact)
    crc = crc32c(compact[: found.start() if found else len(compact)].encode())
    if found is None or int(found[1], 16) != crc:
        raise CorruptError(
            f"it was changed after it was written: it ends in {compact[-24:]!r}, and its text gives {crc:08x}"
        )


def _value_text(compact: str, wanted: str) -> str:
    """The text of the value of a key of the outermost object, which is JSON without whitespace."""
    decoder, at = json.JSONDecoder(), 1
    while compact[at : at + 1] == '"':
        key, at = decoder.raw_decode(compact, at)
        _, end = decoder.raw_decode(compact, at + 1)
        if key == wanted:
            return compact[at + 1 : end]
        at = end + 1
    raise CorruptError(f"it has no {wanted}")


def _escaped(text: str) -> bytes:
    """As Go's encoding/json writes it: these five only ever stand in strings."""
    for plain in "<>&\u2028\u2029":
        text = text.replace(plain, f"\\u{ord(plain):04x}")
    return text.encode()


def _compact(value: Any) -> bytes:
    return _escaped(json.dumps(value, separators=(",", ":"), ensure_ascii=False))


def _identity(compact: bytes) -> bytes:
    return hashlib.sha256(compact).digest()[:16]
