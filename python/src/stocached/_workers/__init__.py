"""Workers: their start, their exceptions, their deaths and their end.

The loader, streams, `prepare` and looks at a dataset start their processes by `processes`; exceptions come
back by `errors`. The loader and streams also have `pool` and `task_queue`. What a worker does is theirs.

Imports: `_samples`, `_memory`, `_common`, `_native`."""
