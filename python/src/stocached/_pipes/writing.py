"""Writes the items of a pipe into files, once, and reads them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from .._checks.derived_fingerprint import derive
from .._checks.randomness import Remedy, UndecidedError, examine, watched
from .._common.errors import InvalidError, NondeterministicDatasetError, SchemaError
from .._common.notes import noted, raise_noted
from .._common.numbers import whole
from .._common.one_line import one_line
from .._common.sizes import parse_size
from .._datasets import looks
from .._datasets.lists import Reading
from .._datasets.probe import spread
from .._prepared.block_storage import BlockStorage
from .._prepared.dataset import dataset_in
from .._prepared.info import DatasetInfo, specs_of
from .._prepared.items import NOTE, form_of
from .._prepared.layout import ALIGN, DEFAULT_BLOCK_BYTES
from .._prepared.storage import DataStorage
from .._prepared.tar_storage import TarStorage
from .._samples.own_copy import own_copy
from .._samples.schema import MAX_FIELDS, Field
from .._samples.structure import Encoded, Structure
from .._samples.tree import Tree
from .._shards.tar_members import encoded_member
from .._workers import calls, set_up
from .batches import Batch
from .caching import renew_caches
from .element_datasets import Listed
from .filling import fill
from .lists import PipeLists
from .loader_arguments import check_functions
from .stage import Stage, every, visits_digest

FORMATS = ("block", "tar")
_LOOKS = 3  # places of a pipe where items are read before
_ITEMS = 8  # at most, at each
_TOGETHER = 64  # items of a pipe without an index that workers send at once
_REMEDY = Remedy(
    "Write the random part below the pipe of the folder, as a .map() whose function has a parameter generator.",
    ".cache(..., allow_random=True) above .write()",
    "the pipe above .write()",
    frozen="the files would keep the first result for ever",
)


def write(
    pipe: Any,
    folder: str,
    kind: str,
    workers: int,
    *,
    compression: str,
    file_bytes: int | str,
    variable: bool,
    fingerprint: str | None,
    restart: bool,
    progress: Callable[[int, int | None], None] | None,
) -> Any:
    """As `Pipe.write`. Returns what the files hold, as a dataset."""
    if kind not in FORMATS:
        raise InvalidError(f".write(): format={kind!r}; it must be {' or '.join(map(repr, FORMATS))}")
    if kind == "tar" and (compression != "none" or variable):
        raise InvalidError('.write(): compression= and variable= are for format="block"; leave them out')
    stage: Stage = pipe._stage
    for each in every(stage):
        if getattr(each, "draws", False):
            raise NondeterministicDatasetError(
                f".write(): {each.shown()}{each.line} draws random numbers, so the files would keep the first draw; write "
                "it below the pipe that .write() returns"
            )
        if isinstance(each, Batch):
            raise each.refuse(
                "it makes batches, and .write() keeps items; write it below the pipe that .write() returns"
            )
    workers = whole("num_workers", workers)
    if workers:
        check_functions(stage, None, "leave num_workers= out")
    storage: DataStorage
    items: _Items
    if kind == "tar":
        storage, items = TarStorage(folder, file_bytes=file_bytes), _Members(pipe, workers)
    else:
        block_bytes = max(ALIGN, min(DEFAULT_BLOCK_BYTES, parse_size(file_bytes, "file_bytes") // ALIGN * ALIGN))
        storage = BlockStorage(folder, compression=compression, block_bytes=block_bytes, file_bytes=file_bytes)
        items = _Fields(pipe, workers, variable)
    if fingerprint is not None:
        items.fingerprint = fingerprint
    try:
        fill(
            items,
            storage,
            _REMEDY,
            processes=workers if stage.indexed else 0,
            restart=restart,
            progress=progress,
            allow_random=not stage.indexed,  # the looks have found no random item
        )
    except SchemaError as error:
        advice = "" if kind == "tar" else "; for arrays that differ in shape, give variable=True"
        raise_noted(
            error, f"stocached: .write() has read {items.read_first} items first, and one is not like them{advice}"
        )
    return dataset_in(folder)


class _Items:
    """The items of epoch 0. Of a pipe without an index, workers of a loader read them."""

    def __init__(self, pipe: Any, workers: int) -> None:
        """Reads some items twice. Raises NondeterministicDatasetError, SchemaError, InvalidError."""
        self._pipe, self._stage, self._workers = pipe, pipe._stage, workers
        self._given: list[tuple[Any, Any]] = []  # items of a pipe without an index, and copies that were made at once
        renew_caches(self._stage)
        self._stage.make_caches()
        if self._stage.indexed:
            len(self._stage)  # which a function of count= may tell
        # With workers it is a look, so that this process opens no file of the program before it forks them.
        with looks.begin(self, self, set_up.numpy_worker, forks=None if workers else False, workers=workers) as look:
            vars(self).update(look.ask(_Items._learned))

    def _learned(self) -> dict[str, Any]:
        """Attributes that the items tell. Plain data."""
        before, places = set(vars(self)), self._places()
        items = [item for _, some, _ in places for item in some]
        of = "item" if self._stage.indexed else "an item of window"
        self._learn(items, [f"{of} {unit}" for unit, some, _ in places for _ in some])
        for item, copied in self._given:
            if [*map(_bytes, self._encoded(item))] != [*map(_bytes, self._encoded(copied))]:
                raise InvalidError(
                    ".write(): an item changes when the next one is made, and workers hold several; make a new array for each"
                )
        self._given.clear()
        self.read_first, self.fingerprint = len(items), _fingerprint(self._stage, map(self._encoded, items))
        for unit, some, moved in places:
            with contextlib.suppress(UndecidedError):
                again = functools.partial(self._first_items, unit)
                finding = examine(range(len(some)), some, moved, again, self._encoded)
                if finding is not None:
                    raise NondeterministicDatasetError(f".write(): {finding.text(_REMEDY)}")
        return {name: value for name, value in vars(self).items() if name not in before}

    def _learn(self, items: list[Any], names: list[str]) -> None:
        """Sets attributes. items: the first ones of several places."""
        raise NotImplementedError

    def _value(self, item: Any) -> Any:
        """What a storage takes for an item. Raises SchemaError."""
        raise NotImplementedError

    def _encoded(self, item: Any) -> Encoded:
        """To compare it with another one."""
        raise NotImplementedError

    def _info(self, fields: Mapping[str, Any], variable: bool, notes: Mapping[str, str]) -> DatasetInfo:
        samples = len(self._stage) if self._stage.indexed else None
        return DatasetInfo(fields, samples, self.fingerprint, variable, notes, "pipe")

    def samples(self, first: int, stop: int | None) -> Iterator[Any]:
        for number, item in enumerate(self._from(first, stop), first):
            try:
                value = self._value(item)
            except SchemaError as error:
                raise_noted(error, f"stocached: item {number} of the pipe")
            yield value

    def _from(self, first: int, stop: int | None) -> Iterator[Any]:
        stage = self._stage
        if not stage.indexed:
            return itertools.islice(self._all(), first, stop)
        visits = stage.visits(0, 0)
        return (stage.item(visits.at(p), 0) for p in range(first, len(stage) if stop is None else stop))

    def _all(self) -> Iterator[Any]:
        """The items of a pipe without an index."""
        if not self._workers:
            yield from PipeLists(self._stage, 0).all()
            return
        yield from calls.samples(self._pipe, self._workers, _TOGETHER)

    def _places(self) -> list[tuple[int, list[Any], bool]]:
        """Reads the first items of several places. Says of each place whether a generator has moved meanwhile. Raises
        InvalidError."""
        units = len(self._stage) if self._stage.indexed else PipeLists(self._stage, 0).windows(1)[0]
        places: list[tuple[int, list[Any], bool]] = []
        for k, unit in enumerate(itertools.chain(spread(units, _LOOKS), range(units))):
            if k >= _LOOKS and places:
                break
            items, moved = watched(functools.partial(self._first_items, unit))
            if items:
                places.append((unit, items, moved))
        if not places:
            raise InvalidError(".write(): the pipe has no items, and a dataset has one at least")
        return places

    def _first_items(self, unit: int) -> list[Any]:
        """unit: an item, or a window of a pipe without an index."""
        if self._stage.indexed:
            return [own_copy(item) for item in self._from(unit, unit + 1)]
        lists, items, copies = PipeLists(self._stage, 0), list[Any](), list[Any]()
        for entry in itertools.islice(lists.items([unit], Reading(0, 1)), _ITEMS):
            lists.finish([entry], items)
            copies.append(own_copy(items[-1]))
        self._given += zip(items, copies)
        return copies


class _Fields(_Items):
    """Items as fields of block files: each array, number or text in an item is a field."""

    def __init__(self, pipe: Any, workers: int, variable: bool) -> None:
        self._variable = variable
        super().__init__(pipe, workers)

    def _learn(self, items: list[Any], names: list[str]) -> None:
        self._form = form_of(items[0])
        tree, shapes = Tree(items[0]), []
        for item, name in zip(items, names):
            with noted(f"stocached: {name} of the pipe is not like {names[0]}", SchemaError):
                shapes.append([leaf.to_cache(value).shape for leaf, value in zip(tree.leaves, tree.take(item))])
        fields = [leaf.field(name, each) for leaf, name, each in zip(tree.leaves, tree.names(), zip(*shapes))]
        if self._variable:
            fields = [Field(field.name, (None,) * len(field.shape), field.code) for field in fields]
        if not fields or len(fields) > MAX_FIELDS:
            raise InvalidError(f".write(): an item has {len(fields)} values; files take 1 to {MAX_FIELDS}")
        self._structure, self._fields = Structure(tree, fields), fields

    def dataset_info(self) -> DatasetInfo:
        variable = not all(field.fixed for field in self._fields)
        return self._info(specs_of(tuple(self._fields)), variable, {NOTE: json.dumps(self._form)})

    def _value(self, item: Any) -> Any:
        return self._structure.value(item, self._fields)

    def _encoded(self, item: Any) -> Encoded:
        return self._structure.encode(item)


class _Members(_Items):
    """Items as members of tar shards: each key of a dict is the ending of one."""

    def _learn(self, items: list[Any], names: list[str]) -> None:
        self._names = sorted({name for item in items for name, _ in self._encoded(item)})
        if not self._names:
            raise SchemaError(f"an item is {one_line(items[0])}, and a sample of a tar shard has one member at least")

    def dataset_info(self) -> DatasetInfo:
        return self._info(dict.fromkeys(self._names, ((None,), "bytes")), True, {})

    def _value(self, item: Any) -> Any:
        if not isinstance(item, dict):
            raise SchemaError(
                f'an item is {one_line(item)}, and format="tar" takes dicts, such as {{"jpg": bytes, "cls": 3}}; make such with '
                ".map()"
            )
        return {name: value if name == "__key__" else encoded_member(name, value) for name, value in item.items()}

    def _encoded(self, item: Any) -> Encoded:
        return [(name, np.frombuffer(data, np.uint8)) for name, data in self._value(item).items() if name != "__key__"]


def _fingerprint(stage: Stage, encoded: Iterable[Encoded]) -> str:
    """The fingerprint of the items of an epoch and their order. encoded: some items, because a function may read files
    that the fingerprint of the chain does not cover."""
    derived = derive(stage.rows if stage.indexed else Listed(stage))
    items = hashlib.sha256()
    for value in itertools.chain.from_iterable(encoded):
        items.update(_bytes(value))
    return f"{derived} v={visits_digest(stage, 0)} i={items.hexdigest()[:16]}"


def _bytes(value: tuple[str, Any]) -> bytes:
    """Of a value with its name."""
    name, array = value
    return f"{name} {array.dtype} {array.shape} ".encode() + bytes(array.tobytes())
