"""Runs the examples of the documents, so that readers copy code that works.

    python tools/docs.py README.md docs
    python tools/docs.py --list README.md docs    # runs nothing: says of each block who runs it

It runs a fenced block if the first line has "run" after the language: ```python run, ```go run, ```sh run or ```c run.
If a block ```text output follows, the example must print it. In this block, a line "..." stands for any number of
lines, and "..." within a line for any text. Blocks with ```python torch, lightning or transformers need that package.
If it is not installed, they are skipped and counted. Each block runs in its own folder, in the order of the document,
and finds our bin/, .venv/bin and build/; $REPOSITORY is the top folder.

A block that shows only a part of a program has the rest in a comment above it, which readers do not see:

    <!-- run as
    import numpy as np
    ...
    assert len(batch) == 10
    -->

The block replaces the line "...", with its indentation. ```python run as FILE has the rest in that file. Of a block
```yaml, which is written to config.yaml, the comment has commands of a shell, or `stocached serve -c config.yaml
--check` runs. Exit status 77 skips the block, for the reason that it printed. A block ```sh by FILE is run by that
file, which must name the document by its path in quotes. A block ```sh checked by FILE is not run: that file looks
whether the commands exist. Every block of these languages needs one of these words, so that none is untried. A command that is indented, or in a block without a language, needs a block that says so too.

Python blocks run in children of a process that has imported NumPy, torch, torchvision or Lightning: tools/warm.py. A block
```python of NAME must be a part of examples/NAME, word for word. A relative link to a missing file is a failure too.
Needs only the standard library.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from warm import Warm

ROOT = Path(__file__).resolve().parent.parent
MISSING = 77  # the exit status of an example that says what is not installed
SECONDS = 300  # for one block; the slowest import torch and frameworks while other tests run, or compile Go programs

LANGUAGES = ("sh", "python", "go", "c", "yaml")
FENCE = re.compile(r"^( *)```(\w+) (run|torch|lightning|transformers|output)(?: as (\S+))?\s*$")
UNTRIED = re.compile(rf"^ *```({'|'.join(LANGUAGES)})\s*$")
# A command or a statement of a program, without a fence or in one that names no language.
UNFENCED = re.compile(r"^ {4}(?:\$ |sudo )?(?:stocached|make|pip|uv|go|cc|python3?|docker|curl|import|from) .*$")
ELSEWHERE = re.compile(r"^ *```\w+ (?:checked )?by (\S+)\s*$")
FRAME = re.compile(r"^<!-- run as\n((?:(?!-->).*\n)*)-->\n\Z", re.M)
EXCERPT = re.compile(r"^```\w+ of (\S+)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]+)(?:#[^)]*)?\)")


class MissingError(Exception):
    """What an example needs and is not there."""


@dataclass
class Example:
    document: Path
    line: int
    language: str
    needs: str | None  # a package that may be missing
    code: str
    output: str | None = None
    frame: str | None = None  # the rest of the program, with a line "..."

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line} ({self.language})"


def examples(document: Path) -> list[Example]:
    found: list[Example] = []
    lines = document.read_text().splitlines()
    k = 0
    while k < len(lines):
        fence = FENCE.match(lines[k])
        if fence is None:
            k += 1
            continue
        indentation, language, what, file = fence.groups()
        end = lines.index(f"{indentation}```", k)
        body = "\n".join(line.removeprefix(indentation) for line in lines[k + 1 : end]) + "\n"
        if what == "output":
            found[-1].output = body
        else:
            rest = FRAME.search("\n".join(lines[:k]) + "\n")
            frame = (ROOT / file).read_text() if file else rest[1] if rest else None
            found.append(Example(document, k + 1, language, None if what == "run" else what, body, frame=frame))
        k = end + 1
    return found


def blocks_by(file: str, document: str) -> list[str]:
    """The code of the blocks of a document that another file of the repository runs or checks."""
    text = (ROOT / document).read_text()
    return re.findall(rf"^```\w+ (?:checked )?by {re.escape(file)}\n(.*?)^```$", text, re.M | re.S)


def program(example: Example) -> str:
    """The example with the rest of its program."""
    if example.language == "yaml":
        return example.frame or "stocached serve -c config.yaml --check\n"
    if example.frame is None:
        return example.code
    return re.sub(
        r"^([ \t]*)\.\.\.\n", lambda here: textwrap.indent(example.code, here[1]), example.frame, count=1, flags=re.M
    )


def run(example: Example, folder: Path, python: Interpreters) -> str | None:
    """None if the example works, else what is wrong with it."""
    environment = os.environ | {"PATH": f"{ROOT}/bin:{ROOT}/.venv/bin:{os.environ['PATH']}", "REPOSITORY": str(ROOT)}
    try:
        if example.language == "python":
            code = program(example)
            (folder / "example.py").write_text(code)
            done = python.of(example.needs, code).run(folder / "example.py", folder, environment, SECONDS)
        else:
            command = {"sh": run_shell, "yaml": run_yaml, "go": run_go, "c": run_c}[example.language](example, folder)
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SECONDS,
            )
    except subprocess.TimeoutExpired:
        return f"still running after {SECONDS} s"
    finally:
        shutil.rmtree(go_folder(folder), ignore_errors=True)
    if done.returncode == MISSING:
        raise MissingError(done.stdout.strip())
    if done.returncode != 0:
        return f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    if example.output is not None and not matches(example.output, done.stdout):
        return f"printed\n{done.stdout}{done.stderr}\nand not\n{example.output}"
    return None


class Interpreters:
    """One for each set of packages, started on first use. None imports stocached: the examples do."""

    def __init__(self, python: Path = ROOT / ".venv/bin/python") -> None:
        self.numpy = Warm(python, ["numpy"])

    @cached_property
    def torch(self) -> Warm:
        return self.numpy.more(["torch"])

    @cached_property
    def torchvision(self) -> Warm:
        return self.torch.more(["torchvision"])

    @cached_property
    def lightning(self) -> Warm:
        return self.torch.more(["lightning.pytorch"])

    def of(self, needs: str | None, code: str = "") -> Warm:
        if needs == "torch" and "torchvision" in code and importlib.util.find_spec("torchvision"):
            return self.torchvision
        return self.numpy if needs is None else self.lightning if needs == "lightning" else self.torch


def run_shell(example: Example, folder: Path) -> list[str]:
    (folder / "example.sh").write_text(program(example))
    return ["bash", "-eu", "example.sh"]


def run_yaml(example: Example, folder: Path) -> list[str]:
    (folder / "config.yaml").write_text(example.code)
    return run_shell(example, folder)


def go_folder(folder: Path) -> Path:
    """A folder inside the module, where imports resolve. The underscore hides it from ./..."""
    return ROOT / "build" / f"_{folder.name}"


def run_go(example: Example, folder: Path) -> list[str]:
    source = go_folder(folder)
    source.mkdir(parents=True)
    (source / "main.go").write_text(program(example))
    return ["env", "CGO_ENABLED=0", os.environ.get("GO", "go"), "-C", str(ROOT), "run", f"./build/{source.name}"]


def run_c(example: Example, folder: Path) -> list[str]:
    (folder / "example.c").write_text(program(example))
    flags = f"-std=c11 -Wall -Wextra -Werror -I{ROOT}/cclient -L{ROOT}/build -Wl,-rpath,{ROOT}/build"
    return ["sh", "-c", f"{os.environ.get('CC', 'cc')} {flags} example.c -o example -lstocached && ./example"]


def matches(expected: str, printed: str) -> bool:
    lines = [
        ".*" if line.strip() == "..." else re.escape(line.rstrip()).replace(r"\.\.\.", "[^\n]*")
        for line in expected.rstrip().splitlines()
    ]
    text = "\n".join(line.rstrip() for line in printed.rstrip().splitlines())
    return re.fullmatch("\n".join(lines), text, re.DOTALL) is not None


def dead_links(document: Path) -> Iterator[str]:
    for line, text in enumerate(document.read_text().splitlines(), 1):
        for target in LINK.findall(text):
            if "://" not in target and not target.startswith("mailto:") and not (document.parent / target).exists():
                yield f"{document.relative_to(ROOT)}:{line}: link to {target}, which does not exist"


def stale_excerpts(document: Path) -> Iterator[str]:
    def lines(text: str) -> str:  # a document has less indentation
        return "\n".join(line.strip() for line in f"\n{text}\n".split("\n"))

    for name, text in EXCERPT.findall(document.read_text()):
        file = ROOT / "examples" / name
        if not file.exists() or lines(text.rstrip()) not in lines(file.read_text()):
            yield f"{document.relative_to(ROOT)}: examples/{name} has no such part:\n{text}"


def untried(document: Path) -> Iterator[str]:
    """Says which blocks of a document no test runs."""
    text = document.read_text()
    name = str(document.relative_to(ROOT))
    fence, above, comment = "", "", False
    for number, line in enumerate(text.splitlines(), 1):
        place = f"{name}:{number}"
        comment = (line.startswith("<!--") and "-->" not in line) or (comment and not above.startswith("-->"))
        if line.lstrip().startswith("```"):
            fence = "" if fence else line.strip()
        if UNTRIED.match(line):
            yield f"{place}: {line.strip()} does not say who runs it: add `run`, or `by FILE`"
        elif elsewhere := ELSEWHERE.match(line):
            file = ROOT / elsewhere[1]
            if not file.exists() or not re.search(rf'["/]{re.escape(name)}"', file.read_text()):
                yield f'{place}: {elsewhere[1]} does not name "{name}"'
        elif comment:
            pass
        elif (fence == "```" and UNFENCED.match(f"    {line}")) or (not fence + above.strip() and UNFENCED.match(line)):
            yield f"{place}: {line.strip()} has no fence with a language: add one, with `run` or `by FILE`"
        above = line
    framed = sum(example.frame is not None for example in examples(document))
    if len(re.findall(r"^(?:<!-- run as| *```\w+ \w+ as \S+)$", text, re.M)) != framed:
        yield f"{document.relative_to(ROOT)}: a comment `run as` does not stand above a block that is run"


def covered(document: Path) -> Iterator[str]:
    """Says of each block of a document who runs it."""
    for number, line in enumerate(document.read_text().splitlines(), 1):
        place = f"{document.relative_to(ROOT)}:{number}"
        if fence := FENCE.match(line):
            _, language, what, file = fence.groups()
            rest = f", with {file}" if file else ""
            if what != "output":
                yield f"{place}: {language}, run by tools/docs.py{'' if what == 'run' else f' where {what} is installed'}{rest}"
        elif block := re.match(r"^ *```(\w+) (by|checked by|of) (\S+)\s*$", line):
            language, what, file = block.groups()
            says = {"by": "run by ", "checked by": "not run; its commands exist: ", "of": "a part of examples/"}
            yield f"{place}: {language}, {says[what]}{file}"


def main(names: list[str]) -> int:
    listing = "--list" in names
    names = [name for name in names if name != "--list"]
    documents = [ROOT / name for name in names if name.endswith(".md")]
    documents += sorted(path for name in names if not name.endswith(".md") for path in (ROOT / name).rglob("*.md"))
    if listing:
        print(*(line for document in documents for line in covered(document)), sep="\n")
        return 0
    passed, failed, skipped = 0, 0, 0
    python = Interpreters()
    for document in documents:
        for wrong_text in (*dead_links(document), *stale_excerpts(document), *untried(document)):
            print(f"FAILED {wrong_text}")
            failed += 1
        for example in examples(document):
            if example.needs is not None and importlib.util.find_spec(example.needs) is None:
                print(f"SKIPPED [1] {example}: {example.needs} is not installed")
                skipped += 1
                continue
            with tempfile.TemporaryDirectory(prefix="example-") as folder:
                try:
                    wrong = run(example, Path(folder), python)
                except MissingError as missing:
                    print(f"SKIPPED [1] {example}: {missing}")
                    skipped += 1
                    continue
            print(f"FAILED {example}: {wrong}" if wrong else f"ok {example}", flush=True)
            failed, passed = failed + bool(wrong), passed + (not wrong)
    python.numpy.close()
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
