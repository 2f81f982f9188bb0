"""What a sample is: dtypes, fields and schemas, the structure of nested samples, and how values
become bytes and rows.

A `Tree` takes a sample apart into leaves. `FixedValues` and `VariableValues` turn leaves into the
bytes of a cache. A `Layout` says where they lie in the buffer of a batch.

Imports: `_common`, `_native`."""
