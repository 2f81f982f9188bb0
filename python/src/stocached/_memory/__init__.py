"""Memory for batches and for what processes share.

A `Ring` holds the buffers of a loader's batches; a buffer is reused when no array refers to it. A buffer pool does the same for
samples and for batches of one process. Shared files are memory that workers map, too. Pinned memory is what a GPU reads.
Imports: `_common`, `_native`.
"""
