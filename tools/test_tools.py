"""Tests of the scripts that the other tests rely on: what they count, and what they let through."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import stages

import docs


def counted(text: str, status: int = 0) -> tuple[int, int, int, list[str]]:
    stage = stages.Stage("test")
    stage.count(text.splitlines(), status)
    return stage.passed, stage.failed, stage.skipped, stage.skips


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("=== RUN   TestA\n--- PASS: TestA (0.00s)\n    --- PASS: TestA/x (0.00s)\nPASS\nok  \tmodule\t0.2s", (2, 0, 0, [])),
        ("    a_test.go:9: no cgroup here\n--- SKIP: TestB (0.00s)\n--- FAIL: TestC (1.00s)", (0, 1, 1, ["TestB: a_test.go:9: no cgroup here"])),
        ("SKIPPED [2] tests/test_x.py:4: torch is missing\n=== 3 passed, 2 skipped in 0.10s ===", (3, 0, 2, ["tests/test_x.py:4: torch is missing"])),
        ("== 1 failed, 3 passed, 1 warning in 82.78s (0:01:22) ==", (3, 1, 0, [])),
        ("1 error in 0.10s", (0, 1, 0, [])),
        ("12 passed, 0 failed, 1 skipped\nslots: 4 passed over", (12, 0, 1, [])),
        ("test-api: 20 passed, 0 failed, 1 skipped\nSKIPPED [1] perf: no counters here", (20, 0, 1, ["perf: no counters here"])),
        ("a linter that says nothing", (1, 0, 0, [])),
    ],
)
def test_results_are_counted(text: str, expected: tuple[int, int, int, list[str]]) -> None:
    assert counted(text) == expected


def test_a_status_that_no_line_explains_is_a_failure() -> None:
    assert counted("--- PASS: TestA (0.00s)\npanic: out of memory", status=2) == (1, 1, 0, [])
    assert counted("", status=1) == (0, 1, 0, [])


def test_what_is_shown_of_a_failure_has_its_cause() -> None:
    log = [f"line {k}" for k in range(500)]
    log[200:202] = ["why", "--- FAIL: TestA (0.00s)"]
    shown = stages.extract(log)
    assert "why" in shown and "line 499" in shown and "line 300" not in shown
    assert stages.extract(["a", "b"]) == ["a", "b"]


def test_all_stages_run_and_one_failure_is_told(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("good:\n\t@echo '2 passed, 0 failed'\nbad:\n\t@echo why it broke; exit 3\n")
    script = Path(stages.__file__)
    for names, status, last in ((["bad", "good"], 1, "2 passed, 1 failed, 0 skipped"), (["good"], 0, "2 passed, 0 failed, 0 skipped")):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        done = subprocess.run([sys.executable, script, *names], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == status
        assert done.stdout.splitlines()[-1] == last
        assert ("why it broke" in done.stdout) == (status == 1)


def test_examples_are_found_with_their_output(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text(
        "text\n```python run\nprint(1)\n```\n```text output\n1\n```\n```sh\nnot run\n```\n```python torch\nimport torch\n```\n[a](page.md) [b](gone.md)\n"
    )
    first, second = docs.examples(document)
    assert (first.language, first.code, first.output, first.line) == ("python", "print(1)\n", "1\n", 2)
    assert second.needs_torch and second.output is None


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("1\n2", "1\n2\n", True),
        ("1", "2", False),
        ("a\n...\nz", "a\nb\nc\nz", True),
        ("took ... s", "took 1.2 s", True),
        ("took ... s", "took 1.2 h", False),
        ("1", "1\n2", False),
    ],
)
def test_output_is_compared(expected: str, printed: str, same: bool) -> None:
    assert docs.matches(expected, printed) is same


def test_a_wrong_example_fails(tmp_path: Path) -> None:
    for code, output, wrong in (("echo a", "a\n", None), ("echo a", "b\n", "printed"), ("echo a; false", None, "exit status 1")):
        result = docs.run(docs.Example(tmp_path / "page.md", 1, "sh", False, code, output), tmp_path)
        assert (result is None) if wrong is None else (result is not None and wrong in result)


def test_setup_names_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("sh", "dirname", "id"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / "bin" / name).symlink_to(found)
    script = Path(stages.__file__).parent / "setup.sh"
    environment = {"PATH": str(tmp_path / "bin"), "PYTHON": "python-that-is-not-there"}
    done = subprocess.run(["sh", script, "system"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no python-that-is-not-there here" in done.stderr
