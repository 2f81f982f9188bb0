"""Checks of what a cache must hold: samples that are not random, of the same dataset.

`randomness` finds samples that depend on random numbers. `identity` makes digests of values and
code; `code_names` finds what code names. `derived_fingerprint` makes the fingerprint of a dataset
from digests. `fills` is what the processes of a program know about the samples they stored.

Imports: `_samples`, `_memory`, `_random`, `_common`, `_native`."""
