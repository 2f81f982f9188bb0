"""Fixtures of the tests of loaders."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(scope="module")
def warm():
    """A process that has imported torch and torch._dynamo, which DistributedDataParallel imports."""
    from torch_helpers import Warm

    with Warm(sys.executable, ["torch", "torch._dynamo"]) as found:
        yield found
