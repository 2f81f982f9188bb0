"""Tests of `make install`: the files for a C program, a shell, man and systemd."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

import docs

ROOT = Path(__file__).parents[1]
FILES = {
    "bin/stocached",
    "bin/stocached-decode",
    "include/stocached.h",
    "include/stocached_image.h",
    "lib/libstocached.a",
    "lib/libstocached.so",
    "lib/libstocached.so.1",
    "lib/libstocached_image.so",
    "lib/libstocached_image.so.1",
    "lib/pkgconfig/stocached.pc",
    "lib/pkgconfig/stocached_image.pc",
    "share/bash-completion/completions/stocached",
    "share/fish/vendor_completions.d/stocached.fish",
    "share/man/man1/stocached.1",
    "share/man/man1/stocached-create.1",
    "share/systemd/user/stocached-admin.socket",
    "share/systemd/user/stocached.service",
    "share/systemd/user/stocached.socket",
    "share/zsh/site-functions/_stocached",
}


def install(*settings: str, status: int = 0) -> str:
    """Installs built files as with sudo. It must not build, because other tests run these files at the
    same time."""
    # A strict umask of root, and no flags of the make that runs the tests.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["sh", "-c", 'umask 077; exec make install "$@"', "sh", *settings],
        cwd=ROOT,
        env={**environment, "SUDO_USER": "somebody"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == status, done.stdout
    return done.stdout


def output(*command: str | Path, **variables: str) -> str:
    return subprocess.run(command, env={**os.environ, **variables}, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix = tmp_path_factory.mktemp("install") / "prefix"
    install(f"PREFIX={prefix}")
    return prefix


@pytest.mark.parametrize(
    ("example", "arguments"), [("loader", ["40", "2", "2"]), ("watch", ["--self-test"]), ("fetch", None)]
)
def test_an_example_compiles_by_the_line_in_its_first_comment(
    prefix: Path, tmp_path: Path, example: str, arguments: list[str] | None
) -> None:
    source = (ROOT / f"examples/c/{example}.c").read_text()
    (tmp_path / f"{example}.c").write_text(source)
    line = re.search(r"^ \*     (cc .*pkg-config.*)$", source, re.MULTILINE)
    assert line is not None
    subprocess.run(
        line[1], shell=True, check=True, cwd=tmp_path, env={**os.environ, "PKG_CONFIG_PATH": f"{prefix}/lib/pkgconfig"}
    )
    if arguments is not None:  # fetch needs a server
        assert output(tmp_path / example, *arguments, LD_LIBRARY_PATH=f"{prefix}/lib")


def test_a_program_is_linked_with_the_archive(prefix: Path, tmp_path: Path) -> None:
    found = output(
        "pkg-config", "--static", "--cflags", "--libs", "stocached >= 0.1", PKG_CONFIG_PATH=f"{prefix}/lib/pkgconfig"
    ).split()
    assert "-pthread" in found
    archive = [f"{prefix}/lib/libstocached.a" if word == "-lstocached" else word for word in found]
    subprocess.run(["cc", str(ROOT / "examples/c/loader.c"), *archive, "-o", str(tmp_path / "loader")], check=True)
    assert "epoch 2: 30 of 40 samples from the cache" in output(tmp_path / "loader", "40", "2", "2")


def test_the_program_for_pictures_of_the_guide(prefix: Path, tmp_path: Path) -> None:
    blocks = docs.blocks_by("tools/test_install.py", "docs/guides/c.md")
    place = next(k for k, block in enumerate(blocks) if "#include" in block and "stocached_image" in block)
    source, line = blocks[place : place + 2]
    (tmp_path / "picture.c").write_text(source)
    (tmp_path / "cat.jpg").write_bytes((ROOT / "source/decode/testdata/500x375.jpg").read_bytes())
    paths = {"PKG_CONFIG_PATH": f"{prefix}/lib/pkgconfig", "LD_LIBRARY_PATH": f"{prefix}/lib"}
    said = output("sh", "-ec", f"cd {tmp_path}\n{line}", **paths)
    assert re.fullmatch(r"red in the middle: \d+\n", said)
    (tmp_path / "text.jpg").write_text("text")
    failed = subprocess.run([tmp_path / "picture", tmp_path / "text.jpg"], env=os.environ | paths, capture_output=True)
    assert (failed.returncode, failed.stdout) == (1, b"not a JPEG, PNG or WebP file\n")


@pytest.mark.parametrize("number", [0, 1])
def test_the_lines_of_the_guide_install_for_a_compiler(number: int, tmp_path: Path) -> None:
    """Both ways of docs/guides/c.md, in a folder of this test. What `make build` makes is there already."""
    blocks = docs.blocks_by("tools/test_install.py", "docs/guides/c.md")
    lines = [block for block in blocks if block.startswith("make build ")][number]
    (tmp_path / "program.c").write_text("#include <stocached.h>\nint main(void) { return !stoc_version(); }\n")
    script = f"""
    make() {{
        case "$1" in build) command make -n -C {ROOT} build > /dev/null ;; *) command make -C {ROOT} "$@" ;; esac
    }}
    sudo() {{ "$@" PREFIX={tmp_path}/usr/local; }}
    HOME={tmp_path}
    export PKG_CONFIG_PATH={tmp_path}/usr/local/lib/pkgconfig LD_LIBRARY_PATH={tmp_path}/usr/local/lib SUDO_USER=somebody
    {lines}
    cc program.c $(pkg-config --cflags --libs stocached) -o program && ./program
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    subprocess.run(["bash", "-euc", script], cwd=tmp_path, env=environment, check=True, stdout=subprocess.DEVNULL)


