"""Pipes: `source(data).map(f).cache("8GiB").shuffle().map(augment).batch(32)`, run by a Loader or a DataLoader."""

from ._loader.numpy_loader import Loader
from ._pipes import lengths
from ._pipes.pipe import Pipe, mix, source

lengths.loader_with_workers = Loader  # rooms on one floor do not import each other

__all__ = ["Pipe", "mix", "source"]
