"""Pipes: `source(data).map(f).cache("8GiB").shuffle().map(augment).batch(32)`, run by a Loader or a DataLoader."""

from ._pipes.pipe import Pipe, mix, source

__all__ = ["Pipe", "mix", "source"]
