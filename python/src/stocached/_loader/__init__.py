"""Loaders.

`numpy_loader` and `torch_loader` are the public classes; `base` begins their iterations,
`checkpoint` saves their place, `options` lists their parameters. Of the iterators,
`gather_iterator` fills batches from the cache row by row, `worker_batches` has workers make whole
batches, and `single_process` makes them in the training loop. `affinity` deals an epoch to nodes, and
`dealt_batches` has the batches of one. `advise` measures a loader, by
`measuring_torch` or `measuring_ours`.

Imports: all packages but `_prepared`."""
