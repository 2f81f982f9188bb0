"""What tests may rely on: a test that took too long is run again, and only then."""

from __future__ import annotations

import math

import pytest
from processes import limit

ATTEMPTS: list[str] = []


def test_what_took_too_long_for_a_moment_passes():
    ATTEMPTS.append("too long")
    assert (math.inf if ATTEMPTS.count("too long") < 3 else 0) < limit(1)


@pytest.mark.xfail(strict=True)
def test_what_takes_too_long_each_time_fails():
    ATTEMPTS.append("each time")
    assert math.inf < limit(1)


@pytest.mark.xfail(strict=True)
def test_what_fails_otherwise_fails_at_once():
    ATTEMPTS.append("otherwise")
    assert limit(1) > 0
    assert ATTEMPTS.count("otherwise") > 1
