"""Tests of what is in the archives, the deb and the rpm of each architecture that $DIST has packages of.

They install nothing. checks_packages.py does that with all packages, where `make dist` made them."""

from __future__ import annotations

import ctypes
import hashlib
import json
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
from test_install import FILES

from release import native
from release.commands import ROOT
from release.made import DIST, HOME, MACHINE, UNITS, VERSION, archive, deb, emulator, rpm, run, wheel

HERE = [architecture for architecture in native.ARCHITECTURES.values() if deb(architecture).is_file()]


def test_every_package_is_there_with_its_sum() -> None:
    assert native.ARCHITECTURES[MACHINE] in HERE
    expected = set() if len(HERE) == 1 else {f"stocached-{VERSION}.tar.gz"}
    for architecture in HERE:
        expected |= {wheel(architecture.name).name, archive(architecture).name, deb(architecture).name}
        expected |= {rpm(architecture).name, f"stocached-{VERSION}-linux-{architecture.name}.cdx.json"}
    lines = (DIST / "SHA256SUMS").read_text().splitlines()
    sums = {name: sum_ for sum_, name in (line.split("  ") for line in lines)}
    assert set(sums) == expected
    assert {path.name for path in DIST.iterdir() if path.is_file()} == {*expected, "SHA256SUMS"}
    for name, expected_sum in sums.items():
        assert hashlib.sha256((DIST / name).read_bytes()).hexdigest() == expected_sum, name


@pytest.mark.parametrize("architecture", HERE, ids=lambda a: a.name)
def test_archive_has_what_make_install_installs(architecture: native.Architecture, tmp_path: Path) -> None:
    with tarfile.open(archive(architecture)) as tar:
        members = tar.getmembers()
        tar.extractall(tmp_path)
    top = tmp_path / f"stocached-{VERSION}-linux-{architecture.name}"
    files = {str(path.relative_to(top)) for path in top.rglob("*") if not path.is_dir()}
    assert files >= FILES
    assert {(member.uid, member.uname) for member in members} == {(0, "root")}
    assert f"Version: {VERSION}\n" in (top / "lib/pkgconfig/stocached.pc").read_text()
    said = run(*emulator(architecture.name), top / "bin/stocached", "version")
    assert f"version    {VERSION}\n" in said
    assert f"linux/{architecture.go}" in said
    commit = re.search(r"^revision   ([0-9a-f]{40})\+?$", said, re.MULTILINE)
    assert commit, said
    run("git", "merge-base", "--is-ancestor", commit[1], "HEAD", cwd=ROOT)  # HEAD itself, unless somebody commits now
    if architecture.name == MACHINE:
        library = ctypes.CDLL(str(top / "lib/libstocached.so"))
        library.stoc_version.restype = ctypes.c_char_p
        assert library.stoc_version() == VERSION.encode()


@pytest.mark.parametrize("architecture", HERE, ids=lambda a: a.name)
def test_deb_and_rpm_have_the_same_files(architecture: native.Architecture) -> None:
    assert run("dpkg-deb", "-f", deb(architecture), "Version").strip() == f"{VERSION}-1"
    assert run("rpm", "-qp", "--qf", "%{VERSION}-%{RELEASE}", rpm(architecture)) == f"{VERSION}-1"
    tar = subprocess.run(["dpkg-deb", "--fsys-tarfile", deb(architecture)], check=True, stdout=subprocess.PIPE).stdout
    listed = subprocess.run(["tar", "-tf", "-"], input=tar, check=True, stdout=subprocess.PIPE).stdout.decode()
    of_deb = {line.lstrip(".").rstrip("/") for line in listed.splitlines() if not line.endswith("/")}
    of_rpm = {line for line in run("rpm", "-qpl", rpm(architecture)).splitlines() if line.startswith("/")}
    of_deb = {path.replace(f"/usr/lib/{architecture.name}-linux-gnu", "/usr/lib64") for path in of_deb}
    assert of_deb <= of_rpm
    assert of_deb >= UNITS
    assert "/usr/lib/sysusers.d/stocached.conf" in of_deb
    assert "/usr/bin/stocached-decode" in of_deb


@pytest.mark.parametrize("architecture", HERE, ids=lambda a: a.name)
def test_deb_and_rpm_need_the_commands_of_their_scripts_and_say_where_to_write(
    architecture: native.Architecture,
) -> None:
    """A small system may have neither systemd nor the commands that make users."""
    assert "useradd" in (ROOT / "deploy/packages/postinstall.sh").read_text()
    of_deb, of_rpm = deb(architecture), rpm(architecture)
    assert "passwd" in run("dpkg-deb", "-f", of_deb, "Depends").strip().split(", ")
    assert "shadow-utils" in run("rpm", "-qp", "--requires", of_rpm).splitlines()
    assert run("dpkg-deb", "-f", of_deb, "Homepage").strip() == HOME
    for said in (run("dpkg-deb", "-f", of_deb, "Maintainer"), run("rpm", "-qp", "--qf", "%{PACKAGER}", of_rpm)):
        assert said.strip().endswith(f" <{HOME}/issues>"), said


@pytest.mark.parametrize("architecture", HERE, ids=lambda a: a.name)
def test_bill_of_materials_names_what_is_inside(architecture: native.Architecture) -> None:
    made = json.loads((DIST / f"stocached-{VERSION}-linux-{architecture.name}.cdx.json").read_text())
    assert made["bomFormat"] == "CycloneDX"
    assert (made["metadata"]["component"]["name"], made["metadata"]["component"]["version"]) == ("stocached", VERSION)
    inside = {part["name"]: part["version"] for part in made["components"]}
    for package in native.PACKAGES:
        assert inside[package.name] == package.version
    required = dict(re.findall(r"^\t(\S+) (v\S+)$", (ROOT / "go.mod").read_text(), re.MULTILINE))
    assert inside["github.com/spf13/cobra"] == required["github.com/spf13/cobra"]
    assert "std" in inside
