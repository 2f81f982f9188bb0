"""The native API: a Cache holds samples, addressed by index, for all processes of the machine."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import enum
import operator
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Literal, SupportsIndex, cast

import numpy as np
import numpy.typing as npt

from .. import _native
from .._checks.fills import Fills
from .._checks.randomness import Guard, Remedy
from .._common import errors as _errors
from .._common import sizes as _sizes
from .._common.addresses import address_of, addressof, first_byte
from .._common.errors import (
    CacheNotFoundError,
    CacheTimeoutError,
    CorruptError,
    FetchFailure,
    InvalidError,
    NoServerError,
    SampleIndexError,
    SchemaError,
)
from .._common.numbers import whole
from .._samples import dtypes, schema
from .._samples.schema import Field
from .._samples.values import Array, FixedValues, Part, VariableValues
from . import fetch as _fetch
from . import handle as _handle
from .handle import Handle
from .singleflight import SingleFlight
from .stats import Stats

_SMALL = 64 * 1024  # bytes: copying less than this takes less than handing the GIL over and back
_CLOSED = Handle()  # NULL, which the library answers with ECLOSED
_MOST = 2**63 - 1  # samples, slots and bytes
_LEAVE = 1.0  # seconds: how long a program that ends waits for calls in its daemon threads
_REMEDY = Remedy("Draw random numbers after get_or_load has given the sample.", "get_or_load(index, fn, allow_random=True)", "what fn gives")
_RETRIES = 16  # of a view or copy whose sample is replaced each time it is looked at; then it is a miss

_view_slot, _put = _native.view_slot, _native.put


class SetResult(enum.Enum):
    """What became of a put. Only STORED is true."""

    STORED = _native.STORED
    EXISTS = _native.EXISTS  # the sample is there already; nothing was done
    BUSY = _native.BUSY  # somebody else is filling it, or a clear is under way; nothing was done
    FULL = _native.FULL  # no room, or memory is short; nothing was done
    OUT = _native.OUT  # the sample can have no slot (assign="first-indices"); nothing was done

    def __bool__(self) -> bool:
        return self is SetResult.STORED


_RESULTS = (SetResult.STORED, SetResult.EXISTS, SetResult.BUSY, SetResult.FULL, SetResult.OUT)  # by code; calling the class costs a microsecond


class State(enum.IntEnum):
    """States of a sample, the items of `Cache.states()`."""

    EMPTY = _native.STATE_EMPTY
    WRITING = _native.STATE_WRITING
    READY = _native.STATE_READY
    OUT = _native.STATE_OUT


class Cache:
    """A cache of samples in shared memory. Make one with `Cache.create` or `Cache.attach`.

    Lifetime: views stay valid for as long as they are referred to, also after `close` and after the cache object is gone. Their bytes are final
    unless somebody clears the cache or overwrites the sample; then they may show old bytes, new bytes or a mix. Copies are never torn.
    An attempt to write to a view raises ValueError.
    Concurrency: any number of threads may use one object, `close` included, and so may forked children. Pickling attaches anew in the
    process that unpickles: by path, or if the cache has no name through the process that pickled it, which has to be alive.
    Samples: an array, or a dict of arrays by name if there are several fields; bytes (views: memoryview) where the dtype is `bytes`."""

    def __init__(self, handle: Handle) -> None:
        info = handle.info()
        self.samples = int(info.samples)
        """Of the dataset; indices are 0..samples-1."""
        self.slots = int(info.slots)
        """How many samples of fixed size fit; 0 in a variable-size cache."""
        self.variable = bool(info.variable)
        self.sample_bytes = int(info.sample_bytes)
        """Of a sample of fixed size; the largest one that a variable-size cache accepts."""
        self.segment_bytes = int(info.segment_bytes)
        """The most that the segment can take, control part included."""
        self.assign = "first-indices" if info.assign == _native.FIRST_INDICES else "first-come"
        self.read_only = bool(info.read_only)
        self.name: str | None = info.name.decode() or None
        self.path: str | None = os.fsdecode(info.path) or None
        self.fingerprint: str | None = info.fingerprint.decode() or None
        self.uuid = bytes(info.uuid)
        self.fields: tuple[Field, ...] = tuple(map(schema.from_native, handle.fields(info.field_count)))
        self._limit_bytes = int(info.limit_bytes)
        self._unlink_last = bool(info.unlink_last)
        self._slot_stride = int(info.slot_stride)
        self._handle = handle
        self._once = SingleFlight()
        self._values: FixedValues | VariableValues = VariableValues(self.fields) if self.variable else FixedValues(self.fields, self.sample_bytes)
        self._get_into = _native.get if self.sample_bytes > _SMALL else _native.get_small
        self._payload = handle.payload.array() if handle.payload else np.empty(0, np.uint8)
        self._columns: list[Array] = []  # of each field of fixed size: (slots, *shape)
        if isinstance(self._values, FixedValues):
            self._columns = self._values.arrays(self._payload, self.slots, self._slot_stride)
        # The column of the only field, if its items are arrays: the case that `get` is fastest in.
        single = len(self._columns) == 1 and self.fields[0].shape != () and self.fields[0].code != dtypes.BYTES
        self._rows = self._columns[0] if single else None
        # What an array must be like to be a whole sample as it is; None: no array is.
        whole = self._rows is not None and self.fields[0].bytes == self.sample_bytes
        self._row_dtype: np.dtype[Any] | None = self.fields[0].dtype if whole else None
        self._row_shape = self.fields[0].shape
        _open.add(self)

    # ------------------------------------------------------------------------------------------------ create, attach, close

    @classmethod
    def create(
        cls,
        name: str | None = None,
        *,
        samples: int,
        shape: int | Sequence[int | None] | None = None,
        dtype: Any = None,
        fields: Mapping[str, tuple[Any, Any]] | None = None,
        size: int | str | None = None,
        sample_bytes: int | None = None,
        variable: bool = False,
        assign: Literal["first-come", "first-indices"] = "first-come",
        reserve: bool = False,
        unlink: Literal["last"] | None = None,
        dir: str | os.PathLike[str] | None = None,
        fingerprint: str | None = None,
        slots: int | None = None,
        clients: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Cache:
        """Creates a cache and attaches to it.

        name: other processes attach by it; 1 to 100 of [A-Za-z0-9._-]. None: the cache goes with its last process.
        samples: of the dataset, cached or not.
        shape, dtype: of a sample (default uint8). fields: several of them, `{"image": ((3, 224, 224), "uint8"), "label": ((), "int64")}`.
        sample_bytes: instead of a shape, for raw bytes. With variable=True: the largest sample accepted (default: 4 GiB - 1).
        size: the most that the whole segment may take, bytes or such as "2GiB". None: room for every sample (fixed size only).
        variable: samples differ in size; dimensions of None differ between samples. Without shape and fields, samples are bytes.
        assign: "first-come": any sample while there is room; "first-indices": sample i of the first `slots` ones has slot i, others have none.
        reserve: takes all memory now instead of as it fills; `progress(done, total)` is called meanwhile, in bytes.
        unlink: "last": the named cache goes with its last user; None: it stays until it is removed.
        dir: where the segment lies, on a tmpfs; None: /dev/shm/stocached-<uid>.
        fingerprint: names dataset and transform, at most 64 bytes; attaching with another one is refused.
        slots: exactly so many, instead of as many as `size` holds. clients: attached at a time (default 1024).

        Raises InvalidError (ValueError), CacheExistsError (FileExistsError), CacheMemoryError (MemoryError) with the numbers, CachePermissionError,
        SystemCallError (OSError)."""
        made = schema.make_fields(shape=shape, dtype=dtype, fields=fields, sample_bytes=None if variable else sample_bytes, variable=variable)
        if assign not in ("first-come", "first-indices"):
            raise InvalidError(f'assign={assign!r}; it must be "first-come" or "first-indices"')
        if unlink not in (None, "last"):
            raise InvalidError(f'unlink={unlink!r}; it must be None or "last"')
        if variable and size is None:
            raise InvalidError('a variable-size cache needs size=, such as size="2GiB": nobody knows yet how large its samples are')
        native_fields = schema.to_native(made)
        options = _native.Options(
            samples=whole("samples", samples, 1, _MOST),
            limit_bytes=0 if size is None else max(_sizes.parse_size(size), 1),  # 0 would mean no limit
            slots=0 if slots is None else whole("slots", slots, 1, _MOST),
            sample_bytes=whole("sample_bytes", sample_bytes, 1, _MOST) if variable and sample_bytes is not None else 0,
            fields=native_fields,
            field_count=len(native_fields),
            assign=_native.FIRST_INDICES if assign == "first-indices" else _native.FIRST_COME,
            variable=bool(variable),
            reserve=bool(reserve),
            unlink_last=unlink == "last",
            client_records=0 if clients is None else whole("clients", clients, 1, 2**32 - 1),
            directory=None if dir is None else os.fsencode(dir),
            fingerprint=None if fingerprint is None else _text("fingerprint", fingerprint),
        )
        failure: list[BaseException] = []
        if progress is not None:
            report = progress

            def call(_: int | None, done: int, total: int) -> None:
                try:
                    if not failure:
                        report(done, total)
                except BaseException as error:  # cannot cross C: kept until the call is back
                    failure.append(error)

            options.progress = _native.Progress(call)
        if name is not None:
            _text("name", name)
        handle = _handle.create(name, options)
        try:
            if failure:
                raise failure[0]
            return cls(handle)
        except BaseException:
            if name is not None:
                _remove(os.fsdecode(handle.info().path))
            raise

    @classmethod
    def attach(cls, name_or_path: str | os.PathLike[str], *, fingerprint: str | None = None, read_only: bool = False) -> Cache:
        """Attaches to a named cache. Without permission to write, the handle is `read_only` by itself.

        A name that this process cannot see (the cache lies in another folder or mount namespace) is asked of the server, if there is one.
        Raises CacheNotFoundError (FileNotFoundError), FormatError, VersionError, FingerprintError (ValueError), CachePermissionError, SystemCallError."""
        if fingerprint is not None:
            _text("fingerprint", fingerprint)
        where = os.fspath(name_or_path)
        _text("name_or_path", where)
        try:
            return cls(_handle.attach(where, fingerprint=fingerprint, read_only=read_only))
        except CacheNotFoundError as error:
            if "/" in where:
                raise
            missing, number, socket = str(error), error.errno or 0, _handle.data_socket()
        hint = f"no server listens on {socket}, either (STOCACHED_SOCKETS_DIR says where; start one: stocached serve -c config.yaml)"
        if os.path.exists(socket):
            try:
                return cls(_handle.dial(where, fingerprint=fingerprint, read_only=read_only))
            except (CacheNotFoundError, NoServerError, CacheTimeoutError) as error:
                hint = str(error)
        raise _errors.make(_native.ENOENT, f"{missing}; {hint}", number)

    def close(self) -> None:
        """Detaches. Views stay valid, calls under way in other threads finish; everything else raises ClosedError from now on. May be called again."""
        self._handle, self._rows, self._columns, self._payload = _CLOSED, None, [], np.empty(0, np.uint8)

    @property
    def closed(self) -> bool:
        return self._handle is _CLOSED

    def unlink(self) -> None:
        """Removes a named cache: nobody can attach any more, whoever is attached keeps it. Raises CacheNotFoundError if it is gone already."""
        if self.path is None:
            if self.name is None:
                raise InvalidError("this cache has no name; it goes with its last process")
            raise InvalidError(f"this process sees no file of the cache {self.name!r}; remove it where it was made")
        _remove(self.path)

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        info = self._handle.info()
        return unpickle, (type(self), self.path, os.getpid(), int(info.fd), self.uuid, self.read_only)

    def __repr__(self) -> str:
        name = repr(self.name) if self.name else "without a name"
        fields = ", ".join(map(str, self.fields))
        room = f"variable size, {_sizes.show_size(self.segment_bytes)}" if self.variable else f"{self.slots} slots"
        return f"<stocached.Cache {name}: {self.samples} samples, {room}, {fields}{', closed' if self.closed else ''}>"

    # ------------------------------------------------------------------------------------------------ read

    def __len__(self) -> int:
        """Slots: how many samples fit. In a variable-size cache, which has none, the number of samples."""
        return self.samples if self.variable else self.slots

    def __bool__(self) -> bool:
        return True  # a cache, however small

    def get(self, index: SupportsIndex, copy: bool = False) -> Any:
        """A sample as a read-only view of the cache, or with `copy` as the caller's own; None on a miss. Raises SampleIndexError (IndexError)."""
        rows = self._rows
        if rows is not None and not copy:
            try:
                slot = _view_slot(self._handle, index)
                if 0 <= index < self.samples:  # type: ignore[operator]
                    if slot >= 0:
                        return rows[slot]
                    if slot == -1:
                        return None
            except ctypes.ArgumentError:
                pass  # an index of another integer type
        return self._copy(index) if copy else self._view(index)

    def _view(self, index: SupportsIndex) -> Any:
        i = self._index(index)
        handle, columns = self._handle, self._columns
        if not columns:
            return self._load_record(_native.view, i)
        slot = _view_slot(handle, i)
        if slot < -1:
            raise handle.error(slot + 1, i)
        return self._row(columns, slot) if slot >= 0 else None

    def _row(self, columns: list[Array], slot: int) -> Any:
        values = {field.name: _shown_row(field, column, slot) for field, column in zip(self.fields, columns)}
        return values if len(values) > 1 else values[self.fields[0].name]

    def _load_record(self, call: Callable[..., int], i: int) -> Any:
        """A view of what is there now, None on a miss; `call` is stoc_view, or stoc_locate, which does not count."""
        handle, columns, payload = self._handle, self._columns, self._payload
        data, length = ctypes.c_void_p(), ctypes.c_size_t()
        for attempt in range(_RETRIES):
            if handle.check(call(handle, i, data, length), i) == _native.MISS:
                return None
            start = (data.value or 0) - handle.payload.address if handle.payload and length.value else 0
            if columns:
                return self._row(columns, start // self._slot_stride)
            try:
                return self._values.decode(payload[start : start + length.value], False)
            except CorruptError:
                if attempt == _RETRIES - 1:
                    raise
        return None

    def _copy(self, index: SupportsIndex) -> Any:
        i = self._index(index)
        handle = self._handle
        if not self.variable:
            raw = np.empty(self.sample_bytes, np.uint8)
            return self._copy_into(i, raw, address_of(raw))
        length = ctypes.c_size_t(0)
        wanted, lengths = np.array([i]), np.zeros(1, np.uint64)  # held here: their memory is the library's during the call
        for _ in range(_RETRIES):
            # Ask for the length first, uncounted; the sample may be replaced by a longer one before it is copied.
            there = handle.check(_native.lengths(handle, address_of(wanted), 1, address_of(lengths)), i)
            capacity = int(lengths[0]) if there else 0
            raw = np.empty(capacity, np.uint8)
            code = _native.get(handle, i, address_of(raw), capacity, ctypes.addressof(length))
            if code == _native.ESCHEMA:
                continue
            if handle.check(code, i) == _native.MISS:
                return None
            return self._values.decode(raw[: length.value], True)
        return None

    def _copy_into(self, i: int, raw: npt.NDArray[np.uint8], address: int) -> Any:
        """A sample of fixed size, over memory of the caller's that has as many bytes, and lies there; None on a miss."""
        handle = self._handle
        if handle.check(self._get_into(handle, i, address, self.sample_bytes, None), i) == _native.MISS:
            return None
        return self._values.decode(raw, True)

    def __contains__(self, index: SupportsIndex) -> bool:
        """Whether the sample is in the cache now. Not counted as a hit or miss; an index out of range is simply not in it."""
        i = operator.index(index)
        if not 0 <= i < self.samples:
            return False
        return bool(self._handle.check(_native.state(self._handle, i), i) == _native.STATE_READY)

    def gather(self, indices: Any, out: Any = None, threads: int = 1) -> tuple[Any, npt.NDArray[np.bool_]]:
        """Copies many samples in one call: `(out, hit)`, where row k of `out` is sample `indices[k]` if `hit[k]`.

        out: an array or CPU tensor (len(indices), *shape) to fill, a dict of them by field if there are several (a part of the fields will do); rows of
        misses are left alone. None: a new one, zeros where missed. Each sample is copied whole: its fields belong together.
        threads: copy with at most so many, fewer where it does not pay.
        A variable-size cache gives a list of values, None for misses, and takes no `out`.
        Raises SampleIndexError before anything is copied, SchemaError if `out` does not fit."""
        return self._gather(_indices(indices), out, threads)[1]

    def _gather(self, wanted: npt.NDArray[np.int64], out: Any, threads: int) -> tuple[int, tuple[Any, npt.NDArray[np.bool_]]]:
        """The number of hits, and what `gather` returns."""
        n = wanted.size
        hit = np.empty(n, np.bool_)
        threads = whole("threads", threads, 0, 1024)
        if type(out) is np.ndarray and out.dtype is self._row_dtype and out.shape[1:] == self._row_shape and len(out) == n > 0:
            # An array that fits as it is, most likely: for small samples, looking closer takes a tenth of what copying does.
            try:
                address = addressof(first_byte(out))
            except (TypeError, ValueError, BufferError):  # read-only or with gaps
                pass
            else:
                handle = self._handle
                hits = _native.gather(handle, address_of(wanted), n, -1, address, self.sample_bytes, addressof(first_byte(hit)), threads)
                if hits < 0:
                    raise self._gather_error(handle, hits, wanted)
                return hits, (out, hit)
        if isinstance(self._values, VariableValues):
            if out is not None:
                raise InvalidError("samples of a variable-size cache fit into no array; gather without out=")
            return self._gather_packed(wanted, hit, threads)
        made = out is None
        if made:
            out, arrays = self._new_outputs(n)
        else:
            arrays = self._outputs(out, n)
        handle = self._handle
        if len(arrays) == 1:
            rows = arrays[0]
            hits = _native.gather(handle, address_of(wanted), n, -1, address_of(rows), _stride(rows), address_of(hit), threads)
        else:
            count = len(arrays)
            addresses = (ctypes.c_void_p * count)(*(address_of(array) if array.ndim else None for array in arrays))
            strides = (ctypes.c_size_t * count)(*(_stride(array) if array.ndim else 0 for array in arrays))
            hits = _native.gather_fields(handle, address_of(wanted), n, addresses, strides, address_of(hit), threads)
        if hits < 0:
            raise self._gather_error(handle, hits, wanted)
        if made and hits < n:
            for array in arrays:
                array[~hit] = 0
        return hits, (out, hit)

    def _new_outputs(self, n: int) -> tuple[Any, list[Array]]:
        """What a gather returns that was given nothing to fill, and its arrays."""
        arrays = [np.empty((n, *cast("tuple[int, ...]", field.shape)), field.dtype) for field in self.fields]
        return arrays[0] if len(arrays) == 1 else dict(zip((field.name for field in self.fields), arrays)), arrays

    def _outputs(self, out: Any, n: int) -> list[Array]:
        """The arrays of the fields in their order, checked; one without dimensions stands for a field that nobody wants."""
        if len(self.fields) == 1:
            return [_output(self.fields[0], out, n)]
        names = [field.name for field in self.fields]
        if not isinstance(out, Mapping) or not out.keys() <= set(names):
            given = list(out) if isinstance(out, Mapping) else type(out).__name__
            raise SchemaError(f"out= must be a dict of arrays for (some of) the fields {names}, not {given}")
        return [_output(field, out[field.name], n) if field.name in out else np.empty(()) for field in self.fields]

    def _gather_packed(
        self, wanted: npt.NDArray[np.int64], hit: npt.NDArray[np.bool_], threads: int
    ) -> tuple[int, tuple[list[Any], npt.NDArray[np.bool_]]]:
        handle, n = self._handle, wanted.size
        lengths = np.empty(n, np.uint64)
        found = _native.lengths(handle, address_of(wanted), n, address_of(lengths))
        if found < 0:
            raise self._gather_error(handle, found, wanted)
        lengths[lengths == _native.NO_LENGTH] = 0
        room = (lengths + np.uint64(63)) // np.uint64(64) * np.uint64(64)  # keeps every sample aligned to any item
        ends = np.cumsum(room, dtype=np.uint64)
        offsets = ends - room
        raw = _aligned(int(ends[-1]) if n else 0)
        hits = _native.gather_packed(
            handle, address_of(wanted), n, address_of(raw), address_of(offsets), address_of(lengths), address_of(hit), threads
        )
        if hits < 0:
            raise self._gather_error(handle, hits, wanted)
        values = [
            self._values.decode(raw[start : start + length], True) if there else None
            for start, length, there in zip(offsets.tolist(), lengths.tolist(), hit.tolist())
        ]
        return hits, (values, hit)

    def _gather_error(self, handle: Handle, code: int, wanted: npt.NDArray[np.int64]) -> Exception:
        outside = wanted[(wanted < 0) | (wanted >= self.samples)]
        return handle.error(code, int(outside[0]) if outside.size else 0, self.sample_bytes)

    def states(self) -> npt.NDArray[np.uint8]:
        """The `State` of every sample as it is now, as a snapshot."""
        states = np.zeros(self.samples, np.uint8)
        self._handle.check(_native.states(self._handle, 0, self.samples, address_of(states)))
        return states

    # ------------------------------------------------------------------------------------------------ have a server fill it

    def fetch(
        self, indices: Any, out: Any = None, timeout: float | None = None, *, errors: Literal["raise", "return"] = "raise", threads: int = 1
    ) -> Any:
        """The samples of a batch: those in the cache as `gather` gives them, all others from the server that fills it, asked once for all of them.

        With everything there it costs what `gather` costs, and needs no server. A server that is away is waited for, and other threads run meanwhile.
        Returns `(out, ok)` as `gather` does, with `ok` true for every sample that was had; of a variable-size cache a list of values in the order asked
        for. A cache that is full is no error: its samples come through the server's socket each time.
        timeout: seconds for the whole call. None: 2 for a server to be there, any time for its answer.
        errors: "raise": FetchError if the source could not give a sample; all others were had, and it has them. "return": no exception for that, but a
        false `ok` (its row is zeros in a new array, anything in one of yours), and None in a list.
        Raises FetchError (OSError), NoServerError (ConnectionError) with the command that starts one, CacheTimeoutError (TimeoutError), ReplacedError
        when the source has changed and a cold cache has taken this one's place, CacheNotFoundError when the server has no cache of this name,
        SampleIndexError before anything is copied, SchemaError if `out` does not fit."""
        if errors not in ("raise", "return"):
            raise InvalidError(f'errors={errors!r}; it must be "raise" or "return"')
        wait = _fetch.milliseconds(timeout)
        wanted = _indices(indices)
        made = out is None and not self.variable
        if made:
            out = self._new_outputs(wanted.size)[0]
        hits, (out, ok) = self._gather(wanted, out, threads)
        if hits < wanted.size:
            failures = self._fill(wanted, out, ok, wait, made)
            if failures and errors == "raise":
                raise _fetch.error(failures, out, ok)
        return out if self.variable else (out, ok)

    def _fill(self, wanted: npt.NDArray[np.int64], out: Any, ok: npt.NDArray[np.bool_], wait: int, made: bool) -> Sequence[FetchFailure]:
        """Has the server bring what a gather into `out` has missed."""
        if isinstance(self._values, VariableValues):
            return self._fetch_each(wanted, out, ok, wait)
        arrays = self._outputs(out, wanted.size)
        if len(arrays) == 1 and self.fields[0].bytes == self.sample_bytes:
            failures = self._fetch_rows(wanted, address_of(arrays[0]), _stride(arrays[0]), ok, wait)
        else:
            failures = self._fetch_fields(wanted, arrays, ok, wait)
        if failures and made:
            for array in arrays:
                array[~ok] = 0
        return failures

    def _fetch_rows(self, wanted: npt.NDArray[np.int64], address: int, stride: int, ok: npt.NDArray[np.bool_], wait: int) -> Sequence[FetchFailure]:
        """Whole samples into rows of memory, but those that are `ok` already."""
        handle, n, indices, had = self._handle, wanted.size, address_of(wanted), address_of(ok)
        return _fetch.ask(lambda options, error: _native.fetch(handle, indices, n, address, stride, had, options, error), wait)[1]

    def _fetch_fields(self, wanted: npt.NDArray[np.int64], arrays: list[Array], ok: npt.NDArray[np.bool_], wait: int) -> Sequence[FetchFailure]:
        """Samples of several fields, which lie apart in `arrays`."""
        missing = np.flatnonzero(~ok)
        raw, had = _aligned(missing.size * self.sample_bytes), np.zeros(missing.size, np.bool_)
        failures = self._fetch_rows(wanted[missing], address_of(raw), self.sample_bytes, had, wait)
        columns = cast("FixedValues", self._values).arrays(raw, missing.size, self.sample_bytes)
        for array, column in zip(arrays, columns):
            if array.ndim:  # else nobody wants this field
                array[missing[had]] = column[had]
        ok[missing[had]] = True
        return _moved(failures, missing)

    def _fetch_each(self, wanted: npt.NDArray[np.int64], values: list[Any], ok: npt.NDArray[np.bool_], wait: int) -> Sequence[FetchFailure]:
        """Samples of any size."""
        missing = np.flatnonzero(~ok)
        handle, n, asked = self._handle, missing.size, wanted[missing]
        data, lengths = np.zeros(n, np.uint64), np.zeros(n, np.uint64)
        indices, addresses, sizes = address_of(asked), address_of(data), address_of(lengths)
        try:
            _, failures = _fetch.ask(lambda options, error: _native.fetch_each(handle, indices, n, addresses, sizes, options, error), wait)
            for k, address, length in zip(missing.tolist(), data.tolist(), lengths.tolist()):
                if address:
                    values[k], ok[k] = cast("VariableValues", self._values).read(address, length), True
        finally:
            _native.fetch_end(None, addresses, n)
        return _moved(failures, missing)

    def prefetch(self, indices: Any, timeout: float | None = None) -> int:
        """Asks the server to read samples when it has nothing better to do. Returns how many it queued: those that are not there, and that it had room for.

        timeout: as for `fetch`, and so are the errors, but that samples which cannot be read show when they are fetched."""
        wanted, wait = _indices(indices), _fetch.milliseconds(timeout)
        handle, n, address = self._handle, wanted.size, address_of(wanted)
        return _fetch.ask(lambda options, error: _native.prefetch(handle, address, n, options, error), wait)[0]

    # ------------------------------------------------------------------------------------------------ write

    def put(self, index: SupportsIndex, value: Any, *, overwrite: bool = False, wait: bool = False) -> SetResult:
        """Stores a sample if nobody has. The value is copied; it lies in any order in memory, but its dtype and shape must be those of the cache.

        overwrite: replaces the sample if it is there already. wait: for a client that is filling it just now, up to a minute.
        Raises SampleIndexError (IndexError), SchemaError (ValueError), ReadOnlyError, ClosedError."""
        i = index if type(index) is int and 0 <= index < self.samples else self._index(index)
        flags = (_native.OVERWRITE if overwrite else 0) | (_native.WAIT if wait else 0)
        if type(value) is np.ndarray and value.dtype is self._row_dtype and value.shape == self._row_shape:
            # An array that fits as it is, most likely: looking closer would take longer than storing a small sample.
            try:
                address = addressof(first_byte(value))
            except (TypeError, ValueError, BufferError):  # read-only, empty or with gaps
                pass
            else:
                handle = self._handle
                code = _put(handle, i, address) if flags == 0 else _native.set(handle, i, address, self.sample_bytes, flags)
                if code < 0:
                    raise handle.error(code, i, self.sample_bytes)
                return _RESULTS[code]
        return self._store(i, self._values.parts(value), flags)

    def _store(self, i: int, parts: list[Part], flags: int) -> SetResult:
        handle = self._handle
        if len(parts) == 1 and isinstance(parts[0], np.ndarray):
            code = _native.set(handle, i, address_of(parts[0]), parts[0].nbytes, flags)
        else:
            code = _native.setv(handle, i, _vector(parts), len(parts), flags)
        if code < 0:
            raise handle.error(code, i, sum(map(_bytes_of, parts)))
        return _RESULTS[code]

    def get_or_load(self, index: SupportsIndex, fn: Callable[[int], Any], *, allow_random: bool = False) -> Any:
        """The sample from the cache, or if it is not there `fn(index)`, which is stored. Threads of this process that miss the same sample at
        the same time call `fn` once and share what it gave. What is returned is read-only: a view of the cache, or a copy where it had no room.

        A sample that draws from the global generators of random, numpy.random or torch is loaded again, to see whether it depends on them.
        allow_random: it is stored in any case.
        Raises what fn raises, and NondeterministicDatasetError for a random sample: then those that this process stored by this call are removed."""
        value = self.get(index)
        if value is not None:
            return value
        i = self._index(index)
        return self._once.run(i, lambda: self._load(i, fn, allow_random))

    def _load(self, i: int, fn: Callable[[int], Any], allow_random: bool) -> Any:
        if i in self:  # stored by the thread before us, or by another process, since we missed it
            value = self.get(i)
            if value is not None:
                return value
        guard = None if allow_random else self._guard()
        loaded, stays = (fn(i), True) if guard is None else guard.load(i, lambda: fn(i))
        result = self.put(i, loaded) if stays else SetResult.BUSY
        if guard is not None and result is SetResult.STORED:
            guard.stored(i)
        if result in (SetResult.STORED, SetResult.EXISTS):
            rows = self._rows
            slot = _native.locate_slot(self._handle, i) if rows is not None else -1
            value = rows[slot] if rows is not None and slot >= 0 else self._load_record(_native.locate, i)
            if value is not None:
                return value
        parts = self._values.parts(loaded)
        return self._values.decode(np.frombuffer(b"".join(map(_plain, parts)), np.uint8), False)

    def _guard(self) -> Guard:
        """Looks at what `get_or_load` loads."""
        fills = self.__dict__.get("_fills") or self.__dict__.setdefault("_fills", Fills(self.samples))  # threads get the same
        return Guard(fills, _REMEDY, self._values.encoded, self._take_back)

    def _take_back(self, fills: Fills) -> str:
        return fills.take_back(self, made=False)

    def clear(self, timeout: float = 60.0) -> None:
        """Empties the cache. Fills under way are waited for, new ones answered BUSY meanwhile.

        Raises CacheTimeoutError (TimeoutError) after so many seconds."""
        handle, end = self._handle, time.monotonic() + timeout
        while True:
            left = max(end - time.monotonic(), 0.0)
            code = handle.check(_native.clear(handle, min(int(left * 1000), 2**32 - 1)))
            if code != _native.BUSY:
                return
            if left == 0.0:
                raise CacheTimeoutError(f"another process has been clearing this cache for {timeout} s; try again later")
            time.sleep(0.001)

    def _remove(self, indices: Sequence[int]) -> int:
        """Takes samples out of the cache; how many are still there, as another client is filling them."""
        claim, left = _native.Claim(), 0
        for i in indices:
            handle = self._handle
            if handle.check(_native.state(handle, i), i) != _native.STATE_READY:
                continue
            # A claim to overwrite a sample that is then given up leaves it empty. Its place is large enough for what is there.
            length = 0 if self.variable else self.sample_bytes
            code = handle.check(_native.claim(handle, i, length, _native.OVERWRITE | _native.WAIT, claim), i)
            if code == _native.STORED:
                handle.check(_native.abort(claim), i)
            else:
                left += 1
        return left

    def recover(self) -> int:
        """Takes back what dead clients left claimed; returns how many samples. Puts do so by themselves where they meet one."""
        return self._handle.check(_native.recover(self._handle))

    # ------------------------------------------------------------------------------------------------ look

    def stats(self) -> Stats:
        native = _native.Stats(struct_bytes=ctypes.sizeof(_native.Stats))
        self._handle.check(_native.stats(self._handle, native))
        counters = {name: int(getattr(native, name)) for name, *_ in _native.Stats._fields_[1:]}
        return Stats(self.samples, self.slots, self.variable, self.segment_bytes, self._limit_bytes, **counters)

    def verify(self) -> list[int]:
        """Compares every sample in the cache with its checksum; returns the indices of those that are corrupt: [] when all is well."""
        handle, bad, first, found = self._handle, ctypes.c_int64(), 0, []
        while first < self.samples:
            if handle.check(_native.verify(handle, first, self.samples - first, None, bad)) == 0:
                break
            found.append(bad.value)
            first = bad.value + 1
        return found

    def _index(self, index: SupportsIndex) -> int:
        i = operator.index(index)
        if 0 <= i < self.samples:
            return i
        if self.closed:
            raise self._handle.error(_native.ECLOSED)
        if -(2**63) <= i < 2**63:
            raise self._handle.error(_native.EINDEX, i)
        raise SampleIndexError(f"index {i} is out of range; this cache has the samples 0 to {self.samples - 1}")


def _shown_row(field: Field, column: Array, slot: int) -> Any:
    row = column[slot, ...]
    return row.data if field.code == dtypes.BYTES else row


def _moved(failures: Sequence[FetchFailure], positions: npt.NDArray[np.int64]) -> Sequence[FetchFailure]:
    """Failures of a part of a batch, with their positions in the whole."""
    return [dataclasses.replace(failure, position=int(positions[failure.position])) for failure in failures]


def _remove(path: str) -> None:
    error = _native.Error()
    if _native.unlink(os.fsencode(path), error) < 0:
        raise _errors.from_struct(error)


def _text(what: str, value: Any) -> bytes:
    if not isinstance(value, str):
        raise InvalidError(f"{what} is {value!r}; it must be a string")
    if "\0" in value:
        raise InvalidError(f"{what} is {value!r}; it must not contain NUL")
    return value.encode()


def _indices(indices: Any) -> npt.NDArray[np.int64]:
    array = schema.as_array(indices)
    if array.size == 0 and array.ndim == 1:
        return np.empty(0, np.int64)
    if array.ndim == 1 and array.dtype.kind == "i":
        return array.astype(np.int64, "C")  # a copy, which nobody can change between the library's check of it and its use
    if array.ndim == 1 and array.dtype.kind in "ufO":  # NumPy makes floats or objects of integers that take more than 64 bits
        with contextlib.suppress(TypeError):
            numbers = [operator.index(index) for index in indices]
            if all(-(2**63) <= number < 2**63 for number in numbers):
                return np.array(numbers, np.int64)
            raise SampleIndexError(f"index {max(numbers, key=abs)} is out of range")
    raise InvalidError(f"indices are {array.dtype} with {array.ndim} dimensions; they must be whole numbers in one dimension")


def _output(field: Field, out: Any, n: int) -> Array:
    """The memory of an array or tensor that a gather fills."""
    if not isinstance(out, np.ndarray):
        if not hasattr(out, "data_ptr"):
            raise SchemaError(f"{field}: out= is of type {type(out).__name__}; it must be a NumPy array or a torch tensor")
        if out.device.type != "cpu" or not out.is_contiguous():
            raise SchemaError(f"{field}: out= is a tensor on {out.device}, contiguous: {out.is_contiguous()}; it must be contiguous, on the CPU")
        if out.is_conj() or out.is_neg():
            raise SchemaError(f"{field}: out= is the conjugate or negative of other memory; it must be a tensor of its own")
        out = schema.tensor_as_array(out)
    array: Array = out
    shape = (n, *cast("tuple[int, ...]", field.shape))
    if array.dtype != field.dtype or array.shape != shape:
        raise SchemaError(f"{field}: out= has {array.dtype} {array.shape}; {field.dtype} {shape} is needed")
    if not array.flags.writeable:
        raise SchemaError(f"{field}: out= is read-only")
    if n and not (array[0, ...].flags.c_contiguous and (n == 1 or array.strides[0] >= field.bytes)):
        raise SchemaError(f"{field}: out= has strides {array.strides}; each row must be contiguous and lie behind the one before")
    return array


def _stride(rows: Array) -> int:
    return int(rows.strides[0]) if rows.shape[0] > 1 else rows.itemsize * prod(rows.shape[1:])


def _aligned(size: int) -> npt.NDArray[np.uint8]:
    """Bytes at an address that is a multiple of 64."""
    raw = np.empty(size + 63, np.uint8)
    start = -address_of(raw) % 64
    return raw[start : start + size]


def _vector(parts: list[Part]) -> ctypes.Array[_native.IoVec]:
    """The parts as an array of struct iovec; valid while the parts are."""
    vector = (_native.IoVec * len(parts))()
    for entry, part in zip(vector, parts):
        array = np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part
        entry.base, entry.length = address_of(array), array.nbytes
    return vector


def _plain(part: Part) -> Any:
    """The bytes of a part, as something that `bytes.join` takes: it does not know every dtype."""
    return part if isinstance(part, bytes) else part.reshape(-1).view(np.uint8)


def _bytes_of(part: Part) -> int:
    return len(part) if isinstance(part, bytes) else part.nbytes


def unpickle(kind: type[Cache], path: str | None, pid: int, fd: int, uuid: bytes, read_only: bool) -> Cache:
    if path is not None:
        return kind(_handle.attach(path, uuid=uuid, read_only=read_only))
    return kind(_handle.attach_process(pid, fd, uuid, read_only=read_only))


_open: weakref.WeakSet[Cache] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Detaches cleanly where a program ends with caches open: `unlink="last"` needs it. Views of theirs stay valid to the very end."""
    leaving = []
    for cache in list(_open):
        if cache._unlink_last:
            leaving.append(weakref.ref(cache._handle))
        cache.close()
    # Calls under way in daemon threads hold handles, which nothing closes any more once those threads are stopped: let them finish.
    end = time.monotonic() + _LEAVE
    while any(handle() not in (None, _CLOSED) for handle in leaving) and time.monotonic() < end:
        time.sleep(0.001)


for _kind in (Cache, SetResult, State):
    _kind.__module__ = "stocached.cache"  # where users find them
