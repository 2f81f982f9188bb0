"""Tests of .github/workflows. actionlint, in `make lint-go`, checks their syntax."""

from __future__ import annotations

import re
from pathlib import Path

WORKFLOWS = sorted((Path(__file__).parents[1] / ".github/workflows").glob("*.yml"))


def test_every_action_is_pinned_by_its_hash() -> None:
    used = [line.strip() for file in WORKFLOWS for line in file.read_text().splitlines() if "uses:" in line]
    assert len(used) > 10
    for line in used:
        assert re.fullmatch(r"(- )?uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line
