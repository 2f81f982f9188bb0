"""What all packages use: exceptions, checks of numbers and sizes, addresses of arrays, ranks,
threads. Nothing here depends on caches or loaders.

Imports: `_native`."""
