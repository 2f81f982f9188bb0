"""The global generator of torch for the CPU. Generators of devices are neither read nor changed."""

from __future__ import annotations

import base64
import ctypes
import struct
from typing import Any, cast

import torch

from .generator import memory

_WORDS = 624  # words of a Mersenne Twister
_SEED = 0x123456789ABCDEF0
# Of at::mt19937: seed, words left, whether it was seeded, the next word. Then come the words.
_HEAD = struct.Struct("Qi?3xI")
# The second Gaussian numbers, of 32 and of 64 bits: std::optional, or c10::optional before torch
# 2.2.
_AFTER = _HEAD.size + 4 * _WORDS + 4
_NORMAL, _OLD_NORMAL = _AFTER + 8 + 8, _AFTER + 8  # the flag of that of 64 bits: after the number, or before it
_BYTES = _NORMAL + 8
_LAST = _HEAD.size + 4 * (_WORDS - 1)


class TorchGenerator:
    name = "torch"

    def __init__(self) -> None:
        self._offset = _offset()

    def seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed & (2**63 - 1))

    def state(self) -> Any:
        return torch.default_generator.get_state().numpy().tobytes()

    def restore(self, state: Any) -> None:
        torch.default_generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))

    def plain(self, state: Any) -> Any:
        return base64.b64encode(state).decode()

    def restore_plain(self, state: Any) -> None:
        torch.default_generator.set_state(tensor_of(state))

    def places(self) -> list[memoryview]:
        if not self._offset:
            return []
        start = cast(Any, torch.default_generator)._cdata + self._offset
        # Words left; the last word, and second Gaussian numbers.
        return [memory(start + 8, 4), memory(start + _LAST, _BYTES - _LAST)]

    def watch(self) -> None:
        """None: a dataset may read the seed with `torch.initial_seed`, without a draw."""


def tensor_of(state: str) -> torch.Tensor:
    """The state of a generator of torch, from the result of `plain`."""
    return torch.frombuffer(bytearray(base64.b64decode(state)), dtype=torch.uint8)


def _offset() -> int:
    """The offset of the Mersenne Twister in the C++ object of `_cdata`, if it has the layout since
    torch 1.6.
    0: unknown."""
    probe = torch.Generator().manual_seed(_SEED)
    start = getattr(probe, "_cdata", 0)
    # The object has 2.6 kB, mostly words.
    offset = ctypes.string_at(start, 256).find(struct.pack("Q", _SEED)) if start else -1
    if offset <= 0:
        return 0
    seen = memory(start + offset, _BYTES)
    flags = []
    for _ in range(2):
        torch.randn(1, generator=probe, dtype=torch.float64)
        flags.append((seen[_NORMAL], seen[_OLD_NORMAL]))
    words = seen[_HEAD.size : _HEAD.size + 4 * _WORDS].cast("I").tolist()
    # Each word in 64 bits, as in torch's first version.
    stored = probe.get_state().numpy().tobytes()[24 : 24 + 8 * _WORDS]
    flagged = (1, 0) in zip(*flags)
    known = (
        flagged
        and _HEAD.unpack_from(seen)[:3] == (_SEED, _WORDS - 3, True)
        and words == list(struct.unpack(f"{_WORDS}Q", stored))
    )
    return offset if known else 0
