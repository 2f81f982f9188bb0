"""Streams: batches whose rows each read one file after the other (docs/spec/stream-rows.md).

`assignment` says which file a row reads, `scheduler` settles one step after the other,
`open_files` reads, and `workers` leads the processes that do so.

Imports: `_workers`, `_order`, `_memory`, `_common`."""
