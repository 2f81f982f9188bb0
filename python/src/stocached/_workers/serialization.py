"""Values between processes: pickled, except the memory of arrays and tensors, which goes into a
buffer of the batch pool or after the pickle."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .._memory.batch_pool import Lease
from .._samples import dtypes, schema
from .._samples.containers import Container, container_of
from .._samples.tree import as_tensor
from .task_queue import TaskQueue

_ALIGN = 64


class _Pickler(pickle.Pickler):
    """Tensors go the way of arrays."""

    def __init__(self, file: Any, keep: Callable[[pickle.PickleBuffer], Any]) -> None:
        super().__init__(file, protocol=5, buffer_callback=keep)
        self._torch = sys.modules.get("torch")

    def reducer_override(self, value: Any) -> Any:
        torch = self._torch
        if torch is None or not isinstance(value, torch.Tensor) or value.requires_grad:
            return NotImplemented
        container = container_of(value)
        if container is not None:  # a type of torchvision, or float8
            return _made, (container, type(value), *container.parts(value))
        if type(value) is not torch.Tensor or value.layout is not torch.strided or value.is_quantized:
            return NotImplemented
        if value.is_nested:
            return NotImplemented
        if value.device.type == "cpu" and str(value.dtype) in _PLAIN:
            return _tensor, (schema.tensor_as_array(value.contiguous()), dtypes.code_of(value.dtype))
        return NotImplemented


_PLAIN = frozenset(f"torch.{name}" for name in dtypes.NAMES[1:])


def _tensor(array: Any, code: int) -> Any:
    return as_tensor(array, code)


def _made(container: Container, kind: Any, names: Any, values: Any, form: Any) -> Any:
    return container.make(kind, names, form, values)


class _Pieces(list[Any]):
    """A file of pieces: large bytes stay where they are. A BytesIO would copy them each time that it grows."""

    def write(self, piece: Any) -> None:
        """piece: also a PickleBuffer of memory that cannot be written to, and a bytearray, which the program may change."""
        if type(piece) is not bytes:
            piece = piece.raw() if isinstance(piece, pickle.PickleBuffer) else bytes(piece)
        self.append(piece)


def dump(value: Any) -> tuple[list[Any], list[memoryview]]:
    """The pieces of the pickle, and the memory that belongs after it."""
    pieces = _Pieces()
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if raw.nbytes == 0 or raw.readonly:
            return True  # stays in the pickle
        buffers.append(raw)
        return False

    _Pickler(pieces, keep).dump(value)
    return pieces, buffers


def send(task_queue: TaskQueue, value: Any, lent: int, memory: Any = None) -> tuple[int, int]:
    """Puts a value into the overflow, its arrays into `memory` (of a buffer of the batch pool) if they
    fit; where it lies in the overflow, for `receive`. lent: the place of its task."""
    text, buffers = dump(value)
    offsets, end = [], 0
    for buffer in buffers:
        offsets.append(end)
        end += -(-buffer.nbytes // _ALIGN) * _ALIGN
    if memory is None or end > memory.size:
        return task_queue.put(*_parts(text, buffers), lent=lent)
    for offset, buffer in zip(offsets, buffers):
        memory[offset : offset + buffer.nbytes] = np.frombuffer(buffer, np.uint8)
    return task_queue.put(*_head(text, buffers, True), lent=lent)


def packed(value: Any) -> list[Any]:
    """The parts of the bytes that `unpacked` takes."""
    return _parts(*dump(value))


def _head(text: list[Any], buffers: list[memoryview], in_batch_pool: bool) -> list[Any]:
    head = pickle.dumps((sum(map(len, text)), [buffer.nbytes for buffer in buffers]), 5)
    return [len(head).to_bytes(8, "little") + bytes([in_batch_pool]) + head, *text]


def _parts(text: list[Any], buffers: list[memoryview]) -> list[Any]:
    parts = _head(text, buffers, False)
    used = sum(map(len, parts))
    for buffer in buffers:
        parts += bytes(-used % _ALIGN), buffer
        used = -(-used // _ALIGN) * _ALIGN + buffer.nbytes
    return parts


def receive(task_queue: TaskQueue, offset: int, length: int, lease: Lease | None = None) -> tuple[Any, int]:
    """The value, and how many bytes of arrays it has. Arrays are over the memory of the lease, or
    over their own."""
    data, in_place = task_queue.view(offset, length)
    value = unpacked(data, lease, own=in_place)
    task_queue.drop(offset, length)
    return value


def unpacked(data: memoryview, lease: Lease | None = None, *, own: bool = False) -> tuple[Any, int]:
    """As `receive`. data: bytes. own: arrays have memory of their own, else they are over this."""
    size = int.from_bytes(data[:8], "little")
    in_batch_pool = data[8] == 1
    text_bytes, sizes = pickle.loads(data[9 : 9 + size])
    used = 9 + size
    text = data[used : used + text_bytes]
    used += text_bytes
    source: Any = data
    if in_batch_pool and lease is not None:
        source, used, own = lease.array(), 0, False
    buffers: list[Any] = []
    for nbytes in sizes:
        used = -(-used // _ALIGN) * _ALIGN
        piece = source[used : used + nbytes]
        buffers.append(np.array(piece) if own else piece)
        used += nbytes
    return pickle.loads(text, buffers=buffers), sum(sizes)
