"""One cache: `Cache`, its handle of the C library, its statistics, and requests to a server that
fills it.

`singleflight` loads a sample once, however many threads of this process ask for it.

Imports: `_checks`, `_samples`, `_memory`, `_common`, `_native`."""
