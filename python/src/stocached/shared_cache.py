"""SharedCache: the class of the stocaching library, over a `Cache`. Needs torch."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _native
from ._cache import slot_bytes
from ._cache.cache import Cache
from ._cache.named import create_or_attach
from ._cache.stats import Stats
from ._common.errors import InvalidError, SchemaError
from ._common.numbers import index_of, real, whole
from ._common.sizes import parse_size
from ._common.torch_version import item_bytes, torch
from ._memory.buffer_pool import BufferPool
from ._samples import values
from ._samples.schema import make_fields

_GIB = 1024**3

_DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64,
    torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
    *(getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)),
)  # fmt: skip

_EMPTY, _SET, _OOB = 0, 1, 2  # items of aux_array
_AUX_OF_STATE = np.array([_EMPTY, _EMPTY, _SET, _OOB], np.uint8)

_HIT = _native.HIT
_view_slot = _native.view_slot
_from_numpy = torch.from_numpy


def _limit_bytes(size_limit_gib: float | str) -> float:
    """Raises TypeError for a text without a unit, as stocaching does: it could mean bytes or GiB."""
    if not isinstance(size_limit_gib, str):
        return real("size_limit_gib", size_limit_gib, 'GiB as a number, or a text such as "32GiB"', 0) * _GIB
    size = parse_size(size_limit_gib, "size_limit_gib")
    if not size_limit_gib.strip()[-1].isalpha():
        raise TypeError(
            f'size_limit_gib={size_limit_gib!r} has no unit; write GiB as a number, such as 1, or a unit, such as "32GiB"'
        )
    return size


class SharedCache:
    """A cache of the first samples of a dataset, as many as fit in the limit; slot i is sample i.

    It has the calls, results and exceptions of stocaching's class. The differences:
    - `get_slot` and `cache[i]` return a private copy: changing it does not change the cache. With
      views=True, `get_slot` returns a tensor over the cache itself, which is mapped read-only. A
      store into it kills the process (torch has no read-only tensors), so clone it first.
    - Copies of `get_slot` lie in memory of this object, which keeps up to 64 MiB of it for later
      copies; torch cannot resize them.
    - `array` is a tensor over the read-only cache, for reading; `aux_array` is a copy.
    - When several processes set one slot at the same time, the first wins, and the others do
    nothing.
    - The cache takes memory as slots fill, not at the start, and zeroes nothing at the start. A
    slot for which no memory is free stays empty.
    Concurrency: any number of processes (fork, forkserver, spawn) and threads. With a name, also
    unrelated processes."""

    def __init__(
        self,
        size_limit_gib: float | str,
        dataset_len: int,
        data_dims: Sequence[int],
        dtype: torch.dtype = torch.uint8,
        *,
        name: str | None = None,
        views: bool = False,
        fingerprint: str | None = None,
    ) -> None:
        """size_limit_gib: of the samples and one byte for each, in GiB; may be a fraction, or a text
            with a unit, such as "32GiB". The control part, 16 bytes a sample, is not included.
        dataset_len: samples of the whole dataset.
        data_dims, dtype: the shape of one sample, and its torch dtype.
        name: processes that give the same name share the cache; it stays until it is removed.
        views: see get_slot.
        fingerprint: names dataset and transform. A named cache with another one is refused."""
        if dtype not in _DTYPES:
            raise InvalidError(f"Unsupported dtype: {dtype}. Must be one of {', '.join(map(str, _DTYPES))}")
        self._dims = tuple(whole("data_dims", dim, 0, 2**32 - 1) for dim in data_dims)
        self._dtype = dtype
        self._dataset_len = whole("dataset_len", dataset_len, 0, 2**40)
        self._views = views
        self._cut = False  # whether a warning has said that samples lose fractions
        sample_bytes = item_bytes(dtype) * int(np.prod(self._dims, dtype=np.int64))
        limit = _limit_bytes(size_limit_gib)
        need = self._dataset_len * (sample_bytes + 1)
        slots = self._dataset_len if need <= limit else int((limit - self._dataset_len) / sample_bytes)
        fits = "fits in" if need <= limit else "exceeds"
        capacity = f"all {slots}" if need <= limit else f"{slots} / {self._dataset_len}"
        print(
            f"Dataset size ({need / _GIB:.1f} GiB) {fits} cache limit ({limit / _GIB:g} GiB). Room to cache {capacity} samples."
        )
        if slots < 0:
            raise InvalidError(
                f"size_limit_gib={size_limit_gib!r} leaves no room for one byte for each of {self._dataset_len} samples; "
                f"it takes {self._dataset_len / _GIB:.6f} GiB at least"
            )
        self._cache = self._make(name, slots, fingerprint) if slots else None
        self._bind()

    def _make(self, name: str | None, slots: int, fingerprint: str | None) -> Cache:
        def create() -> Cache:
            return Cache.create(
                name,
                samples=self._dataset_len,
                slots=slots,
                shape=self._dims,
                dtype=self._dtype,
                policy="first-indices",
                fingerprint=fingerprint,
            )

        cache, created = create_or_attach(name, create, fingerprint)
        wanted = make_fields(shape=self._dims, dtype=self._dtype)
        same = (
            len(cache.fields) == 1
            and cache.fields[0].same_as(wanted[0])
            and cache.policy == "first-indices"
            and cache.samples == self._dataset_len
        )
        if not created and not (same and cache.slots == slots):
            raise SchemaError(
                f"cache {name!r} exists with {cache.samples} samples, {cache.slots} slots ({cache.policy}), {cache.fields[0]}; asked for were "
                f"{self._dataset_len} samples, {slots} slots (first-indices), {wanted[0]}; use another name, or remove it (stocached rm {name})"
            )
        return cache

    def _bind(self) -> None:
        """Sets the attributes that `get_slot` reads, so that it looks nothing up."""
        self._len = 0 if self._cache is None else self._cache.slots
        self._slot_bytes = item_bytes(self._dtype) * int(np.prod(self._dims, dtype=np.int64))
        handle = None if self._cache is None else self._cache._handle
        self._handle: Any = handle
        self._get_into = _native.get if self._cache is None else self._cache._get_into
        self._bfloat16 = self._dtype == torch.bfloat16
        rows = np.empty((0, *self._dims), np.uint8)
        if self._cache is not None and handle is not None and handle.payload is not None:
            # Says that it is writable, because torch.from_numpy warns of read-only arrays.
            memory = handle.payload.array(writable=True)
            rows = values.FixedValues(self._cache.fields, self._slot_bytes).arrays(memory, self._len, self._slot_bytes)[
                0
            ]
            rows = rows.view(np.int16) if self._bfloat16 else rows
        self._rows = rows
        kind = rows.dtype if self._cache is not None else np.dtype(np.uint8)
        self._pool = BufferPool(lambda: np.empty(self._dims, kind), self._slot_bytes)

    def __getstate__(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in ("_dims", "_dtype", "_dataset_len", "_views", "_cut", "_cache")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._bind()

    # ------------------------------------------------------------ slots of the whole dataset

    def get_slot(self, idx: int, allow_oob_idx: bool = True, allow_empty_slot: bool = True) -> torch.Tensor | None:
        """The sample, or None if its slot is empty or it has no slot.

        `allow_oob_idx=False`: IndexError if it has no slot. `allow_empty_slot=False`: RuntimeError
        if the slot is empty. An index outside the dataset is an IndexError.
        Returns a private copy. With views=True, a read-only view whose storage is this one slot:
        sending it to a process copies only the slot."""
        try:
            if self._views:
                slot = _view_slot(self._handle, idx)
                if slot >= 0 and 0 <= idx < self._len:
                    row = _from_numpy(self._rows[slot, ...])
                    return row.view(torch.bfloat16) if self._bfloat16 else row
            else:
                array, address = self._pool.take()
                if self._get_into(self._handle, idx, address, self._slot_bytes, None) == _HIT and 0 <= idx < self._len:
                    copy = _from_numpy(array)
                    return copy.view(torch.bfloat16) if self._bfloat16 else copy
        except ctypes.ArgumentError:
            # Another integer type, or no integer.
            return self.get_slot(self._index(idx), allow_oob_idx, allow_empty_slot)
        self._index(idx)
        if idx >= self._len:
            if not allow_oob_idx:
                raise IndexError(f"Index {idx} is out of bounds of this SharedCache of length {self._len}")
        elif self._cache is not None:
            self._handle.check(_native.state(self._handle, idx), idx)  # raises ClosedError after close
            if not allow_empty_slot:
                raise RuntimeError(f"Slot idx={idx} of this SharedCache is empty; there is nothing to read")
        return None

    def set_slot(self, idx: int, value: Any, allow_oob_idx: bool = True, allow_overwrite: bool = False) -> None:
        """Stores a sample: a tensor, or a value that torch can assign to one (numbers, tensors that
        broadcast; other dtypes are converted).

        Does nothing if the sample has no slot; `allow_oob_idx=False`: IndexError. RuntimeError if
        the slot is full, unless `allow_overwrite`. Does nothing if another process is filling the
        slot now, or if no memory is left."""
        idx = self._index(idx)
        if idx >= self._len:
            if not allow_oob_idx:
                raise IndexError(f"Index {idx} is out of bounds of this SharedCache of length {self._len}")
            return
        if not allow_overwrite and self._handle.check(_native.state(self._handle, idx), idx) == _native.STATE_READY:
            raise RuntimeError(
                f"Slot idx={idx} of this SharedCache is full; pass allow_overwrite=True to replace the sample"
            )
        tensor = self._as_slot(value)
        flags = _native.OVERWRITE if allow_overwrite else 0
        self._handle.check(
            _native.set(self._handle, idx, tensor.data_ptr(), self._slot_bytes, flags), idx, self._slot_bytes
        )

    def _as_slot(self, value: Any) -> torch.Tensor:
        """The value as a contiguous tensor with the dtype and shape of a slot."""
        if (
            type(value) is torch.Tensor
            and value.dtype == self._dtype
            and value.shape == self._dims
            and value.device.type == "cpu"
            and value.is_contiguous()
        ):
            return value if not (value.is_conj() or value.is_neg()) else value.resolve_conj().resolve_neg()
        tensor = torch.empty(self._dims, dtype=self._dtype)
        with torch.no_grad():
            tensor[...] = value
        self._say_if_cut(value, tensor)
        return tensor

    def _say_if_cut(self, value: Any, tensor: torch.Tensor) -> None:
        """Warns once if floats have become whole numbers, which loses what is behind the point."""
        if self._cut or self._dtype.is_floating_point or self._dtype.is_complex:
            return
        given = torch.as_tensor(value)
        if given.is_floating_point() and not torch.equal(given.expand_as(tensor), tensor.to(given.dtype)):
            self._cut = True
            warnings.warn(
                f"stocached: SharedCache stores {self._dtype}, and set_slot got {given.dtype}: fractions and larger numbers are lost. "
                f"Convert the samples, or make the SharedCache with dtype={given.dtype}",
                stacklevel=4,
            )

    def _index(self, idx: Any) -> int:
        if idx < 0 or idx >= self._dataset_len:
            raise IndexError(f"Index {idx} is out of bounds for a dataset of length {self._dataset_len}")
        try:
            return index_of(idx)
        except TypeError:
            raise IndexError(f"Index {idx!r} is no whole number") from None

    # ------------------------------------------------------------ the cache as a list of slots

    def __len__(self) -> int:
        """Slots: how many samples of the dataset can be cached."""
        return self._len

    def __getitem__(self, idx: Any) -> torch.Tensor:
        """A private copy of the bytes of slots, in any state: zeros if never written.

        idx: any index of a tensor of shape (len, *data_dims). Copies the slots that it names: all
        slots for an index that begins with `...` or `None`."""
        slots, inner = self._select(idx)
        return self._peek(slots)[inner]

    def __setitem__(self, idx: Any, value: Any) -> None:
        """Stores bytes in slots without changing their state: get_slot finds only samples of
        set_slot.

        Indices and values as for a tensor of shape (len, *data_dims), negative indices and
        broadcasting included. Slots are written one by one."""
        slots, inner = self._select(idx)
        rows = self._peek(slots)
        with torch.no_grad():
            rows[inner] = value
        for slot, row in zip(slots, rows):
            slot_bytes.write(self._handle, slot, row.data_ptr(), self._slot_bytes)

    def _select(self, idx: Any) -> tuple[list[int], Any]:
        """The slots that an index names, and the index of the same items in a tensor of these slots
        alone."""
        every = torch.arange(self._len)
        first, rest = (idx[0], tuple(idx[1:])) if isinstance(idx, tuple) and idx else (idx, ())
        if isinstance(first, list):
            first = (
                torch.tensor(first, dtype=torch.int64)
                if not first or not isinstance(first[0], bool)
                else torch.tensor(first)
            )
        mask = isinstance(first, torch.Tensor) and first.dtype == torch.bool and first.ndim != 1
        if mask or first is None or first is Ellipsis or isinstance(first, (bool, tuple)):
            return every.tolist(), idx
        rows = every[first]
        if isinstance(first, slice):
            return rows.tolist(), (slice(None), *rest)
        if rows.ndim == 0:
            return [int(rows)], (0, *rest)
        slots, inverse = torch.unique(rows, return_inverse=True)
        return slots.tolist(), (inverse, *rest)

    def _peek(self, slots: list[int]) -> torch.Tensor:
        rows = torch.zeros((len(slots), *self._dims), dtype=self._dtype)
        for row, slot in zip(rows, slots):
            slot_bytes.read(self._handle, slot, row.data_ptr(), self._slot_bytes)
        return rows

    @property
    def array(self) -> torch.Tensor:
        """All slots as one tensor of shape (len, *data_dims) over the cache itself, which is
        read-only: a store kills the process.

        Reading an empty slot through it takes as much memory as a filled slot. Reading all slots
        takes all memory that the cache may ever take. If the tmpfs is full, such a read is a
        SIGBUS. `cache[i]` and `get_slot` do neither."""
        rows = _from_numpy(self._rows) if self._rows.size else torch.empty((self._len, *self._dims), dtype=self._dtype)
        return rows.view(torch.bfloat16) if self._bfloat16 and self._rows.size else rows

    @property
    def aux_array(self) -> torch.Tensor:
        """A copy of the state of every sample: 0 empty, 1 set, 2 without a slot; uint8 of shape
        (dataset_len,)."""
        if self._cache is None:
            return torch.full((self._dataset_len,), _OOB, dtype=torch.uint8)
        return _from_numpy(_AUX_OF_STATE[self._cache.states()])

    def clear(self) -> None:
        """Empties all slots and zeroes their bytes. The cache keeps their memory."""
        if self._cache is None:
            return
        self._cache.clear()
        zeros = torch.zeros(self._dims, dtype=self._dtype)
        for slot in slot_bytes.written(self._handle, self._len, self._slot_bytes):
            # A slot that another client has claimed or filled since the clear is left alone.
            slot_bytes.write_if_empty(self._handle, slot, zeros.data_ptr(), self._slot_bytes)

    # ------------------------------------------------------------ added to stocaching's class

    @property
    def cache(self) -> Cache | None:
        """The native cache, for `gather`, `verify`, `unlink` and so on. None if the limit leaves no
        slot."""
        return self._cache

    def stats(self) -> Stats:
        """Counters of all processes that use the cache. `segment_bytes` includes the control
        part."""
        if self._cache is None:
            return Stats(self._dataset_len, 0, False)
        return self._cache.stats()

    def close(self) -> None:
        """Detaches this process. Tensors of views=True stay valid."""
        if self._cache is not None:
            self._cache.close()
            self._handle = self._cache._handle
            self._rows = np.empty((0, *self._dims), np.uint8)

    def __repr__(self) -> str:
        return f"<stocached.SharedCache: {self._len} of {self._dataset_len} samples, {'x'.join(map(str, self._dims)) or 'scalar'} {self._dtype}>"
