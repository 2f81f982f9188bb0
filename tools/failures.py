"""Summarizes a log of tests in a few lines for each failure, because readers often see only the end
of a log.

Reads what go test -v, pytest, our C tests and tools/docs.py print. When a test hangs or panics, Go
dumps its goroutines. The summary has those in our code, each as one line with its frames, the
innermost first.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

WIDTH = 400  # the most characters of a line
EACH = 3  # messages of one test
GOROUTINES = 30  # goroutines of one dump

MODULE = "github.com/stocached/stocached/"
SECTION = re.compile(r"^=== (?:RUN|NAME|CONT|PAUSE)\s+(\S+)")
MESSAGE = re.compile(r"^\s+(\S+\.go:\d+: .*)")
FAIL = re.compile(r"^\s*--- FAIL: (\S+)(.*)")
END = re.compile(r"^(?:ok|FAIL)\s+(\S+)\s+(?:[\d.]+s|\(cached\)|\[.*\])")
CRASH = re.compile(r"^(panic: |fatal error: |SIG[A-Z]+: |\*\*\* Test |unexpected fault address )")
RUNNING = re.compile(r"^\t\t(\S+ \(.*\))$")
GOROUTINE = re.compile(r"^goroutine (\d+)[^\[]*(\[.*\]):$")
FRAME = re.compile(r"^(\S.*)\(.*\)$")
PLACE = re.compile(r"^\t(\S+:\d+)( |$)")
OTHER = re.compile(r"^(FAILED|ERROR|FAIL) +\S")  # pytest's summary, ours
SANITIZER = re.compile(r"(WARNING: DATA RACE|ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error: )")
COMPLAINT = re.compile(r"^\S+\.[ch]:\d+: ")  # a C test prints it before its FAIL
PROGRAM = re.compile(r"^== \S+$")  # begins the output of a C test program
STATUS = re.compile(r"^\S+: exit status \d+$")  # a C test program failed, hung or crashed
COMPILER = re.compile(r"^\S+:\d+(:\d+)?: ")


def failures(lines: list[str]) -> list[str]:
    """A few lines for each failed test of a log. If the log names no test: its last lines."""
    reader = _Reader()
    for k, line in enumerate(lines):
        reader.take(lines, k, line)
    reader.end_package("")
    told = (
        reader.told
        or [line for line in lines if COMPILER.match(line)][:10]
        or [line for line in lines if line.strip()][-5:]
    )
    return [cut(line) for line in told]


def cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 4] + " ..."


@dataclass
class _Reader:
    told: list[str] = field(default_factory=list)
    said: dict[str, list[str]] = field(default_factory=dict)  # lines of each Go test of the current package
    failed: dict[str, str] = field(default_factory=dict)  # failed Go tests of the package, and their times
    test: str = ""  # the test of the current lines
    crashed: list[str] = field(default_factory=list)  # the output of a package that crashed
    complaints: list[str] = field(default_factory=list)  # complaints of the current C test
    printed: deque[str] = field(default_factory=lambda: deque(maxlen=EACH))  # last, by the current C test program

    def take(self, lines: list[str], k: int, line: str) -> None:
        if section := SECTION.match(line):
            self.test = section[1]
        elif fail := FAIL.match(line):
            self.failed[fail[1]] = fail[2].strip()
        elif end := END.match(line):
            self.end_package(end[1].removeprefix(MODULE) + " ")
        elif CRASH.match(line):
            self.crashed += crash(lines, k)
        elif message := MESSAGE.match(line):
            self.said.setdefault(self.test, []).append(" | ".join([message[1].strip(), *more(lines, k)]))
        elif SANITIZER.search(line):
            self.told.append(" | ".join(one.strip() for one in lines[k : k + 6] if one.strip()))
        elif PROGRAM.match(line):
            self.printed.clear()
            return
        elif STATUS.match(line):
            self.told += [line, *(f"  {one}" for one in self.printed)]
        elif COMPLAINT.match(line):
            self.complaints.append(line)
        elif OTHER.match(line):
            self.told += [line, *(f"  {one}" for one in few(self.complaints))]
            self.complaints = []
        elif line.startswith("ok "):
            self.complaints = []
        self.printed.append(line)

    def end_package(self, package: str) -> None:
        for test, took in self.failed.items():
            said = few(self.said.get(test, []))
            if said or not any(other.startswith(test + "/") for other in self.failed):
                self.told += [f"{package}{test} {took}", *(f"  {one}" for one in said)]
        self.told += [f"{package}{line}" if not line.startswith(" ") else line for line in self.crashed]
        self.said, self.failed, self.crashed, self.test = {}, {}, [], ""


def few(messages: list[str]) -> list[str]:
    """The first messages and the last one: the first is usually the cause, the last is where the
    test ended."""
    return (
        messages
        if len(messages) <= EACH
        else [*messages[: EACH - 1], f"... ({len(messages) - EACH} more)", messages[-1]]
    )


def more(lines: list[str], k: int) -> list[str]:
    """The further lines of a message, which have four more spaces of indent."""
    indent = len(lines[k]) - len(lines[k].lstrip()) + 4
    text: list[str] = []
    for line in lines[k + 1 : k + 40]:
        if not line.startswith(" " * indent):
            break
        text.append(line.strip())
    return text


def crash(lines: list[str], k: int) -> list[str]:
    """The message of a panic, the tests that ran, and the goroutines below it."""
    running = [found[1] for line in lines[k + 1 : k + 20] if (found := RUNNING.match(line))]
    inner = [one for one in running if not any(other.startswith(one.split()[0] + "/") for other in running)]
    told = goroutines(lines, k + 1)
    return [*(f"  {one}" for one in told), lines[k] + (f"; running: {', '.join(inner)}" if inner else "")]


def goroutines(lines: list[str], k: int) -> list[str]:
    """The goroutines of a dump that are in our code, except tests that wait for a subtest."""
    seen: dict[str, int] = {}
    while k < len(lines) and not END.match(lines[k]):
        found = GOROUTINE.match(lines[k])
        k += 1
        if found is None:
            continue
        frames: list[str] = []
        waits = False
        while k + 1 < len(lines) and (frame := FRAME.match(lines[k])) and (place := PLACE.match(lines[k + 1])):
            waits = waits or frame[1].startswith("testing.(*T).Run")
            if frame[1].startswith(MODULE):
                frames.append(f"{frame[1].removeprefix(MODULE)} ({place[1].rsplit('/', 1)[-1]})")
            k += 2
        if frames and not waits:
            text = f"{found[2]} {' < '.join(frames)}"
            seen[text] = seen.get(text, 0) + 1
    told = [f"goroutine {text}" if n == 1 else f"{n} goroutines {text}" for text, n in seen.items()]
    return (
        told if len(told) <= GOROUTINES else [*told[:GOROUTINES], f"... and {len(told) - GOROUTINES} other goroutines"]
    )
