"""The order in which samples are read, as a function of a position: docs/spec/order.md."""

from __future__ import annotations

from ._order.nodes import Deal, Node, Owners
from ._order.order import KINDS, STOPS, AnyOrder, Concatenation, Epoch, MixedOrder, Order, Shard, WeightedOrder

__all__ = [
    "KINDS",
    "STOPS",
    "AnyOrder",
    "Concatenation",
    "Deal",
    "Epoch",
    "MixedOrder",
    "Node",
    "Order",
    "Owners",
    "Shard",
    "WeightedOrder",
]
