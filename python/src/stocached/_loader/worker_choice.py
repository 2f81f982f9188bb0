"""What native workers of a loader can do in C, and the warning if workers of pictures are processes instead."""

from __future__ import annotations

import logging
import sys
from typing import Any

from .._common.errors import InvalidError, UnsupportedError
from .._common.one_line import one_line
from .._common.subsets import as_array, unwrapped
from .._datasets.cache_backed import CacheBacked
from .._datasets.cached_samples import CachedSamples
from .._datasets.stores import converts
from .._samples.batch_layout import Layout
from .job import Job

_log = logging.getLogger("stocached")
_said: set[str] = set()
_DEEP = 4  # datasets within each other

APART = "worker_init_fn= and multiprocessing_context= are for processes: leave them out"
WHOLE = (
    "workers make whole batches, because of collate_fn=, batch_size=None or the dataset: "
    "batch_augment= changes batches that native workers make"
)
OUT_OF_ORDER = "with in_order=False, each worker makes whole batches, as in torch: give seed= or augment="
CONVERT = (
    "transform= is of torchvision; dataset, augment = stocached.image.convert(dataset) makes native steps of it, for "
    "DataLoader(dataset, ..., augment=augment)"
)


def warn_of_processes(dataset: Any, augment: Any, why: str) -> None:
    """Logs why workers are processes and not native, once in a program for each reason. Datasets that native workers
    never read get no warning."""
    folder, steps = sys.modules.get("stocached._image.folder"), sys.modules.get("stocached._image.steps")
    for _ in range(_DEEP):  # a Subset or CachedDataset has another one inside
        dataset = dataset if getattr(dataset, "served", False) else getattr(dataset, "dataset", dataset)
    served = getattr(dataset, "served", False)
    step = steps is not None and isinstance(augment, steps.Step)
    sources = dataset.sources() if hasattr(dataset, "in_python") else [dataset]
    files = folder is not None and any(isinstance(each, folder.Decoded) for each in sources)
    pictures = (step or dataset.decode is not None) if served else files
    if not (pictures or why == CONVERT) or why in _said:
        return
    _said.add(why)
    _log.warning('workers are processes, which take more time than native ones: %s. worker="process" hides this', why)


def pipeline_of(dataset: Any, cached: Any, augment: Any, whole: str | None) -> Any:
    """What worker threads do in C for a loader's samples. cached: the dataset in its cache, if there is one. whole: why
    workers make whole batches; None: they do not.

    Raises UnsupportedError, which says why C cannot make them."""
    folder = sys.modules.get("stocached._image.folder")
    pictures, indices = unwrapped(dataset if cached is None else getattr(cached, "dataset", cached))
    if augment is None and converts(pictures):
        raise UnsupportedError(CONVERT)
    if cached is not None and not isinstance(cached, CachedSamples):
        return _served_pipeline(cached, augment, whole is None)
    if getattr(pictures, "served", False):
        if cached is None:
            as_array(indices, len(pictures))
        raise UnsupportedError(
            "the loader keeps samples of a SourceDataset in a second cache: leave out size= and name="
        )
    if augment is not None and getattr(pictures, "picture_fields", None) is not None:
        return _pipeline_of_files(pictures, indices, cached, augment, whole)
    if folder is None or not isinstance(pictures, folder.Decoded):
        stage = getattr(pictures, "stage", None)  # the stage of a pipe
        made = getattr(pictures, "in_python", f"a {type(pictures).__name__}")
        made = made if stage is None else f"made by {stage.shown()}{stage.line}"
        raise UnsupportedError(
            f"the dataset is {made}, not a Folder or Shards of stocached.image, files with labels= or tar shards with "
            "fields=[picture, number] and int64=[number]"
        )
    if whole is not None:
        raise UnsupportedError(whole)
    if cached is None:
        return pictures.pipeline(augment, indices=indices)
    if cached.augment is not None or cached.gathered_tree() is None:
        raise UnsupportedError(
            "the cached dataset has an augment= or packed values of its own: give augment= to the loader"
        )
    sample_bytes = 0 if cached.cache.variable else cached.cache.sample_bytes
    encoded = cached.store == "encoded"
    return pictures.pipeline(augment, cached.cache.fields, sample_bytes, encoded=encoded, indices=indices)


def _pipeline_of_files(files: Any, indices: Any, cached: Any, augment: Any, whole: str | None) -> Any:
    """As `pipeline_of`, for samples with the bytes of files, which augment= decodes."""
    from .._image.file_bytes import DecodedFiles, takes_files

    if not takes_files(files, augment):
        raise UnsupportedError(f"{one_line(augment)} does not begin with a Decode of stocached.image")
    if whole is not None:
        raise UnsupportedError(whole)
    fields, encoded = ((), False) if cached is None else (cached.cache.fields, True)
    return DecodedFiles(files, augment.decode).pipeline(augment, fields, encoded=encoded, indices=indices)


def _served_pipeline(dataset: CacheBacked, augment: Any, by_rows: bool) -> Any:
    """As `pipeline_of`, for pictures of a cache that a server fills. Python fetches the misses."""
    steps, cache, transform = sys.modules.get("stocached._image.steps"), dataset.cache, dataset.transform
    if augment is None and transform is None and dataset.decode is None:
        raise UnsupportedError(
            "the loader copies hits of a cache that a server fills; there is no augment= for workers"
        )
    for name, step in (("augment", augment), ("transform", transform)):
        if step is not None and not (steps and isinstance(step, steps.Step)):
            named = steps.not_a_step(step) if steps and name == "augment" else f"{name}={one_line(step)}"
            raise UnsupportedError(
                f"a server fills the cache, and {named} is no step of stocached.image: use steps, and batch_augment=, or "
                "a .map() below .batch(), for other things"
            )
    if not by_rows:
        raise UnsupportedError("workers make whole batches: collate_fn= or batch_size=None")
    blank = dataset.blank()
    if blank is None:
        raise UnsupportedError(
            "samples of the cache differ in size: let the server decode them (decode:), or say how native workers "
            "decode the files that it keeps (decode: with store: encoded)"
        )
    from .._image.pipeline import of_served  # needs the library for pictures

    before = [] if transform is None else transform.in_c()
    if transform is not None and transform.random:
        raise UnsupportedError(f"transform={one_line(transform)} draws random numbers: give it as augment=")
    after = [] if augment is None else augment.in_c()
    sample_bytes = 0 if cache.variable else cache.sample_bytes
    try:
        blank = blank if transform is None else transform(blank)
    except InvalidError as error:  # the first sample has the same
        raise UnsupportedError(str(error)) from error
    return of_served(before + after, cache.fields, sample_bytes, dataset.decode, blank)


def rows_in_c(job: Job, no_columns: frozenset[str]) -> Layout | None:
    """The layout of rows that C makes, by empty pictures, so that no sample needs Python to learn it. None: the
    first batch tells it."""
    if job.pipeline is None:
        return None
    rows, augment = job.batch_size or 1, job.augment
    try:
        samples = job.pipeline.blanks()
        if augment is not None and job.pipeline.augment is None:
            samples = [augment(blank, 0) for blank in samples]
    except InvalidError:  # a step is invalid, such as a crop that is larger than pictures
        return None
    layouts = [Layout.of(sample, rows, no_columns) for sample in samples]
    shapes = [[(column.shape, column.dtype) for column in layout.columns] for layout in layouts]
    return layouts[0] if all(shape == shapes[0] for shape in shapes) else None
