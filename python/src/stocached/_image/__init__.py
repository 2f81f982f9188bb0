"""Pictures: decoding, steps with random numbers, datasets of files and of tar shards.

`plan` joins the steps of one picture into few calls of libstocached_image.so; `steps` has what users write.

Imports: `_common`, `_native`, `_samples`."""
