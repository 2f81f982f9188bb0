"""Counts the tests that are marked `torch` without running or importing them, and reports them as skipped, so that nobody takes a run without torch for a whole one.

python tools/count_skipped.py REASON FOLDER
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path


def marked(node: ast.stmt) -> bool:
    """Whether a statement is `pytestmark = pytest.mark.torch`, or a test decorated with it."""
    if isinstance(node, ast.Assign):
        return "pytestmark" in ast.unparse(node.targets[0]) and "mark.torch" in ast.unparse(node.value)
    return isinstance(node, ast.FunctionDef | ast.ClassDef) and any("mark.torch" in ast.unparse(decorator) for decorator in node.decorator_list)


def count(body: list[ast.stmt], all_of_them: bool) -> int:
    all_of_them = all_of_them or any(isinstance(node, ast.Assign) and marked(node) for node in body)
    total = 0
    for node in body:
        if isinstance(node, ast.ClassDef):
            total += count(node.body, all_of_them or marked(node))
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            total += all_of_them or marked(node)
    return total


def main(reason: str, folder: str) -> int:
    skipped = 0
    for path in sorted(Path(folder).rglob("test_*.py")):
        tests = count(ast.parse(path.read_text()).body, False)
        if tests:
            print(f"SKIPPED [{tests}] {path}: {reason} ({tests} tests, each of which may have several cases)")
        skipped += tests
    print(f"0 passed, 0 failed, {skipped} skipped")
    return 0 if skipped else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
