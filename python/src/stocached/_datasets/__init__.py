"""Datasets whose samples come from a cache: `CachedSamples` around any dataset, `SourceDataset`
for a cache that a server fills.

`schema_trial` learns the schema from a few samples. `comparison` checks that a cache filled earlier
holds the samples of this dataset. `notices` are warnings that all processes share.

Imports: `_cache` and the packages below it."""
