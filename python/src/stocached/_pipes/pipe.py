"""A pipe, as programs see it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from .._common.cached import cached_property
from .._common.errors import InvalidError
from .._common.numbers import position_of, whole
from .._datasets import readers
from .._datasets.lists import WITHOUT_LENGTH, without_index
from . import functions, loader_arguments, streams
from .batches import Batch, Pack
from .caching import Cache
from .combining import Join, Mix, Zip, ratios_of
from .lists import PipeLists
from .shuffling import Shuffle
from .sources import Parts, Source, of_files
from .stage import every

if TYPE_CHECKING:
    from .._cache.policies import Policy
    from .._datasets.stores import Store
    from .stage import Stage
    from .visits import Visits


def _of_source(name: str) -> Any:
    def get(pipe: Pipe) -> Any:
        sources = pipe._stage.sources()
        if len(sources) != 1:
            raise AttributeError(f"a pipe of {len(sources)} sources has no {name}")
        return getattr(sources[0], name)

    return property(get, doc=f"{name} of the dataset that its source reads, such as stocached.image.Folder.")


class Pipe:
    """A chain of stages: `source` begins it, and each method returns a pipe with one stage more below. Immutable: a
    program may use a pipe in several others.

    len(pipe), pipe[i] and iteration give the items of epoch 0, with the seed 0. Below .filter, .flat_map without
    count=, .pack, .batch(size=), source(parts=) and tables of row groups that are shuffled, a pipe has no index: before
    `measure`, it can only be iterated over. A Loader or a DataLoader runs a pipe with workers, ranks, seeds, epochs and
    checkpoints. Can be pickled as its functions can. Any number of threads and forked children."""

    def __init__(self, stage: Stage) -> None:
        """Programs call `source` and `mix`."""
        self._stage = stage

    def map(self, function: Callable[..., Any]) -> Pipe:
        """function(item) in place of each item. With a second parameter named generator, it gets a NumPy generator too,
        whose numbers depend only on seed, epoch, element, item of the element, and the number of random stages above. Raises InvalidError for
        another second parameter."""
        return Pipe(functions.Map(self._stage, function))

    def filter(self, function: Callable[..., Any]) -> Pipe:
        """The items of which function(item) is true. A second parameter named generator is as in `map`. The pipe below
        has no index. A loader warns of an epoch without any items."""
        return Pipe(functions.Filter(self._stage, function))

    def flat_map(self, function: Callable[..., Any], *, count: Any = None) -> Pipe:
        """The items of the iterables that function(item) makes, such as a generator. A second parameter named generator
        is as in `map`.

        count: how many items each makes: a number, a number for each element, or a function of the source's element,
            which is called once for each when a length is first needed. With it, the pipe below has an index, and an
            item has a number of its own; None: it has none.

        Raises InvalidError for count= of a pipe whose elements are not in order."""
        if count is None:
            return Pipe(functions.FlatMap(self._stage, function))
        return Pipe(functions.Counted(self._stage, function, count))

    def shuffle(
        self,
        *buffer: Any,
        seed: int | None = None,
        window: int | None = None,
        weights: Any = None,
        draws: int | None = None,
    ) -> Pipe:
        """Another order in each epoch. seed: None: that of the loader, or 0.

        Of a pipe without an index, the elements are shuffled, and then the items of each `window` elements, which one
        worker holds at a time. window: None: 1,024, or fewer if ranks would have none.
        weights: one for each element: draws elements with replacement, each as often as its weight says. draws: how many
            in an epoch; None: as many as there are.

        Raises InvalidError below another shuffle or a mix, and for a number without a name (buffer)."""
        if buffer:
            raise InvalidError(
                f".shuffle({', '.join(map(repr, buffer)):.100}): is it a seed or a buffer? Write .shuffle(seed={buffer[0]!r:.100}), "
                "or .shuffle(window=...) of a pipe without an index; other pipes are shuffled in full, without a buffer"
            )
        return Pipe(Shuffle(self._stage, seed, window, weights, draws))

    def cache(
        self,
        size: int | str | None = None,
        *,
        name: str | None = None,
        policy: Policy | None = None,
        disk: int | str | None = None,
        disk_dir: str | os.PathLike[str] | None = None,
        disk_policy: Policy | None = None,
        fingerprint: str | None = None,
        variable: bool | None = None,
        store: Store = "decoded",
        allow_random: bool = False,
    ) -> Pipe:
        """Keeps items in shared memory: what stands above is done once, what stands below each time. The options are
        those of a Loader; size=None has room for all.

        Of a pipe without an index, it keeps the list of items of an element, whole. A list that does not fit is given
        and not kept. size=None has room for lists 1.25 times as large as the largest of three; give size= if they
        differ much. store= and variable= are refused.

        Raises NondeterministicDatasetError if a stage above is random, and InvalidError if items above have no element
        of their own."""
        options = {name: value for name, value in locals().items() if name != "self"}
        return Pipe(Cache(self._stage, options))

    def zip(self, *others: Pipe, strict: bool = True) -> Pipe:
        """Tuples of the items at one position of all pipes. strict: raises InvalidError if their lengths differ; else the
        shortest ends an epoch."""
        return Pipe(Zip([self._stage, *(_stage_of(other) for other in others)], strict))

    def __add__(self, other: Pipe) -> Pipe:
        """The items of one pipe after those of the other."""
        return Pipe(Join(self._stage, other._stage)) if isinstance(other, Pipe) else NotImplemented

    def batch(
        self,
        n: int,
        *,
        size: Callable[[Any], int] | None = None,
        pad: Any = None,
        collate: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        rows: bool = False,
        lengths: Any = None,
    ) -> Pipe:
        """Batches of n items; the last one may have fewer. Only a loader makes them.

        size: the length of an item, such as len. Then the items of a window (of `shuffle`) that are alike in length come
            together, and the longest, times the number of items, is at most n. An item above n is an error.
        pad: arrays that differ in shape are padded by this value, at their ends. Or a dict: a value for each key of the
            items, whose other arrays are not padded.
        collate: makes a batch of a list of items. None: as the loader does.
        drop_last: leaves a last batch with fewer items out.
        rows: batches of n rows, each a `stocached.streams.StreamBatch`: row r of a batch goes on where row r of the batch
            before stopped. The function of .flat_map gives the items of a file, and each row reads one file after the
            other. Items are arrays of one shape and dtype, or tuples, lists and dicts of them. Workers share each batch.
            A function with a parameter `start` gets the number of the item to begin with.
        lengths: of rows: how many items each file has. Then there is len(), and all ranks end together.

        Raises InvalidError for rows of a chain that has no files to read."""
        batch = Batch(self._stage, n, size, pad, collate, drop_last, rows, lengths)
        if rows:
            streams.check(batch)
        return Pipe(batch)

    def pack(self, length: int) -> Pipe:
        """Rows of `length` tokens. Items are arrays of tokens, or dicts of arrays of one length. A row is a dict: "tokens",
        or the keys of the items; "segments": 1, 2, ... for the items of the row, and 0 after them; "positions": of each
        token in its item. The items of a window (of `shuffle`) are put where they leave the least space. An item above
        `length` is an error."""
        return Pipe(Pack(self._stage, length))

    def write(
        self,
        folder: str | os.PathLike[str],
        *,
        format: Literal["block", "tar"] = "block",
        num_workers: int = 0,
        compression: Literal["none", "zstd"] = "none",
        file_bytes: int | str = "256MiB",
        variable: bool = False,
        fingerprint: str | None = None,
        restart: bool = False,
        progress: Callable[[int, int | None], None] | None = None,
    ) -> Pipe:
        """Writes the items of epoch 0, with the seed 0, into files, once, and returns a pipe of them, as source(folder)
        does. If they are there, some items are read and compared, and nothing is written.

        If a call is interrupted, the next one continues after the last file that is whole. The folder appears when all
        are; until then, they are in a folder beside it, with ".part" after its name. Another process that writes the
        same waits. The files are the same for any number of workers and interruptions.

        format: "block": block files (docs/spec/block.md), of which any item is one read with a checksum, here, in Go and
            in a server. Items are arrays, numbers, texts and bytes, or dicts, tuples and lists of them. Tensors come
            back as arrays.
            "tar": shards for webdataset, with the index of each beside it. Items are dicts of the endings of members:
            bytes, or a text under txt, a whole number under cls, an array under npy, other values under json.
            "__key__" names the item; by default it is its number.
        num_workers: processes that make items. compression: of each item of block files; "zstd" needs Python 3.14 or
            the package zstandard. file_bytes: a file with so many bytes takes no further items.
        variable: arrays of block files may differ in shape. False: if some of the items that are read first do.
        fingerprint: names the items, and changes when they do. None: it is derived from data, functions and some items.
        restart: discards what an interrupted call left of other items.
        progress: is called with the number of items so far, and how many there will be (None: unknown).

        Raises NondeterministicDatasetError if a stage draws random numbers, or an item differs when it is read again;
        InvalidError below .batch(); SchemaError for an item unlike those before; InTheWayError if the folder has
        something else; OSError."""
        from . import writing  # takes 40 ms, which few programs need

        with self._reading():
            dataset = writing.write(
                self,
                os.fspath(folder),
                format,
                num_workers,
                compression=compression,
                file_bytes=file_bytes,
                variable=variable,
                fingerprint=fingerprint,
                restart=restart,
                progress=progress,
            )
        return Pipe(Source(dataset))

    def measure(self, num_workers: int = 0) -> Pipe:
        """Reads all elements once and keeps how many items each has. Then a pipe without an index has len() and [index],
        and a loader of it takes ends="pad" and ends="drop". The order of items stays as it is. Returns this pipe.

        Pipes below this one know it too, unless a .filter or .flat_map stands between. A .cache() on the way is filled.
        If the numbers are known, or the pipe has an index, nothing is read. num_workers: processes that read; 0: one.

        Raises InvalidError where epochs have other numbers of items: below a random .filter or .flat_map, .pack, and
        batches by size. Raises the error of an element that cannot be read."""
        workers = whole("num_workers", num_workers)
        with self._reading():
            self._stage.measure(workers)
        return self

    def __len__(self) -> int:
        """Items, or batches, of epoch 0. TypeError for a pipe without an index, before `measure`."""
        batch = loader_arguments.batch_of(self._stage)
        if batch is not None and batch.contiguous:
            return streams.steps(batch)
        items = len(self._stage) if self._stage.indexed else self._lists.total()
        if items is None:
            raise TypeError(f"{WITHOUT_LENGTH}; Loader and stocached.torch.DataLoader read it as it is")
        if batch is None:
            return items
        return items // batch.size if batch.drop_last else -(-items // batch.size)

    def __getitem__(self, index: int) -> Any:
        """An item of epoch 0. Of a pipe without an index, it reads the window of the item."""
        if isinstance(index, slice):
            raise InvalidError(f"a pipe has no slices, and this is {index}; write [pipe[k] for k in range(...)]")
        if loader_arguments.batch_of(self._stage) is not None:
            raise InvalidError(_NO_BATCHES)
        if self._stage.indexed:
            visit = self._first_epoch.at(position_of(index, len(self)))
            with self._reading():
                return self._stage.item(visit, 0)
        if self._stage.lengths() is None:
            raise without_index("[index]")
        with self._reading():
            return self._lists.at(position_of(index, len(self)))

    def __iter__(self) -> Iterator[Any]:
        batch = loader_arguments.batch_of(self._stage)
        if batch is not None and not batch.contiguous:
            raise InvalidError(_NO_BATCHES)
        if self._stage.indexed:
            return self._read(self._stage.item(visit, 0) for visit in map(self._first_epoch.at, range(len(self))))
        info = getattr(sys.modules.get("torch.utils.data"), "get_worker_info", lambda: None)()
        if info is not None and info.num_workers > 1:
            raise InvalidError(
                "a worker of torch's own DataLoader would give all items of this pipe, as each other worker does; give "
                "the pipe to stocached.torch.DataLoader"
            )
        return self._read(self._lists.all() if batch is None else loader_arguments.rows_of(self._stage))

    def _read(self, items: Iterable[Any]) -> Iterator[Any]:
        with self._reading():
            yield from items

    def _reading(self) -> contextlib.AbstractContextManager[None]:
        """Keeps the caches open while the program reads, though it closes loaders that share them."""
        return readers.reading(self._kept) if self._caches else contextlib.nullcontext()

    def _kept(self) -> list[Any]:
        kept = [vars(stage).get("kept") for stage in self._caches]
        return [one.cache for one in kept if one is not None]

    @cached_property
    def _caches(self) -> list[Cache]:
        return [stage for stage in every(self._stage) if isinstance(stage, Cache)]

    @cached_property
    def _lists(self) -> PipeLists:
        return PipeLists(self._stage, 0)

    @cached_property
    def _first_epoch(self) -> Visits:
        return self._stage.visits(0, 0)

    def __getstate__(self) -> dict[str, Any]:
        return {"_stage": self._stage}

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)  # raises its own error again
            instead = _INSTEAD.get(name)
            raise AttributeError(f"a pipe has no {name}" + (f": {instead}" if instead else ""), name=name, obj=self)

    def __repr__(self) -> str:
        return "\n".join(self._stage.drawn())

    classes = _of_source("classes")
    class_to_idx = _of_source("class_to_idx")
    targets = _of_source("targets")


def source(what: Any, *, parts: int | None = None, format: str | None = None, **options: Any) -> Pipe:
    """A pipe of the samples of a list, an array, or a dataset with len() and [index].

    what: a text names files, each an element, in byte order: a pattern with * ? [ ] {a,b} {0..9}, where ** stands for any
        folders; or a folder, for all files below it. Names that begin with a dot do not count. Files of a format are
        read: an item is a line, a sample of tar shards, a member of an archive, or a row of a table or of arrays
        (docs/guides/formats.md). Of others it is the path; with labels="folders" a dict: "data", the bytes of the file, and
        "label", the number of its folder. "stocached:NAME" has the samples of a cache that a server fills, as
        stocached.torch.SourceDataset.
    parts: `what` is a function: what(k) gives the items of part k, 0 to parts - 1, such as those of a file. The pipe has
        no index.
    format: of files, such as "jsonl"; "paths": their paths alone. None: the ending of their names says it; of those
        without one, their first bytes.
    options: of the format, such as columns=["image", "label"]. Those of an address are the keys of a source of a server, such
        as fields=["jpg", "cls"], labels="folders" and remote={"endpoint": "https://storage.example:9000"}. decode=True, of a
        folder, a pattern, tar shards or zip archives: an item is a dict of the files of one name without its endings, as
        webdataset has them, with "__key__". Pictures, arrays, JSON, texts and numbers are decoded, by their endings.

    An address, such as "s3://bucket/train-{000..127}.tar", "s3://bucket/photos/", "gs://..." or "https://...", is read by a
    server that this call starts, and that ends 30 seconds after its last program (docs/guides/remote.md). An element is the
    bytes of an object, or a sample of tar shards: a dict, or the bytes if it has one field.

    Raises InvalidError for others, and for files of several formats. For an address: CacheNotFoundError
    (FileNotFoundError), CachePermissionError (PermissionError), FetchError (OSError), NoServerError, UnsupportedError
    without the command stocached."""
    if parts is not None:
        return Pipe(Parts(what, parts))
    if isinstance(what, Pipe) and format is None and not options:
        return what
    if isinstance(what, (list, tuple)) and what and isinstance(what[0], Pipe):
        raise InvalidError("source(): these are pipes; join them with a + b, or mix([a, b])")
    return Pipe(of_files(Source(what, format, options)))


def mix(
    pipes: Sequence[Pipe],
    *,
    weights: Sequence[float] | None = None,
    temperature: float | None = None,
    seed: int = 0,
    stop: Literal["first", "all"] | int = "first",
) -> Pipe:
    """Items of several pipes by ratio: any first items of an epoch have each pipe's share, to within a few. Of pipes
    without an index, elements with their lists.

    weights: one for each pipe, above 0; floats are rounded to millionths of their sum. None: by their lengths n, or by
        n ** (1 / temperature): above 1, small pipes come more often.
    seed: with the weights, it says which pipe comes when, in all epochs.
    stop: "first": an epoch ends where a pipe would begin again. "all": when all have ended; those that end before begin
        again, shuffled anew. A number: after so many items; in the next epoch each pipe goes on where it was.

    Raises InvalidError."""
    above = [_stage_of(pipe) for pipe in pipes]
    if not above:
        raise InvalidError("mix(): give one pipe at least")
    if stop not in ("first", "all"):
        stop = whole("stop", stop, 1)
    return Pipe(Mix(above, ratios_of(weights, temperature, [len(side) for side in above]), seed, stop))


def _stage_of(pipe: Any) -> Stage:
    if not isinstance(pipe, Pipe):
        raise InvalidError(f"{pipe!r:.100} is no pipe; write source(...) around it")
    return pipe._stage


_PART = (
    "give source() a part of the data, such as source(data[:100]), or source(torch.utils.data.Subset(pipe, range(100)))"
)
_INSTEAD = {  # methods that pipes of other libraries have
    "batched": "write .batch(n)",
    "chain": "write a + b",
    "concat": "write a + b",
    "concatenate": "write a + b",
    "decode": "source(..., decode=True) decodes files by their endings; .map(function) does the rest",
    "interleave": "write .flat_map(read).shuffle(window=...)",
    "padded_batch": "write .batch(n, pad=0)",
    "prefetch": "a Loader reads ahead, with num_workers=",
    "repeat": "each loop over a Loader is an epoch",
    "rename": 'write .map(lambda item: {"new": item["old"]})',
    "select": "write .filter(function), or " + _PART,
    "shard": "a Loader shares the items between ranks and workers",
    "skip": _PART,
    "take": _PART,
    "to_tuple": 'write .map(lambda item: (item["jpg"], item["cls"]))',
    "unbatch": "write .flat_map(function)",
}

_NO_BATCHES = "a Loader makes the batches of a pipe: for batch in Loader(pipe), or in stocached.torch.DataLoader(pipe)"

for _public in (Pipe, source, mix):
    _public.__module__ = "stocached"  # where users find them
