"""Tests of .github/workflows. actionlint, in `make lint-go`, checks their syntax."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tarfile
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
        if local := re.fullmatch(r"uses: \./(\.github/workflows/\w+\.yml)", line):
            assert "\n  workflow_call:" in (ROOT / local[1]).read_text(), "no other workflow can run it"
            continue
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


def needed(name: str) -> set[str]:
    """The jobs that must end well before this one of `release` begins."""
    found = re.search(r"^    needs: \[?([\w, -]+)\]?$", jobs()[f"release/{name}"], re.MULTILINE)
    direct = set(found[1].split(", ")) if found else set()
    return direct.union(*map(needed, direct))


def test_nothing_is_published_before_the_tests_of_its_commit_have_passed() -> None:
    """And all else only after PyPI: it may refuse a package, and what it has cannot be taken back."""
    assert "uses: ./.github/workflows/ci.yml\n" in jobs()["release/ci"]
    publishing = {
        name.removeprefix("release/")
        for name, text in jobs().items()
        if name.startswith("release/") and ": write" in text
    }
    assert publishing == {"pypi", "github", "pages", "images", "image"}
    for name in publishing:
        assert needed(name) >= {"ci", "packages", "site"}, name
        assert name == "pypi" or "pypi" in needed(name), name


def test_the_action_of_pypi_knows_the_metadata_of_our_packages() -> None:
    """Its twine checks them before it sends them. checks_wheel.py asks the same twine."""
    (version_,) = re.findall(r"gh-action-pypi-publish@\w+ # v([\d.]+)$", jobs()["release/pypi"], re.MULTILINE)
    assert tuple(map(int, version_.split("."))) >= (1, 14, 2), "older ones have twine 6"
    assert "\ntwine==7.0.0 " in (ROOT / "tools/requirements-dist.txt").read_text()


def test_the_site_is_published_and_a_file_of_the_release(tmp_path: Path) -> None:
    """The archive of the site, with its checksum, is among what the release has."""
    page = tmp_path / "build/site/html/index.html"
    page.parent.mkdir(parents=True)
    page.write_text("<p>start")
    name = f"stocached-{version()}-site"
    variables = {**os.environ, "GITHUB_REF_NAME": f"v{version()}"}
    subprocess.run(["bash", "-e", "-c", step("build/site -czf")], cwd=tmp_path, env=variables, check=True)
    with tarfile.open(tmp_path / f"{name}.tar.gz") as tar:
        assert f"{name}/index.html" in tar.getnames()
    # What each job gives has a name that the job `github` takes: the site for Pages has another.
    text = "".join(text for job, text in jobs().items() if job.startswith("release/"))
    given = re.findall(r"upload-artifact@.*\n *with: \{ name: ([\w-]+),", text)
    assert given == ["release-packages", "release-sums", "release-site"]
    assert "pattern: release-*," in jobs()["release/github"]
    assert "upload-pages-artifact@" in jobs()["release/site"]
    assert "deploy-pages@" in jobs()["release/pages"]

    (tmp_path / "packages").mkdir()
    (tmp_path / f"{name}.tar.gz").rename(tmp_path / f"packages/{name}.tar.gz")
    (tmp_path / "packages/one.deb").write_text("one")
    sums = tmp_path / "packages/SHA256SUMS"
    sums.write_text(hashlib.sha256(b"one").hexdigest() + "  one.deb\n")
    subprocess.run(["bash", "-e", "-c", step("--check --strict")], cwd=tmp_path, env=variables, check=True)
    assert [line.split("  ")[1] for line in sums.read_text().splitlines()] == ["one.deb", f"{name}.tar.gz"]
    (tmp_path / "packages/one.deb").write_text("other")
    done = subprocess.run(["bash", "-e", "-c", step("--check --strict")], cwd=tmp_path, env=variables)
    assert done.returncode != 0, "a file that is not the one that was made"


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
    assert "tools/setup.sh torch\n" in done.stdout, "a test of the wheel runs README's loop with torch"


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
