"""Workers: their start, their exceptions, their deaths and their end.

The loader, streams and `prepare` start their workers by `processes`; exceptions come back by
`errors`. The loader also has `pool` and `task_queue`, `serialization` and states of datasets. What
a worker does is theirs.

Imports: `_samples`, `_memory`, `_common`, `_native`."""
