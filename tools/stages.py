"""Runs make targets as the stages of a test run. Prints a table and a closing line at the end.

    python3 tools/stages.py test-c setup-torch,test-torch+test-go,test-go-race ...

Each argument is a group, and groups run one after the other. A plus separates the lanes of a group, which run in
parallel. A comma separates the stages of a lane, which run one after the other.

The output of a stage goes to build/logs/<stage>.log and, if it fails, to the screen. The script counts tests from the
lines that go test -v, pytest and our own programs print. A stage that names no tests, such as a linter, counts as one.
Below the table, the script lists every skip with its reason, and every failure with its message again, for readers who
see only the end of the output. The column "processor" has the seconds of processor time of a stage, which a busy
machine changes little. Machines differ by a factor of three, and so does one virtual machine from day to day. So the
script also says how fast this one is. All stages run, even if earlier ones fail. The exit status is 1 if a stage failed.
Needs only the standard library.

A busy machine makes tests fail that wait for other processes. So a stage of tests in which at most MOST_AGAIN tests
failed runs once more at the end, alone. pytest then runs only what failed, and Go what its cache does not have. If it
passes, the stage counts as passed, and the script lists the failures as "unsteady". Stages that look for races do not
run again, nor does a stage whose log has a data race, a crash or a sanitizer's report: those are rare by nature.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from failures import failures

LOGS = Path("build/logs")

GO_RESULT = re.compile(r"^\s*--- (PASS|FAIL|SKIP): (\S+)")
SUMMARY = re.compile(r"\b(\d+) (passed|failed|skipped|error|errors|xfailed|xpassed)\b")
CLOSING = re.compile(r"^([\w-]+: )?\d+ (passed|failed|skipped|error|errors)(, \d+ \w+)*( in [\d.]+s.*)?$")
CRASH = re.compile(r"DATA RACE|Sanitizer|^panic: |^fatal error: |SIGSEGV|SIGBUS")
AGAIN = {
    "test-go",
    "test-go-race",
    "test-go-faults",
    "test-python",
    "test-torch",
    "test-languages",
    "test-demo",
    "test-docs",
    "test-examples",
}
MOST_AGAIN = 3
SKIP_REASON = re.compile(r"^SKIPPED \[\d+\] (.*)")


@dataclass
class Stage:
    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    processor: float = 0.0  # seconds of processor time of the stage's processes
    skips: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)  # failures of the first run, if the second passed
    may_run_again: bool = False

    def count(self, lines: list[str], status: int) -> None:
        previous = ""
        for line in lines:
            if result := GO_RESULT.match(line):
                self._count_go(result[1], result[2], previous)
            elif reason := SKIP_REASON.match(line):
                self.skips.append(reason[1])
            elif is_closing_line(line):
                self._count_summary(line)
            previous = line
        if self.passed + self.failed + self.skipped == 0:
            self.passed = 1 if status == 0 else 0
        if status != 0 and self.failed == 0:
            self.failed = 1

    def again(self, second: Stage) -> None:
        """Takes the result of a second run."""
        self.seconds += second.seconds
        self.processor += second.processor
        if second.failed == 0:
            self.passed, self.failed = self.passed + self.failed, 0
            self.failures, self.unsteady = [], self.failures

    def _count_go(self, result: str, name: str, reason: str) -> None:
        if result == "PASS":
            self.passed += 1
        elif result == "FAIL":
            self.failed += 1
        else:
            self.skipped += 1
            self.skips.append(f"{name}: {reason.strip()}")

    def _count_summary(self, line: str) -> None:
        for number, what in SUMMARY.findall(line):
            if what in ("passed", "xfailed"):
                self.passed += int(number)
            elif what == "skipped":
                self.skipped += int(number)
            else:
                self.failed += int(number)

    @property
    def result(self) -> str:
        if self.failed:
            return "FAIL"
        return "pass" if self.passed else "skip"


def is_closing_line(line: str) -> bool:
    """Whether it is a closing line of pytest ("== 3 passed, 1 skipped in 0.1s ==", with -q without "=") or of our programs
    ("3 passed, 0 failed")."""
    return CLOSING.match(line.strip().strip("=").strip()) is not None


def run(name: str, again: bool = False) -> Stage:
    stage = Stage(name)
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{name}{'-again' if again else ''}.log"
    print(f"== {name}{' again, alone' if again else ''}", flush=True)
    environment = os.environ | ({"PYTEST_ADDOPTS": "--last-failed"} if again else {})
    start = time.monotonic()
    with log.open("w") as out:
        command = [os.environ.get("MAKE", "make"), "--no-print-directory", name]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment
        )
        _, waited, usage = os.wait4(process.pid, 0)
    status = process.returncode = os.waitstatus_to_exitcode(waited)
    stage.seconds, stage.processor = time.monotonic() - start, usage.ru_utime + usage.ru_stime
    lines = log.read_text(errors="replace").splitlines()
    stage.count(lines, status)
    if stage.failed:
        stage.failures = failures(lines)
        stage.may_run_again = (
            name in AGAIN and stage.failed <= MOST_AGAIN and not any(CRASH.search(line) for line in lines)
        )
        shown = [f"   | {line}" for line in stage.failures]
        shown += [f"   {name} failed with status {status}; the whole output is in {log}; make {name} runs it again"]
        print("\n".join(shown), flush=True)  # at once: other stages may still run
    return stage


def run_lane(lane: str) -> list[Stage]:
    return [run(name) for name in lane.split(",")]


def table(stages: list[Stage]) -> str:
    rows = [("stage", "result", "passed", "failed", "skipped", "processor", "seconds")]
    rows += [
        (s.name, s.result, str(s.passed), str(s.failed), str(s.skipped), f"{s.processor:.1f}", f"{s.seconds:.1f}")
        for s in stages
    ]
    widths = [max(len(row[k]) for row in rows) for k in range(7)]
    text = [
        f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  " + "  ".join(f"{row[k]:>{widths[k]}}" for k in range(2, 7))
        for row in rows
    ]
    text.insert(1, "-" * len(text[0]))
    return "\n".join(text)


def additions(_: int) -> float:
    """Seconds of processor time for a million."""
    start, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number
    return time.process_time() - start


def speed() -> float:
    """Milliseconds of processor time that Python takes for a million additions while all processors are busy: two of them
    may share one core."""
    n = os.cpu_count() or 1
    with ProcessPoolExecutor(n) as pool:
        return 1000 * statistics.median(pool.map(additions, range(5 * n)))


def main(names: list[str]) -> int:
    if not names:
        print(__doc__)
        return 2
    stages: list[Stage] = []
    start = time.monotonic()
    for group in names:
        lanes = group.split("+")
        with ThreadPoolExecutor(len(lanes)) as pool:
            for lane in pool.map(run_lane, lanes):
                stages += lane
    for stage in stages:
        if stage.may_run_again:
            stage.again(run(stage.name, again=True))
    print("\n" + table(stages) + "\n")
    print(
        f"{time.monotonic() - start:.0f} s, {sum(s.processor for s in stages):.0f} processor seconds. A million additions in "
        f"Python take {speed():.0f} ms here while all {os.cpu_count()} processors are busy.\n"
    )
    for stage in stages:
        for skip in stage.skips:
            print(f"skipped in {stage.name}: {skip}")
    for stage in stages:
        for lines, what in ((stage.unsteady, "unsteady, passed when run again alone,"), (stage.failures, "failed")):
            if lines:
                print(f"{what} in {stage.name}:")
            for line in lines:
                print(f"  {line}")
    passed, failed, skipped = (sum(getattr(s, what) for s in stages) for what in ("passed", "failed", "skipped"))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
