"""Collects tests without running them and reports them as skipped, so that a run that leaves them
out does not look complete.

python tools/count_skipped.py REASON PYTEST-ARGUMENT...
"""

from __future__ import annotations

import re
import subprocess
import sys


def main(reason: str, *arguments: str) -> int:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    collected = re.search(r"^(\d+)(/\d+)? tests? collected", done.stdout, re.MULTILINE)
    if done.returncode != 0 or collected is None:
        print(f"{done.stdout}{done.stderr}\n0 passed, 1 failed: pytest could not collect the tests to leave out")
        return 1
    print(
        f"SKIPPED [{collected[1]}] pytest {' '.join(arguments)}: {reason}\n0 passed, 0 failed, {collected[1]} skipped"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
