"""Worker processes and threads: start, task queue, serialization, errors, restart, shutdown,
states of datasets.

The loader, streams and `prepare` start their workers here: the loader by `pool` and `task_queue`,
the others by `processes`. What a worker does is theirs.

Imports: `_samples`, `_memory`, `_common`, `_native`."""
