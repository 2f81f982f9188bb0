"""Memory for batches, and memory that processes share.

A `BatchPool` holds the buffers of a loader's batches: a buffer is reused when no array refers to it.
`buffer_pool` does the same for the samples and batches of one process. `shared_file` is memory
that workers map, too. `pinned` is memory that a GPU reads.

Imports: `_common`, `_native`."""
