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
    found: list[str] = []
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


def jobs() -> dict[str, str]:
    """The text of each job, by the names of its file and of the job."""
    found: dict[str, str] = {}
    for file in WORKFLOWS:
        _, *parts = re.split(r"^  ([\w-]+):\n(?=    )", file.read_text().partition("\njobs:\n")[2], flags=re.MULTILINE)
        found |= {f"{file.stem}/{name}": text for name, text in zip(parts[::2], parts[1::2], strict=True)}
    return found


def test_a_job_installs_what_make_may_not() -> None:
    """On these machines make is not root, unless the step says so. It then names the package and stops."""
    looked = 0
    for name, text in jobs().items():
        for command in re.findall(r"^ *- run: (\.ci/run|make .*)$", text, re.MULTILINE):
            target = "ci packages" if command == ".ci/run" else command.removeprefix("make ")
            # The flag -n prints commands and runs none. `make ci` runs `make packages` in a stage.
            done = subprocess.run(["make", "-n", *target.split()], cwd=ROOT, capture_output=True, text=True, check=True)
            for setup, package in (("c-tests", "libjpeg-dev"), ("wheel", "nasm"), ("packages", "rpm")):
                if f"tools/setup.sh {setup}\n" in done.stdout:
                    assert re.search(rf"sudo apt-get install .*\b{package}\b", text), (
                        f"{name}: {command} needs {package}"
                    )
                    looked += 1
    assert looked > 2


def test_packages_are_made_without_skipping_a_test() -> None:
    """Above all before they are published."""
    made = [command for command in steps() if "make dist" in command]
    assert len(made) == 2
    assert all(command.endswith(" make dist SKIPS=0") for command in made)
    done = subprocess.run(["make", "-n", "dist", "SKIPS=0"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.search(r"^DIST=build/dist SKIPS=0 .*checks_packages\.py$", done.stdout, re.MULTILINE)


def test_root_finds_go_and_python() -> None:
    """sudo replaces PATH by its secure_path, also with --preserve-env=PATH."""
    for command in steps():
        if "sudo" in command and "make" in command:
            assert command.startswith('sudo env "PATH=$PATH" "HOME=$HOME" make'), command


def test_release_publishes_the_image_that_the_chart_takes(tmp_path: Path) -> None:
    (tmp_path / "docker").write_text('#!/bin/sh\necho "$@" >> "$LOG"\n')
    (tmp_path / "docker").chmod(0o755)
    variables = {
        **os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "LOG": str(tmp_path / "log"), "TOKEN": "secret",
        "GITHUB_REPOSITORY": "stocached/stocached", "GITHUB_REF_NAME": f"v{version()}", "GITHUB_ACTOR": "somebody",
    }  # fmt: skip
    for word in ("docker push", "docker buildx"):
        subprocess.run(["bash", "-e", "-c", step(word)], cwd=ROOT, env=variables, check=True)
    values = (ROOT / "deploy/chart/stocached/values.yaml").read_text()
    repository = re.search(r"^  repository: (\S+)$", values, re.MULTILINE)
    assert repository is not None
    image = f"{repository[1]}:{version()}"
    said = (tmp_path / "log").read_text().splitlines()
    assert said[0] == f"build -f deploy/image/Containerfile -t {image}-{os.uname().machine} ."
    assert said[2] == f"push {image}-{os.uname().machine}"
    assert said[4] == f"buildx imagetools create --tag {image} {image}-x86_64 {image}-aarch64"
    assert "secret" not in "".join(said)
