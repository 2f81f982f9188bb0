"""python -m release [--wheel | --here] FOLDER: makes all packages in FOLDER, or those for this architecture, or its wheel.

The same commit gives the same bytes: every time is $SOURCE_DATE_EPOCH, or else the time of the commit. FOLDER/work has
what the packages are made of."""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import subprocess
from pathlib import Path

from version import version

from . import native, notices, packages
from .commands import ROOT


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    some = parser.add_mutually_exclusive_group()
    some.add_argument("--wheel", action="store_true", help="only the wheel for this architecture")
    some.add_argument("--here", action="store_true", help="only what is for this architecture, and no sdist")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    if "SOURCE_DATE_EPOCH" not in os.environ:
        time = subprocess.run(
            ["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
        ).stdout.strip()
        os.environ["SOURCE_DATE_EPOCH"] = time
    os.umask(0o022)
    folder: Path = arguments.folder.resolve()
    work = folder / "work"
    work.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.is_file():
            old.unlink()
    mine = native.ARCHITECTURES[platform.machine()]
    # That of this machine comes first: its program writes the manual pages.
    all_ = sorted(native.ARCHITECTURES.values(), key=lambda a: a != mine)
    for architecture in [mine] if arguments.wheel or arguments.here else all_:
        built = native.build(architecture, work)
        notices.write(built)
        packages.wheel(architecture, built, folder)
        if not arguments.wheel:
            packages.archive(architecture, built, work, folder)
            packages.system(architecture, built, work, folder)
            bill = folder / f"stocached-{version()}-linux-{architecture.name}.cdx.json"
            bill.write_bytes((built / notices.BILL).read_bytes())
    if not (arguments.wheel or arguments.here):
        packages.source(folder)
    made = sorted(path for path in folder.iterdir() if path.is_file())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    (folder / "SHA256SUMS").write_text("".join(sums))
    for path in made:
        print(f"{path.stat().st_size / 1e6:6.1f} MB  {path}")


main()
