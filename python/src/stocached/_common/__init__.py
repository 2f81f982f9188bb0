"""What all packages use, and what knows nothing of caches and loaders: exceptions, checks of
numbers and sizes, addresses of arrays, ranks, threads.

Imports: `_native`."""
