"""The examples of python/README.md work as it says. tools/docs.py runs those of docs/."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers import python

TEXT = (Path(__file__).resolve().parents[1] / "README.md").read_text()


def blocks(kind: str) -> list[str]:
    found = re.findall(rf"^```python {kind}\n(.*?)^```", TEXT, re.M | re.S)
    assert found
    return found


def test_examples():
    for block in blocks("run"):
        lines = python(block).stdout.splitlines()
        assert lines[:2] == ["SetResult.STORED", "[7 7 7] None"]
        assert lines[2] == "(3, 3, 224, 224) [ True False  True]"


@pytest.mark.torch
def test_examples_with_torch():
    for block in blocks("torch"):
        assert float(python(block, options=()).stdout) == 0.5
