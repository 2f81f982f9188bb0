"""Tests of all that `make dist` makes. checks_wheel.py tests the wheel for this machine.

They install the deb in a small Debian of its own, and run what is for arm64 under qemu."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import docs
from release import debian as debian_packages
from release import native
from release.commands import ROOT
from release.made import (
    DIST,
    MACHINE,
    UNITS,
    VERSION,
    archive,
    deb,
    emulator,
    lacking,
    rpm,
    run,
    run_readmes_programs,
    unpacked,
    wheel,
)


def test_there_are_packages_for_all_architectures() -> None:
    """checks_contents.py looks into them."""
    assert all(deb(architecture).is_file() for architecture in native.ARCHITECTURES.values())


def test_source_package_has_the_version() -> None:
    with tarfile.open(DIST / f"stocached-{VERSION}.tar.gz") as tar:
        information = tar.extractfile(f"stocached-{VERSION}/PKG-INFO")
        assert information is not None
        assert f"\nVersion: {VERSION}\n" in information.read().decode()


def test_source_package_is_installed_by_a_c_compiler(tmp_path: Path) -> None:
    """It has README's loop without torch, and says why it is without the command."""
    package = DIST / f"stocached-{VERSION}.tar.gz"
    run(sys.executable, "-m", "twine", "check", "--strict", package)
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", environment)
    # In the folder of the test, pip finds no clone: the package has all that it needs.
    run(environment / "bin/pip", "install", "--quiet", package, cwd=tmp_path)
    run_readmes_programs(tmp_path, environment / "bin/python", str(environment / "bin"))
    done = subprocess.run([environment / "bin/stocached", "version"], capture_output=True, text=True)
    assert (done.returncode, "it was built from a source package" in done.stderr) == (127, True), done.stderr


def test_two_builds_have_the_same_bytes(tmp_path: Path) -> None:
    """The second build compiles everything again, in another folder, on a machine with other settings of Go."""
    settings = {"GOFLAGS": "-buildvcs=true -ldflags=-w", "GOAMD64": "v3", "GOARM64": "v9.0"}
    variables = {**os.environ, "PYTHONPATH": "tools", **settings}
    run(sys.executable, "-m", "release", tmp_path / "again", cwd=ROOT, env=variables)
    assert (tmp_path / "again/SHA256SUMS").read_text() == (DIST / "SHA256SUMS").read_text()


# ------------------------------------------------------------------------------------------------ deb


@contextmanager
def smallest_debian(folder: Path) -> Iterator[Path]:
    """The root of a Debian with its smallest set of packages."""
    keys = Path(debian_packages.KEYS)
    if os.geteuid() or not shutil.which("debootstrap") or not keys.is_file():
        lacking(f"a small Debian needs root, debootstrap, and the file {keys} of the package debian-archive-keyring")
    packed = ROOT / "build/debian-bookworm.tar"
    archive = debian_packages.mirror()
    bootstrap = ("debootstrap", "--variant=minbase", f"--keyring={keys}")
    if not packed.is_file():
        run(*bootstrap, f"--make-tarball={packed}", "bookworm", ROOT / "build/debian-bookworm", archive)
    root = folder / "root"
    run(*bootstrap, f"--unpack-tarball={packed}", "bookworm", root, archive)
    yield root
    shutil.rmtree(root)


def block(document: str, word: str) -> str:
    """The commands of a document that this file runs, by a word in them."""
    blocks = docs.blocks_by("tools/release/checks_packages.py", document)
    (found,) = (commands for commands in blocks if word in commands)
    return found


