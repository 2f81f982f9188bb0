"""The order in which samples are read: orders, one epoch of an order, and the shard that one rank
reads (docs/spec/order.md).

Imports: `_common`, `_native`."""
