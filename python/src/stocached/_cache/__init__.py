"""One cache: `Cache`, its handle of the C library, its stats, and requests to a server that fills
it.

`cache` is the public class. `opening`, `attachment`, `reading`, `gathering`, `served` and `storing`
do its work. `singleflight` loads a sample once for all threads of this process that ask for it.

Imports: `_checks`, `_image`, `_order`, `_samples`, `_memory`, `_common`, `_native`."""
