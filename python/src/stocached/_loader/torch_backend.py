"""Batches of torch tensors, as torch's own loader makes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils.data
from torch import _utils
from torch.utils.data import _utils as _data_utils

from .._memory.batch_pool import Device
from .._random.torch_generator import tensor_of
from .._samples.keys import check_keys
from .._samples.own_copy import own_copy
from .._samples.tree import Leaf, as_tensor
from .._workers import set_up
from .._workers.errors import pickled
from .numpy_backend import NumpyBackend

# Parts of torch without types. Its own loader uses those with an underscore, since torch 1.13.
_theirs: Any = _data_utils.collate
_collate: Any = _theirs.default_collate
_convert: Any = _data_utils.collate.default_convert
_pin_memory: Any = _data_utils.pin_memory.pin_memory
_exception_wrapper: Any = _utils.ExceptionWrapper
_CONTAINERS = (Mapping, tuple, list)


def collate_of_pipe(samples: Sequence[Any]) -> Any:
    """As default_collate, but it takes negative strides, such as those of a flip by NumPy, as rows of batches do: a pipe
    has the same batches with any workers. A dataset with default_collate raises the error that it does with torch."""
    _check_keys(samples)
    functions = dict(_theirs.default_collate_fn_map)  # the program may add some
    if functions.get(torch.Tensor) is _theirs.collate_tensor_fn:
        functions[torch.Tensor] = _stacked
    try:
        return _theirs.collate(samples, collate_fn_map=functions)
    except ValueError as error:
        if "negative" not in str(error):
            raise
    return _theirs.collate(own_copy(samples), collate_fn_map=functions)


def _check_keys(samples: Sequence[Any]) -> None:
    """torch leaves out, in silence, what the first item lacks. Raises ValueError."""
    first, kinds = samples[0], {*map(type, samples)}
    if isinstance(first, tuple(_theirs.default_collate_fn_map)):
        return  # a function of its own makes their batch
    if all(issubclass(kind, Mapping) for kind in kinds):
        check_keys(samples)
        inner = [name for name, value in first.items() if isinstance(value, _CONTAINERS)]
        columns: Iterable[Any] = ([sample[name] for sample in samples] for name in inner)
    elif all(issubclass(kind, (tuple, list)) for kind in kinds) and any(isinstance(one, _CONTAINERS) for one in first):
        columns = zip(*samples)
    else:
        return
    for column in columns:
        _check_keys(column)


def _stacked(tensors: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    """As torch does it outside of workers. In workers it takes new shared memory for each batch, which is copied from
    there once more."""
    first = tensors[0]
    if type(first) is not torch.Tensor or first.requires_grad or first.layout is not torch.strided or first.is_nested:
        return _theirs.collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)
    return torch.stack(tuple(tensors))


def tensors(value: Any) -> Any:
    """The arrays in a value as tensors over their memory."""
    if isinstance(value, dict):
        return {key: tensors(child) for key, child in value.items()}
    if isinstance(value, (tuple, list)):
        children = [tensors(child) for child in value]
        return type(value)(*children) if hasattr(value, "_fields") else type(value)(children)
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


class TorchBackend(NumpyBackend):
    no_columns = frozenset({"complex"})  # default_collate refuses it
    tuples = list
    draws_from = "torch"
    enter_worker = staticmethod(set_up.torch_worker)

    def __init__(self, accelerator: str = "", *, in_place: bool = False) -> None:
        """accelerator: the device that batches are pinned for; "": none. in_place: pins them in
        place if possible."""
        self._accelerator, self._in_place = accelerator, in_place
        self.pins = accelerator != ""

    def collate(self, samples: Sequence[Any]) -> Any:
        return _collate(samples)

    def convert(self, sample: Any) -> Any:
        return _convert(sample)

    def column(self, leaf: Leaf, rows: Any) -> Any:
        return as_tensor(rows, leaf.code)

    def over(self, batch: Any) -> Any:
        return tensors(batch)

    def random_state(self) -> Any:
        return *super().random_state(), torch.get_rng_state()

    def set_random_state(self, state: Any) -> None:
        super().set_random_state(state)
        torch.set_rng_state(state[2])

    def base_seed(self, generator: Any) -> int:
        return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())

    def generator_state(self, generator: Any) -> Any:
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(f"generator={generator!r}; it must be a torch.Generator")
        return torch.get_rng_state() if generator is None else generator.get_state()

    def put_generator_state(self, generator: Any, state: Any) -> None:
        if isinstance(state, str):
            state = tensor_of(state)
        if generator is None:
            torch.set_rng_state(state)
        else:
            generator.set_state(state)

    def error(self, error: BaseException, where: str) -> Any:
        wrapper = _exception_wrapper((type(error), error, error.__traceback__), where=where)
        if pickled(wrapper) is None:  # an exception of a class that cannot be pickled
            text = RuntimeError(
                f"{type(error).__name__}: {error} (an exception that cannot be sent to another process)"
            )
            wrapper = _exception_wrapper((RuntimeError, text, error.__traceback__), where=where)
        return wrapper

    def pin(self, data: Any) -> Any:
        return _pin_memory(data, self._accelerator) if self.pins else data

    def device(self) -> Device | None:
        if not (self._in_place and self._accelerator == "cuda"):
            return None
        from .._memory.pinned import Cuda

        return Cuda()