# In a small Debian, root needs no sudo, and systemd does not run: the command of the unit runs as the user of the unit.
STAND_INS = """
sudo() {
    [ "$1" != -E ] || shift
    case $1 in
    -u) user=$2; shift 2; setpriv --reuid "$user" --regid "$user" --clear-groups "$@" ;;
    *) "$@" ;;
    esac
}
systemctl() {
    [ "$*" = "enable --now stocached" ]
    install -d -o stocached /run/stocached
    unit=/usr/lib/systemd/system/stocached.service
    command=$(sed -n 's/^ExecStart=//p' $unit | sed 's|%E|/etc|')
    STOCACHED_SOCKETS_DIR=/run/stocached sudo -u "$(sed -n 's/^User=//p' $unit)" $command > /tmp/serving 2> /tmp/log &
    server=$!
    until [ -s /tmp/serving ]; do kill -0 $server && sleep 0.1; done
}
"""


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small Debian with our package."""
    with smallest_debian(tmp_path_factory.mktemp("debian")) as root:
        package = deb(native.ARCHITECTURES[MACHINE])
        shutil.copy(package, root)
        (install, _) = block("docs/guides/packages.md", "dpkg -i").splitlines()
        inside(root, STAND_INS + install.replace("amd64", native.ARCHITECTURES[MACHINE].go))
        yield root


def inside(root: Path, command: str) -> str:
    """Runs a command in the chroot, with a /proc and /dev/shm of its own, and no network."""
    begin = (
        'mount -t tmpfs tmpfs "$1/dev/shm" -o mode=1777 && mount -t proc proc "$1/proc" && exec chroot "$1" sh -ec "$2"'
    )
    script = f'mkdir -p "$1/dev/shm" && {begin}'
    variables = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/",
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
    }
    return run("unshare", "--mount", "--net", "--pid", "--fork", "sh", "-c", script, "sh", root, command, env=variables)


def test_deb_installs_units_and_user(debian: Path) -> None:
    assert re.search(
        r"^stocached:x:\d+:\d+:Caches of training samples:", (debian / "etc/passwd").read_text(), re.MULTILINE
    )
    for unit in UNITS:
        assert (debian / unit.lstrip("/")).is_file()
    service = (debian / "usr/lib/systemd/system/stocached.service").read_text()
    assert "\nExecStart=/usr/bin/stocached serve -c %E/stocached/config.yaml\n" in service
    assert "\nUser=stocached\n" in service
    assert "libstocached.so.1" in inside(debian, "ldconfig -p")


def test_first_use_of_readme_in_a_shell_runs_with_the_command_of_the_deb(debian: Path) -> None:
    (example,) = (one for one in docs.examples(ROOT / "README.md") if one.language == "sh")
    (debian / "root/first.sh").write_text(docs.program(example))
    shutil.copy(ROOT / "README.md", debian / "root")
    said = inside(debian, "cd /root; REPOSITORY=/root bash -eu first.sh; stocached version")
    assert "config.yaml: good, 1 cache" in said
    assert re.search(r"^NAME +faces$|faces", said, re.MULTILINE), said
    assert f"version    {VERSION}\n" in said


def test_the_lines_of_the_guide_begin_a_service(debian: Path) -> None:
    (debian / "data/pets").mkdir(parents=True)
    for k in range(4):
        (debian / f"data/pets/{k}.txt").write_text(f"pet {k}")
    guide = "docs/guides/packages.md"
    commands = [
        block(guide, "sudo tee"),
        block(guide, "warm pets"),
        "kill $server; wait $server || true\n",
        "sudo -u stocached stocached rm pets\n",
    ]
    said = inside(debian, STAND_INS + "".join(commands))
    assert re.search(r"^filled +4$", said, re.MULTILINE), said
    (debian / "etc/stocached/config.yaml").unlink()


def test_the_line_of_the_guide_unpacks_the_archive(debian: Path) -> None:
    package = archive(native.ARCHITECTURES[MACHINE])
    shutil.copy(package, debian)
    line = block("docs/guides/packages.md", "sudo tar").replace("x86_64", MACHINE).strip()
    said = inside(
        debian,
        f"{STAND_INS}\ncd /; {line}\n/usr/local/bin/stocached version; ldconfig -p; rm -r /usr/local/bin/stocached*",
    )
    assert f"version    {VERSION}\n" in said


def test_the_line_of_the_guide_installs_from_a_clone(tmp_path: Path) -> None:
    line = block("docs/guides/packages.md", "go install")
    run("sh", "-ec", line, cwd=ROOT, env={**os.environ, "GOBIN": str(tmp_path)})
    assert f"version    {VERSION}\n" in run(tmp_path / "stocached", "version")


def test_service_of_the_deb_serves_as_its_user(debian: Path) -> None:
    """The command of the unit, as the user of the unit: a chroot has no systemd."""
    (debian / "etc/stocached").mkdir(exist_ok=True)
    (debian / "etc/stocached/config.yaml").write_text(
        "caches:\n  - name: words\n    source: {kind: dir, path: /etc/stocached/words}\n    size: 8MiB\n"
    )
    words = debian / "etc/stocached/words"
    words.mkdir(exist_ok=True)
    for k in range(4):
        (words / f"{k}.txt").write_text(f"word {k}")
    said = inside(
        debian,
        "install -d -o stocached /run/stocached; export STOCACHED_SOCKETS_DIR=/run/stocached; "
        'as() { setpriv --reuid stocached --regid stocached --clear-groups "$@"; }; '
        "as stocached serve -c /etc/stocached/config.yaml 2>/tmp/log & "
        "for k in $(seq 600); do as stocached health words >/tmp/health 2>&1 && break; sleep 0.1; done; "
        "cat /tmp/health /tmp/log; as stocached warm words; as stocached ls; kill %1 2>/dev/null || true",
    )
    assert re.search(r"^filled +4$", said, re.MULTILINE), said


def test_deb_is_removed(debian: Path) -> None:
    inside(debian, "dpkg --purge stocached")
    assert not (debian / "usr/bin/stocached").exists()
    inside(debian, f"dpkg -i /{deb(native.ARCHITECTURES[MACHINE]).name}")


# ------------------------------------------------------------------------------------------------ rpm


@pytest.fixture(scope="module")
def rpm_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A root file system with our rpm. It has the programs of Debian, because no archive of Fedora is at hand, so rpm
    knows no other package there. Its loader looks for libraries where Fedora's does."""
    with smallest_debian(tmp_path_factory.mktemp("rpm")) as root:
        (root / "etc/ld.so.conf.d/lib64.conf").write_text("/usr/lib64\n")
        line = block("docs/guides/packages.md", "sudo rpm").splitlines()[
            1
        ]  # with --root, and without the database of Fedora
        assert line == f"sudo rpm -i {rpm(native.ARCHITECTURES['x86_64']).name}"
        of_root(root, "-i", "--nodeps", rpm(native.ARCHITECTURES[MACHINE]))
        yield root


