"""Loaders.

`numpy_loader` and `torch_loader` are the public classes; `base` begins their iterations,
`checkpoint` saves where they are, `options` lists their parameters. Of the iterators,
`gather_iterator` takes batches out of the cache row by row, `worker_batches` has workers make
whole batches, and `single_process` makes them in the training loop.

Imports: all packages but `_streams` and `prepare`."""
