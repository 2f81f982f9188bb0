"""Loaders: options, the order of batches, iterators, checkpoints, and a backend each for NumPy and torch.

`numpy_loader` and `torch_loader` are the public classes; `base` is what they share. `gather` makes batches out of the cache row by row,
`iterators` makes whole batches. Imports: all packages but `_streams` and `prepare`.
"""
