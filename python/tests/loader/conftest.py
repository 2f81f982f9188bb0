"""Fixtures of the tests of loaders."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def warm_ranks(warm):
    """As `warm`, but it has imported torch._dynamo too, which DistributedDataParallel imports."""
    return warm.more(["torch._dynamo"])
