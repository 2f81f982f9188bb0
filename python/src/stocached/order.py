"""An epoch of an `Order`, the part of a rank, and the nodes of a job: docs/spec/order.md."""

from __future__ import annotations

from ._order.epoch import Epoch, Shard
from ._order.nodes import Node

__all__ = ["Epoch", "Node", "Shard"]
