"""Tests of .github/workflows. actionlint, in `make lint-go`, checks their syntax."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from pathlib import Path

import pytest
from version import version

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((Path(__file__).parents[1] / ".github/workflows").glob("*.yml"))


def test_every_action_is_pinned_by_its_hash() -> None:
    used = [line.strip() for file in WORKFLOWS for line in file.read_text().splitlines() if "uses:" in line]
    assert len(used) > 10
    for line in used:
        assert re.fullmatch(r"(- )?uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def steps() -> list[str]:
    """The commands of all steps with `run:`, which stand on its line or in a block below it."""
    found = []
    for file in WORKFLOWS:
        for match in re.finditer(r"^( *)(?:- )?run: (?:\|\n((?:\1  .*\n|\n)+)|(.*)\n)", file.read_text(), re.MULTILINE):
            found.append(textwrap.dedent(match[2]).strip() if match[2] else match[3])
    return found


def step(word: str) -> str:
    (found,) = [one for one in steps() if word in one]
    return found


def test_every_step_runs_what_the_repository_has() -> None:
    """make knows each target with its variables, and each script can be run."""
    assert len(steps()) > 10
    for command in steps():
        make = re.search(r"\bmake (.*)$", command)
        if make:
            # The flag -n prints commands and runs none.
            done = subprocess.run(["make", "-n", *make[1].split()], cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, f"{command}\n{done.stderr}"
        elif re.fullmatch(r"[\w./]+", command):
            assert os.access(ROOT / command, os.X_OK), command
        else:
            assert subprocess.run(["bash", "-n", "-c", command]).returncode == 0, command


@pytest.mark.parametrize(("tag", "passes"), [(f"v{version()}", True), ("v99.0.0", False), (version(), False)])
def test_release_compares_the_tag_with_the_version(tag: str, passes: bool) -> None:
    done = subprocess.run(
        ["bash", "-e", "-c", step('GITHUB_REF_NAME" = ')], cwd=ROOT, env={**os.environ, "GITHUB_REF_NAME": tag}
    )
    assert (done.returncode == 0) == passes


def test_release_gives_wheels_and_sdist_to_pypi(tmp_path: Path) -> None:
    (tmp_path / "packages").mkdir()
    wanted = {f"stocached-{version()}.tar.gz", f"stocached-{version()}-py3-none-manylinux_2_17_x86_64.whl"}
    others = {f"stocached-{version()}-linux-x86_64.tar.gz", f"stocached_{version()}-1_amd64.deb"}
    for name in wanted | others:
        (tmp_path / "packages" / name).write_text(name)
    variables = {**os.environ, "GITHUB_REF_NAME": f"v{version()}"}
    subprocess.run(["bash", "-e", "-c", step("mkdir dist")], cwd=tmp_path, env=variables, check=True)
    assert {path.name for path in (tmp_path / "dist").iterdir()} == wanted
