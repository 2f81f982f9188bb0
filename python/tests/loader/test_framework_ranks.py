"""Loaders in Lightning and in accelerate on two ranks, with the checks that
test_lightning_loaders.py and test_accelerate_loaders.py run in one process."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest
from helpers import checks_of

MISSING = [name for name in ("lightning", "accelerate") if importlib.util.find_spec(name) is None]
INSTALLED = pytest.mark.skipif(
    bool(MISSING), reason=f"{' and '.join(MISSING)} not installed: tools/setup.sh torch does it"
)
pytestmark = [pytest.mark.torch, INSTALLED]


def test_every_check_passes_on_two_ranks(tmp_path, warm_lightning):
    program = Path(__file__).parents[1] / "framework_ranks.py"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = warm_lightning.run(program, program.parent, environment, timeout=580, arguments=[tmp_path])
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    passed = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    wanted = [*checks_of("lightning_checks.py"), *checks_of("framework_ranks.py"), *checks_of("accelerate_checks.py")]
    for rank in range(2):
        assert [name for number, name in passed if number == rank] == wanted