def of_root(root: Path, *arguments: str | Path) -> str:
    return run("rpm", "--root", root, *arguments)


def test_rpm_installs_files_units_and_user(rpm_root: Path) -> None:
    assert of_root(rpm_root, "--query", "stocached").strip() == f"stocached-{VERSION}-1.{MACHINE}"
    assert of_root(rpm_root, "--verify", "--nodeps", "stocached") == "", "a file is not as the package says"
    users = (rpm_root / "etc/passwd").read_text()
    assert re.search(r"^stocached:x:\d+:\d+:Caches of training samples:.*nologin$", users, re.MULTILINE)
    for unit in UNITS:
        assert (rpm_root / unit.lstrip("/")).is_file()
    assert "/usr/lib64/libstocached.so.1" in inside(rpm_root, "ldconfig -p")


def test_command_of_the_rpm_runs(rpm_root: Path) -> None:
    said = inside(
        rpm_root,
        "stocached create second --samples 10 --sample-bytes 1000; stocached stats second --json; stocached rm second;"
        "stocached version; stocached-decode --version",
    )
    assert '"name": "second"' in said
    assert f"version    {VERSION}\n" in said
    assert "libjpeg-turbo 2.1.5" in said


def test_rpm_is_installed_again_and_removed(rpm_root: Path) -> None:
    users = (rpm_root / "etc/passwd").read_text()
    files = of_root(rpm_root, "--query", "--list", "stocached").splitlines()
    of_root(rpm_root, "--upgrade", "--replacepkgs", "--nodeps", rpm(native.ARCHITECTURES[MACHINE]))
    assert (rpm_root / "usr/bin/stocached").is_file()
    of_root(rpm_root, "--erase", "stocached")
    left = [file for file in files if (rpm_root / file.lstrip("/")).is_file()]
    assert left == []
    assert not (rpm_root / "etc/stocached").exists()
    assert (rpm_root / "etc/passwd").read_text() == users, "files may belong to the user"
    assert "libstocached" not in inside(rpm_root, "ldconfig -p")


