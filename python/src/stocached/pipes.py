"""Pipes: `source(data).map(f).cache("8GiB").shuffle().map(augment).batch(32)`, run by a Loader or a DataLoader."""

from ._formats.registry import file_format
from ._loader.numpy_loader import Loader
from ._pipes.pipe import Pipe, mix, source
from ._workers import calls

calls.loader = Loader  # lower floors do not import it

__all__ = ["Pipe", "file_format", "mix", "source"]