def test_what_is_installed_is_found(prefix: Path) -> None:
    assert output(prefix / "bin/stocached", "--version").startswith("stocached ")
    assert output(prefix / "bin/stocached-decode", "--version").startswith("stocached-decode, frames 6, libjpeg")
    completions = prefix / "share/bash-completion/completions/stocached"
    assert "stocached" in output("bash", "-c", f"source '{completions}' && complete -p stocached")
    assert (prefix / "share/zsh/site-functions/_stocached").read_text().startswith("#compdef stocached")
    service = (prefix / "share/systemd/user/stocached.service").read_text()
    assert f"\nExecStart={prefix}/bin/stocached serve" in service and "/usr/local" not in service
    # systemctl --user refuses to start a unit that drops capabilities, where users may make no namespaces.
    assert "\nNoNewPrivileges=" in service and "CapabilityBoundingSet" not in service and "Protect" not in service
    assert {path.stat().st_mode & 0o777 for path in prefix.rglob("*")} == {0o644, 0o755}


def test_a_package_has_the_same_files_and_no_path_of_the_place_it_is_made_in(prefix: Path, tmp_path: Path) -> None:
    install("PREFIX=/opt/stocached", f"DESTDIR={tmp_path}/package")
    packaged = tmp_path / "package/opt/stocached"
    files = {str(path.relative_to(packaged)) for path in packaged.rglob("*") if not path.is_dir()}
    assert files >= FILES and files == {
        str(path.relative_to(prefix)) for path in prefix.rglob("*") if not path.is_dir()
    }
    assert [path.name for path in (tmp_path / "package").iterdir()] == ["opt"]
    for name in (name for name in files if not name.startswith("bin/") and not name.startswith("lib/lib")):
        assert str(tmp_path) not in (packaged / name).read_text(), name
    assert "prefix=/opt/stocached\n" in (packaged / "lib/pkgconfig/stocached.pc").read_text()


@pytest.mark.parametrize("relative", ["", "here", "~/here"])
def test_a_prefix_that_is_no_path_from_the_root_is_refused(relative: str) -> None:
    assert f"PREFIX='{relative}' does not begin with /" in install(f"PREFIX={relative}", status=2)
    assert not (ROOT / "here").exists() and not (ROOT / "~").exists()
