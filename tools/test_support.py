"""The table of supported versions in docs/guides/packages.md says what the project's files say."""

from __future__ import annotations

import re
from pathlib import Path

from release import made, native

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = ROOT / ".github/workflows"


def row(name: str) -> tuple[str, str]:
    """What works, and what is tested."""
    table = (ROOT / "docs/guides/packages.md").read_text().partition("## What is supported")[2]
    found = re.search(rf"^\| {re.escape(name)} \| (.*?) \| (.*?) \|$", table, re.MULTILINE)
    assert found, name
    return found[1], found[2]


def value(file: str, pattern: str) -> str:
    found = re.search(pattern, (ROOT / file).read_text(), re.MULTILINE)
    assert found, (file, pattern)
    return found[1]


def test_python_and_its_packages() -> None:
    project = "python/pyproject.toml"
    assert row("Python")[0] == value(project, r'^requires-python = ">=([\d.]+)"') + " and later"
    assert row("NumPy")[0] == value(project, r'^dependencies = \["numpy>=([\d.]+)"\]') + " and later"
    extras = {"torch": "torch", "lightning": "lightning", "parquet": "pyarrow", "hdf5": "h5py", "fsspec": "fsspec"}
    for extra, name in extras.items():
        assert row(f"{name} (optional)")[0] == value(project, rf'^{extra} = \["{name}>=([\d.]+)"\]') + " and later"


def test_the_oldest_and_the_frameworks_are_those_of_the_tests() -> None:
    oldest = "tools/requirements-torch-oldest.txt"
    assert value(oldest, r"^numpy==(.*)$") in row("NumPy")[1]
    assert value(oldest, r"^torch==(.*)$") in row("torch (optional)")[1]
    for name in ("lightning", "accelerate", "transformers"):
        assert value("tools/requirements-frameworks.txt", rf"^{name}==(.*)$") in row("lightning (optional)")[1]


def test_go_and_the_c_library() -> None:
    version = value("go.mod", r"^go (\d+\.\d+)")
    assert row("Go (to build)") == (f"{version} and later", version)
    glibc = value("tools/release/native.py", r"(?:gnu\.|manylinux_)(\d+[._]\d+)").replace("_", ".")
    assert row("C library")[0] == f"glibc {glibc} and later"
    assert row("C library")[1].endswith(f"symbols are compared with {glibc}")


def test_linux() -> None:
    """The table has the kernels that the sources name."""
    for create in ("cclient/src/protocol/create.c", "shm/create.go"):
        assert row("Linux")[0].startswith(value(create, r"Linux (\d+\.\d+) with tmpfs") + " and later, ")
    huge = row("Linux")[0].partition("huge pages from ")[2]
    for file in ("cclient/src/protocol/huge_pages.c", "shm/huge.go", "docs/spec/segment.md"):
        assert huge == value(file, r"Since Linux (\d+\.\d+) a") + " on", file
    assert value("docs/guides/operations.md", r"On Linux (\d+\.\d+) and later, the payload uses huge pages") in huge


def job(file: str, name: str) -> str:
    """The text of a job of a workflow."""
    found = re.search(rf"^  {name}:\n((?:    .*\n)+)", (WORKFLOWS / f"{file}.yml").read_text(), re.MULTILINE)
    assert found, (file, name)
    return found[1]


def test_every_python_of_the_table_is_in_the_workflows_and_in_the_tests_of_the_wheel() -> None:
    supported, tested = row("Python")
    (of_ci,) = re.findall(r'python-version: "([\d.]+)"', job("ci", "ci"))
    (matrix,) = re.findall(r"python: \[(.*?)\]", job("ci", "other-pythons"))
    others = re.findall(r"\d+\.\d+", matrix)
    assert tested.startswith(
        f"{of_ci} in all tests, by `.ci/run`; {', '.join(others[:-1])} and {others[-1]} in the tests without torch, "
        "by the workflow `ci`; "
    )
    assert tested.endswith(", by `make dist`")
    assert set(made.PYTHONS) == {of_ci, *others}
    first, last = (int(version.removeprefix("3.")) for version in (made.PYTHONS[0], made.PYTHONS[-1]))
    assert tuple(f"3.{minor}" for minor in range(first, last + 1)) == made.PYTHONS
    assert supported == f"{made.PYTHONS[0]} and later"
    for file, name in (("release", "packages"), ("nightly", "dist")):
        assert set(re.findall(r"^ +(3\.\d+)$", job(file, name), re.MULTILINE)) == set(made.PYTHONS), file


def test_every_architecture_of_the_table_has_packages_and_machines() -> None:
    supported, tested = row("architecture")
    names = supported.split("; ")
    # GOARCH calls x86-64 amd64.
    assert [name.replace("x86-64", "amd64") for name in names] == [one.go for one in native.ARCHITECTURES.values()]
    assert tested == (
        f"{names[0]}, by `.ci/run`; of {names[1]}, C tests and the commands in an emulator, by `make dist`; "
        "all tests on both, by the workflow `ci`"
    )
    for file, jobs in (("ci", "ci"), ("release", "images")):
        (matrix,) = re.findall(r"machine: \[(.*?)\]", job(file, jobs))
        machines = ["arm64" if machine.endswith("-arm") else "x86-64" for machine in matrix.split(", ")]
        assert machines == names, file


def test_what_a_workflow_tests_is_said_to_be_of_the_workflow() -> None:
    """No workflow has run before the first release, and the page says so until then."""
    oldest = "by the workflow `nightly`"
    assert row("NumPy")[1].endswith(f", {oldest}")
    assert row("torch (optional)")[1].endswith(f"(`make test-torch-oldest`), {oldest}")
    assert "make test-torch-oldest\n" in job("nightly", "oldest-torch")
    table = (ROOT / "docs/guides/packages.md").read_text().partition("## What is supported")[2].partition("\n## ")[0]
    unreleased = ", not released\n" in (ROOT / "CHANGELOG.md").read_text()
    assert ("no workflow has run" in table) == unreleased


def test_the_pythons_that_pypi_shows_are_those_of_the_wheels_tests() -> None:
    text = (ROOT / "python/pyproject.toml").read_text()
    assert tuple(re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)) == made.PYTHONS


def test_the_page_of_pypi_links_to_us() -> None:
    """PyPI has no folder beside the page, so links must be whole."""
    page = (ROOT / "python/README.md").read_text()
    home = "https://" + value("go.mod", r"^module (\S+)$")
    links = re.findall(r"\]\((.*?)\)", page)
    assert len(links) > 5
    for link in links:
        assert link.startswith(home), link
        path = re.fullmatch(rf"{home}/(?:blob|tree)/main/(.*)", link)
        assert (path and (ROOT / path[1]).exists()) or link in (home, f"{home}/issues"), link
    assert f"git clone {home}`" in page
    assert f"git clone {home} " in (ROOT / "README.md").read_text()
