"""Imports of the package point one way: a package imports only those on lower floors, and no two
modules import each other."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

import pytest

import stocached

SOURCE = Path(stocached.__file__).parent

# From the lowest floor up. A package may import those on lower floors. "stocached" means the public
# modules, such as prepare.py.
FLOORS = (
    {"_native"},
    {"_common"},
    {"_samples", "_memory", "_random", "_order", "_shards", "_trace"},
    {"_checks", "_workers", "_image"},
    {"_cache", "_prepared"},
    {"_datasets", "_formats", "_streams"},
    {"_pipes"},
    {"_loader"},
    {"stocached"},
)
FLOOR = {package: number for number, packages in enumerate(FLOORS) for package in packages}


def modules() -> dict[str, Path]:
    """The path of each module by its name below stocached: "_loader.options", or "__init__"."""
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in SOURCE.rglob("*.py")
    }


def imports(module: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The modules that a module imports, also inside functions and for types."""
    package = module.split(".")[: None if path.name == "__init__.py" and module != "__init__" else -1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            absolute = [alias.name for alias in node.names if alias.name.split(".")[0] == "stocached"]
            assert not absolute, f"{path}:{node.lineno}: write a relative import"
        if isinstance(node, ast.ImportFrom):
            assert node.level or (node.module or "").split(".")[0] != "stocached", (
                f"{path}:{node.lineno}: write a relative import"
            )
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*package[: len(package) + 1 - node.level], *(node.module or "").split(".")]
            for alias in node.names:
                names = [".".join(filter(None, parts)) for parts in ([*base, alias.name], base)]
                found |= {next(name for name in (*names, "__init__") if name in known)}
    return found - {module}


Graph = dict[str, set[str]]


# Not when the file is imported: each process of pytest imports it, and one runs the tests.
@pytest.fixture(scope="module")
def graph() -> Graph:
    known = modules()
    return {module: imports(module, path, known) for module, path in known.items()}


def package_of(module: str) -> str:
    first = module.partition(".")[0]
    return first if first in FLOOR else "stocached"


def test_all_packages_are_on_a_floor(graph: Graph):
    assert {package_of(module) for module in graph} == set(FLOOR)
    assert all(not module.startswith("_") or "." in module or module in (*FLOOR, "__init__") for module in graph), (
        "a private module is in a package"
    )


def test_packages_import_lower_floors_alone(graph: Graph):
    wrong = [
        f"{module} imports {target}"
        for module, targets in graph.items()
        for target in targets
        if package_of(module) != package_of(target) and FLOOR[package_of(module)] <= FLOOR[package_of(target)]
    ]
    assert not wrong


def test_no_modules_import_each_other(graph: Graph):
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


def test_there_are_at_most_nine_floors():
    assert len(FLOORS) <= 9
