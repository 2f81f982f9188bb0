"""Tests of other projects that pass with their own class and fail with ours, and why."""

from __future__ import annotations

_NOT_KEPT = "the test drops its iterator at once: ours ends its workers then, and the state holds what they had sent; torchdata's loader keeps the iterator"

DIFFERENCES: dict[str, dict[str, str]] = {
    "test_dataloader.py": {},
    "stateful_dataloader/test_dataloader.py": {
        "TestOutOfOrderDataLoader::test_in_order_index_ds": "which worker loads which sample: with ours, a sample goes to whichever is free",
    },
    "stateful_dataloader/test_state_dict.py": {
        "TestInitialState_shard0::test_init_error": "an error of worker_init_fn comes with the first batch, as with torch's loader, and not from iter()",
        "TestNumWorkersMismatch_shard3::test_num_workers_mismatch": "another num_workers=: StateError from load_state_dict(), not AssertionError from iter()",
        "TestSingleIterCalled_shard0::test_mp": _NOT_KEPT,
        "TestSingleIterCalled_shard0::test_mp_iter": _NOT_KEPT,
    },
}
