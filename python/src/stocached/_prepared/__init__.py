"""Prepared datasets: files of samples that are written once, block files (docs/spec/block.md) and tar shards.

A storage is a folder of such files (block_storage.py, tar_storage.py), which a writer fills (folder_writer.py).
dataset.py reads it as a dataset.

Imports: `_order`, `_samples`, `_image`, `_shards`, `_common`."""
