"""What is known of a dataset before its first sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .._common.errors import InvalidError
from .._common.numbers import whole
from .._samples import dtypes
from .._samples import schema as _schema
from .._samples.schema import Field
from .._samples.values import FixedValues, VariableValues

MAX_SAMPLE_BYTES = 2**32 - 1  # lengths have 32 bits, as in a segment


@dataclass(frozen=True)
class DatasetInfo:
    """What a dataset is.

    fields: shape and dtype by name, as Cache.create takes them: {"image": ((3, 32, 32), "uint8"),
        "label": ((), "int64")}. A sample is a mapping with these names, or with one field the value itself.
    samples: how many there are. None: unknown before the last one; then one process prepares them.
    fingerprint: names the data and how it is prepared; change it when you change either (`fingerprint()` makes one).
        It tells whether a prepared dataset, or what an interrupted preparation left, is the one that you ask for.
    variable: samples differ in size, in the dimensions that are None.
    notes: other texts by name, such as the names of classes. They are not compared.
    kind: what it was made from, in one word."""

    fields: Mapping[str, tuple[Any, Any]]
    samples: int | None
    fingerprint: str
    variable: bool = False
    notes: Mapping[str, str] = field(default_factory=dict)
    kind: str = "prepared"

    def schema(self) -> tuple[Field, ...]:
        """The fields with their offsets. Raises InvalidError, which names what is impossible."""
        made = _schema.make_fields(fields=self.fields, variable=self.variable)
        for one in made:
            if 0 in one.shape:
                raise InvalidError(
                    f"{one}: a dimension of 0 holds nothing; leave the field out, or make the dimension None with variable=True"
                )
        if self.variable:
            return made
        laid: list[Field] = []
        end = 0
        for one in made:
            offset = -(-end // one.dtype.itemsize) * one.dtype.itemsize
            laid.append(Field(one.name, one.shape, one.code, offset))
            end = offset + one.bytes
        if end > MAX_SAMPLE_BYTES:
            raise InvalidError(f"a sample takes {end} bytes, none has more than {MAX_SAMPLE_BYTES}")
        return tuple(laid)

    def checked(self) -> DatasetInfo:
        """Itself. Raises InvalidError for impossible values."""
        if not isinstance(self.fingerprint, str) or not self.fingerprint:
            raise InvalidError(
                f"fingerprint={self.fingerprint!r}: say which data this is and how it is prepared, in a string that changes with either; "
                "stocached.prepare.fingerprint(...) makes one of settings and files"
            )
        if self.samples is not None:  # as JSON takes it
            object.__setattr__(self, "samples", whole("samples", self.samples, 1, 2**63 - 1))
        for name, text in self.notes.items():
            if not isinstance(name, str) or not isinstance(text, str):
                raise InvalidError(f"notes: {name!r} is {text!r}; both must be strings")
        for what, text in (("fingerprint", self.fingerprint), ("kind", self.kind), *self.notes.items()):
            try:
                text.encode()
            except UnicodeEncodeError:
                raise InvalidError(f"{what}={text!r} is no text that can be written as UTF-8") from None
        self.schema()
        return self


def sample_bytes(fields: tuple[Field, ...]) -> int:
    """Of fields of fixed size that are laid out."""
    return fields[-1].offset + fields[-1].bytes


def values_of(fields: tuple[Field, ...], variable: bool) -> FixedValues | VariableValues:
    """Converts samples of these fields to bytes and back."""
    return VariableValues(fields) if variable else FixedValues(fields, sample_bytes(fields))


def specs_of(fields: tuple[Field, ...]) -> dict[str, tuple[tuple[int | None, ...], str]]:
    """The fields as DatasetInfo has them."""
    return {one.name: (one.shape, dtypes.NAMES[one.code]) for one in fields}
