"""Marks of tests that need torch, for files whose other tests need none. It imports no torch."""

from __future__ import annotations

import pytest

# Warnings of the DataLoader and of torch itself must not fail our tests.
TORCH_WARNINGS = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*"),
    pytest.mark.filterwarnings("ignore:.*suggested max number of worker.*"),
    pytest.mark.filterwarnings("ignore:.*number of workers.*"),
]