# ------------------------------------------------------------------------------------------------ C libraries


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The wheel for an architecture, unpacked, with its libraries where our makefiles expect them."""

    @functools.cache
    def folder_of(architecture: str) -> Path:
        folder = unpacked(wheel(architecture), tmp_path_factory.mktemp(architecture))
        for name in ("libstocached.so", "libstocached_image.so"):
            shutil.copy(folder / "stocached" / name, folder / f"{name}.1")
            (folder / name).symlink_to(f"{name}.1")
        return folder

    return folder_of


# With the library of the wheel; with the sources of the library inside; with a library that has fault points.
OF_THE_WHEEL = ("api", "attach", "chains", "fetch", "order", "task_queue", "threads", "worker")
OF_THE_SOURCES = ("disk", "unit")
OF_FAULTS = ("faults",)
# qemu reserves address space for itself, so limits of address space mean nothing, and it makes threads of its own.
NOT_IN_AN_EMULATOR = {
    "forks": "does not end within 10 minutes in qemu",
    "huge": "counts huge pages, which the kernel gives to qemu's mappings otherwise",
    "memory": "reads the kernel's flags of mappings and a core dump, which are qemu's, and limits the address space",
    "replay": "a part of a test in Go, internal/verify/model",
    "resources": "limits the address space, and takes times",
    "thread_pool": "limits the address space, and counts threads",
}
# On this machine, `make test-c` runs all with a library of the system's compiler. Zig compiles those of a release.
HERE = (*OF_THE_WHEEL, "forks", "resources", "thread_pool")
EMULATED = [architecture for architecture in native.ARCHITECTURES if architecture != MACHINE]


def test_every_test_program_in_c_runs_in_the_emulator_or_says_why_not() -> None:
    programs = [path.stem for path in (ROOT / "cclient/ctest").glob("*.c")]
    assert sorted(programs) == sorted([*OF_THE_WHEEL, *OF_THE_SOURCES, *OF_FAULTS, *NOT_IN_AN_EMULATOR])


def compilers_of_tests(architecture: str, folder: Path) -> tuple[Path | str, Path | str]:
    """As native.compilers. Here they are the system's: what these find out of the processor, the library must find too."""
    if architecture == MACHINE:
        return "cc", "ar"
    return native.compilers(native.ARCHITECTURES[architecture], folder / "tools")


@pytest.mark.parametrize(
    ("architecture", "name"),
    [(MACHINE, name) for name in HERE]
    + [(other, name) for other in EMULATED for name in (*OF_THE_WHEEL, *OF_THE_SOURCES, *OF_FAULTS)],
)
def test_a_released_library_runs_the_tests_of_the_protocol(
    architecture: str, name: str, released: Callable[[str], Path]
) -> None:
    folder = released(architecture)
    cc, ar = compilers_of_tests(architecture, folder)
    linked = [f"-L{folder}", f"-Wl,-rpath,{folder}", "-lstocached"]
    if name in OF_THE_SOURCES:
        linked = []
    elif name in OF_FAULTS:
        library = folder / "libstocached-fault.so"
        flags = "CFLAGS=-O1 -g0 -Wno-unknown-warning-option"
        run("make", "-C", "cclient", f"CC={cc}", f"AR={ar}", f"BUILD={folder}", flags, library, cwd=ROOT)
        linked = ["-DSTOC_FAULT_POINTS", *linked[:2], "-lstocached-fault"]
    run(
        cc, "-std=gnu11", "-O1", "-pthread", "-I.", "-o", folder / name, f"ctest/{name}.c", *linked, cwd=ROOT / "cclient"
    )  # fmt: skip
    said = run(*emulator(architecture), folder / name, cwd=ROOT / "cclient")
    assert re.search(r"^\w+: \d+ passed, 0 failed", said, re.MULTILINE), said


@pytest.mark.parametrize("architecture", native.ARCHITECTURES)
def test_a_released_library_decodes_pictures(architecture: str, released: Callable[[str], Path]) -> None:
    """The test writes its JPEG files itself, by the libjpeg-turbo that was built for the wheel."""
    folder = released(architecture)
    cc, _ = compilers_of_tests(architecture, folder)
    libraries = native.build_libraries(native.ARCHITECTURES[architecture], DIST / "work")
    run(
        cc, "-std=gnu11", "-O1", "-pthread", "-DJPEG_INSIDE", "-I.", f"-I{libraries}/include", "-o", folder / "image",
        "ctest/image.c", f"-L{folder}", f"-Wl,-rpath,{folder}", "-lstocached_image", libraries / "lib/libjpeg.a", "-lm",
        cwd=ROOT / "cimage",
    )  # fmt: skip
    variables = {**os.environ, "STOCACHED_TEST_FILES": "200"}
    said = run(*emulator(architecture), folder / "image", cwd=ROOT / "cimage", env=variables)
    assert re.search(r"^image: \d+ passed, 0 failed", said, re.MULTILINE), said


def test_programs_for_arm64_say_their_version(released: Callable[[str], Path]) -> None:
    scripts = released("aarch64") / f"stocached-{VERSION}.data/scripts"
    for name in ("stocached", "stocached-decode"):
        (scripts / name).chmod(0o755)
    assert f"version    {VERSION}\n" in run(*emulator("aarch64"), scripts / "stocached", "version")
    assert "libjpeg-turbo 2.1.5" in run(*emulator("aarch64"), scripts / "stocached-decode", "--version")
