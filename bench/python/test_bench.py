"""Runs the cases of the benchmarks with few samples: each measures all that is installed."""

from __future__ import annotations

import importlib.util
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import against
import harness

NEEDS = {"loaders": "torch", "streams": "torch", "pictures": "torchvision", "decode": "torchvision"}


@pytest.mark.parametrize(
    "topic", ["clients", "loaders:first", "streams:workers", "pictures:warm", "decode", "disk:hits"]
)
def test_a_topic_measures_what_is_installed(topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if (needs := NEEDS.get(topic.partition(":")[0])) and not importlib.util.find_spec(needs):
        pytest.skip(f"{needs} is not installed")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = subprocess.run(
        [sys.executable, Path(__file__).parent, topic, "--quick"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ") and "---" not in line]
    times = [row[1].strip(" |") for row in rows if not row[0].startswith("| |")]
    assert sum(time.replace(",", "").replace(".", "").isdigit() for time in times) >= 2, done.stdout
    left_out = [time for time in times if time.startswith("left out")]
    assert not left_out, done.stdout


def test_each_subject_of_a_case_exists() -> None:
    folder, found = Path(__file__).parent, 0
    for case in (folder / "cases").glob("*.py"):
        for module, name in re.findall(r'"(ours|torches|peers|streams|pictures)\.(\w+)"', case.read_text()):
            found += 1
            text = (folder / f"subjects/{module}.py").read_text()
            assert re.search(rf"^class {name}[(:]", text, re.MULTILINE), f"{case.name}: {module}.{name}"
    assert found > 40


def test_a_ratio_is_that_of_neighbouring_runs() -> None:
    run = harness.Run(7, "", text=[])
    ours, other = harness.Derived("ours", [1, 2, 3, 4, 5, 6, 7]), harness.Derived("other", [2, 4, 6, 8, 10, 12, 70])
    run.table("title", [ours, other])
    assert run.text[-1].endswith("| 2.00 (2.00 to 10.00) |  |")
    assert run.text[-2].endswith("|  |  |")


def test_the_interval_has_the_ranks_of_the_binomial_distribution() -> None:
    for count, rank in ((1, 1), (5, 1), (6, 1), (9, 2), (15, 4)):
        assert harness.interval(count) == rank
        outside = 2 * sum(math.comb(count, k) for k in range(rank)) / 2**count
        assert outside <= 0.05 or rank == 1


def test_rows_of_an_older_commit_stand_beside_ours() -> None:
    ours, theirs = [{"get": 1e-6, "new": 1e-6}] * 3, [{"get": 2e-6}] * 3
    *_, row = against.table(ours, theirs, "abc")
    assert row == "| get | 2.00 | 1.00 | 0.50 | 0.50 to 0.50 | yes |"
