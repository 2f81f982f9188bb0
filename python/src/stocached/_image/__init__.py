"""Pictures: decoding, steps with random numbers, datasets of files and of tar shards.

`steps` has what users write. `passes` joins the steps of one picture into few calls of libstocached_image.so.

Imports: `_common`, `_native`, `_random`, `_samples`, `_shards`."""
