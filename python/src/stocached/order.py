"""The order in which samples are read, as a function of a position: docs/spec/order.md."""

from __future__ import annotations

from ._order.nodes import Node
from ._order.order import Epoch, Order, Shard

__all__ = ["Epoch", "Node", "Order", "Shard"]
