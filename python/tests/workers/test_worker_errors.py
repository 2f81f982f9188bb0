"""Exceptions of workers: what the parent raises for them."""

from __future__ import annotations

import pickle

import pytest

from stocached._workers.errors import RemoteError, RemoteTraceback


class TwoArgumentsError(Exception):
    """Can be pickled, and not be read again: its constructor takes other arguments than `args`."""

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


class ReadingFailsError(Exception):
    def __reduce__(self):
        return _fail, ()


class BecomesTextError(Exception):
    def __reduce__(self):
        return str, ("no exception",)


class NoTextError(Exception):
    def __str__(self):
        raise ValueError("no text")


def _fail():
    raise OSError("cannot be read")


def sent(error, where="in worker 1, which loaded sample 7"):
    """What the parent gets, after the exception was raised."""
    try:
        raise error
    except BaseException as raised:
        record = RemoteError.of(raised, where)
    return pickle.loads(pickle.dumps(record))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        KeyError("seven"),
        OSError(2, "no such file", "seven"),
        KeyboardInterrupt("now"),
        UnicodeDecodeError("ascii", b"x", 0, 1, "y"),
    ],
)
def test_an_exception_is_rebuilt_as_it_was(error):
    rebuilt = sent(error).rebuilt()
    assert type(rebuilt) is type(error)
    assert rebuilt.args == error.args
    assert str(rebuilt) == str(error)
    assert isinstance(rebuilt.__cause__, RemoteTraceback)
    cause = str(rebuilt.__cause__)
    assert cause.startswith("\n\nin worker 1, which loaded sample 7:\nTraceback (most recent call last):\n")
    assert "raise error" in cause
    with pytest.raises(type(error)) as caught:
        sent(error).reraise()
    assert caught.value.args == error.args


def test_attributes_are_kept():
    error = ValueError("bad")
    error.sample = 7
    assert sent(error).rebuilt().sample == 7


class Local:
    @staticmethod
    def error():
        class LocalError(Exception):
            """Cannot be pickled: no module has it."""

        return LocalError("strange")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Local.error(), "LocalError: strange"),
        (ValueError(lambda: 0), "ValueError: <function"),
        (TwoArgumentsError(1, 2), "TwoArgumentsError: 1 and 2"),
        (ReadingFailsError("damaged"), "ReadingFailsError: damaged"),
        (BecomesTextError("text"), "BecomesTextError: text"),
        (NoTextError(), "NoTextError: <exception str() failed>"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_exception_that_cannot_be_sent(error, text):
    record = sent(error)
    assert text in record.summary
    for instead in (RuntimeError, LookupError):
        rebuilt = record.rebuilt(instead)
        if isinstance(error, NoTextError):
            assert type(rebuilt) is NoTextError  # it can be sent; it has no text there either
            continue
        assert type(rebuilt) is instead
        assert text in str(rebuilt)
        assert str(rebuilt).endswith(", in worker 1, which loaded sample 7")
    assert "raise error" in str(rebuilt.__cause__)


def test_an_exception_that_cannot_be_read_in_the_parent():
    """As one whose module only the worker can import."""
    record = sent(ValueError("bad"))
    broken = RemoteError(record.where, record.summary, record.trace, b"\x80\x05cno_such_module\nNone\n.")
    assert str(broken.rebuilt()) == "ValueError: bad, in worker 1, which loaded sample 7"
