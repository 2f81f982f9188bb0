"""Tar shards: the names of shards in a pattern, the members of an archive, and the index of where they lie.

Imports: `_common`, `_native`."""
