"""What `source(..., decode=True)` makes of the bytes of a file or of a member."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .._common.errors import BadSampleError, UnsupportedError
from .._shards.tar_index import split_name
from .._shards.tar_members import member_value
from .decoding import Decode
from .errors import DecodeError, NoDecoderError
from .samples import ending_of

DATA = "data"  # the field of a name without an ending
_PICTURES = {"jpg", "jpeg", "jpe", "jfif", "png", "webp"}  # others need Pillow
_decode = Decode()


def key_and_field(name: str) -> tuple[str, str] | None:
    """As webdataset has them: a name up to its first dot, and the rest in lower case. None: it belongs to no item."""
    return split_name(name if "." in name[name.rfind("/") + 1 :] else f"{name}.{DATA}")


def decoded_item(key: str | None, fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The values of the fields of an item. Those that are no bytes stay. Raises BadSampleError, which names the field."""
    item: dict[str, Any] = {} if key is None else {"__key__": key}
    for field, value in fields:
        try:
            item[field] = decoded(field, value) if type(value) is bytes else value
        except BadSampleError as error:
            raise BadSampleError(f"{field}: {error.reason}") from None
    return item


def decoded(field: str, data: bytes) -> Any:
    """A value by its ending: pictures and arrays of NumPy, JSON, texts, whole numbers. Others stay bytes: a pickle would run
    code. The first bytes tell a field without an ending. Raises BadSampleError."""
    ending = field.rpartition(".")[2]
    if field == DATA:
        ending = "npy" if data.startswith(b"\x93NUMPY") else ending_of(data)
    try:
        return _decode.decode(data, field) if ending in _PICTURES else member_value(ending, data)
    except NoDecoderError as error:
        raise UnsupportedError(str(error)) from None  # the sample is not bad
    except DecodeError as error:
        raise BadSampleError(error.reason) from None
    except (ValueError, RecursionError, MemoryError, EOFError) as error:
        raise BadSampleError(f"no {ending}: {error}") from None
