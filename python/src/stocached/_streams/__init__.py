"""Streams: batches whose rows each read one file after the other (docs/spec/stream-rows.md).

`assignment` says which file a row reads, `scheduler` settles one step after the other,
`open_files` reads, `snapshots` keeps the states of readers, and `workers` leads the processes that
read.

Imports: `_workers`, `_order`, `_memory`, `_common`, `_native`."""
