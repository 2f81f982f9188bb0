"""Runs the DataLoader suites of torch and torchdata with their own class and with ours, and compares
the outcomes with differences.py.

The suites are not here: --torch and --torchdata say where the `test` folders of the two projects lie.
Nothing in them is changed."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from differences import DIFFERENCES

HERE = Path(__file__).resolve().parent
_LEFTOVERS = 30  # seconds until processes are killed that a failed test has left, as pytest waits for them without end


@dataclass(frozen=True)
class Suite:
    name: str
    file: str  # below the folder of tests
    replaces: str  # what sitecustomize.py replaces


SUITES = {
    "torch": [Suite("torch, test_dataloader.py", "test_dataloader.py", "torch")],
    "torchdata": [
        Suite("torchdata, test_dataloader.py", "stateful_dataloader/test_dataloader.py", "torchdata"),
        Suite("torchdata, test_state_dict.py", "stateful_dataloader/test_state_dict.py", "torchdata"),
    ],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for project in SUITES:
        parser.add_argument(
            f"--{project}", type=Path, metavar="FOLDER", help=f"the folder `test` of {project}'s sources"
        )
    parser.add_argument("--only-ours", action="store_true", help="do not run the suites with their own class")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="run the tests that match only, as with pytest")
    arguments = parser.parse_args()
    given = [
        (suite, getattr(arguments, project))
        for project, suites in SUITES.items()
        if getattr(arguments, project)
        for suite in suites
    ]
    if not given:
        parser.error("say where the suites are: --torch=/path/to/pytorch/test, --torchdata=/path/to/data/test, or both")
    for suite, folder in given:
        if not (folder / suite.file).is_file():
            parser.error(f"{folder / suite.file} does not exist")
    good = True
    for suite, folder in given:
        theirs = None if arguments.only_ours else run(suite, folder, "", arguments.processes, arguments.k)
        ours = run(suite, folder, suite.replaces, arguments.processes, arguments.k)
        good &= compare(suite, theirs, ours, whole=not arguments.k)
    return 0 if good else 1


def run(suite: Suite, folder: Path, replaces: str, processes: int, expression: str) -> dict[str, str]:
    """The outcome of each test: passed, failed or skipped. Tests that fail run once more, one at a time:
    many of them look at the clock."""
    start = time.monotonic()
    outcomes = _pytest(
        suite,
        folder,
        replaces,
        ["-n", str(processes), "--dist", "worksteal", *(["-k", expression] if expression else [])],
    )
    failed = [test for test, outcome in outcomes.items() if outcome == "failed"]
    if failed:
        outcomes |= _pytest(suite, folder, replaces, ["-p", "no:xdist"], failed)
    counts = ", ".join(
        f"{sum(outcome == kind for outcome in outcomes.values())} {kind}" for kind in ("passed", "failed", "skipped")
    )
    print(
        f"{suite.name}: with {'our class' if replaces else 'its own class'}: {counts} ({time.monotonic() - start:.0f} s)",
        flush=True,
    )
    return outcomes


def _pytest(
    suite: Suite, folder: Path, replaces: str, options: list[str], tests: list[str] | None = None
) -> dict[str, str]:
    environment = os.environ | {
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTORCH_TEST_WITH_SLOW": "1",
        "STOCACHED_SUITE": replaces,
    }
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    path = folder.resolve() / suite.file
    with tempfile.TemporaryDirectory() as scratch:
        report, settings = Path(scratch, "report.xml"), Path(scratch, "pytest.ini")
        settings.write_text("[pytest]\n")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-c",
            str(settings),
            "--rootdir",
            str(path.parent),
            "--noconftest",
            "-p",
            "no:cacheprovider",
        ]
        command += [
            "--timeout",
            "3000",
            f"--junitxml={report}",
            *options,
            *([f"{path}::{test}" for test in tests] if tests else [str(path)]),
        ]
        with Path(scratch, "output").open("w+") as output:
            process = subprocess.Popen(
                command,
                cwd=path.parent,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            while process.poll() is None and not report.exists():
                time.sleep(0.2)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LEFTOVERS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if process.wait() not in (0, 1, -signal.SIGKILL) or not report.exists():
                output.seek(0)
                sys.exit(f"pytest ended with status {process.returncode}:\n{output.read()[-4000:]}")
        return dict(map(_outcome, ElementTree.parse(report).iter("testcase")))


def _outcome(case: ElementTree.Element) -> tuple[str, str]:
    name = "::".join([*case.get("classname", "").split(".")[-1:], case.get("name", "")])
    if case.find("failure") is not None or case.find("error") is not None:
        return name, "failed"
    return name, "skipped" if case.find("skipped") is not None else "passed"


def compare(suite: Suite, theirs: dict[str, str] | None, ours: dict[str, str], *, whole: bool) -> bool:
    """Prints each test that passes with the suite's class and fails with ours. Returns whether these are
    the ones that differences.py names."""
    expected = DIFFERENCES[suite.file]
    failed = {
        test
        for test, outcome in ours.items()
        if outcome == "failed" and (theirs is None or theirs.get(test) == "passed")
    }
    good = True
    for test in sorted(failed):
        print(f"  {test}: {expected.get(test, 'FAILS WITH OUR CLASS, AND differences.py HAS NO REASON')}")
        good &= test in expected
    for test in sorted(expected.keys() - failed if whole and theirs is not None else ()):
        print(f"  {test}: PASSES, AND differences.py SAYS THAT IT FAILS")
        good = False
    return good


if __name__ == "__main__":
    sys.exit(main())
