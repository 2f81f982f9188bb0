"""Checks that documents are easy to read: python3 tools/prose.py README.md docs ...

A sentence has at most MOST words. In README.md and docs/guides the mean of a document is at most
MEAN words. A line of prose has at most COLUMNS columns. Code, tables, headings, links' targets and
HTML do not count. A word has a letter or a digit; `code in backquotes` is one word.

Prints each sentence that is too long with its file and line, then one line a document with --table.
Exit status: 1 if a limit is exceeded, 2 for a file that cannot be read. Needs only the standard
library.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOST = 30
MEAN = 17.0
COLUMNS = 100

_FENCE = re.compile(r"^\s*(```|~~~)")
_COMMENT = re.compile(r"^<!--.*?^-->$", re.M | re.S)  # commands of an example that readers do not see: tools/docs.py
_NO_PROSE = re.compile(r"^\s*(#|\||<|!\[|={3,}|-{3,}\s*$)")
_ITEM = re.compile(r"^\s*([-*+]|\d+[.)])\s+")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_CODE = re.compile(r"`[^`]*`")
_END = re.compile(r"(?<=[.!?:])[\"')\]*_]*\s+(?=[\"'(\[*_`]*[A-Z0-9`])|;\s+")
_SHORT = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|Fig|No)\.")


@dataclass
class Sentence:
    line: int
    text: str

    @property
    def words(self) -> int:
        return sum(any(map(str.isalnum, word)) for word in self.text.split())


def sentences(text: str) -> Iterator[Sentence]:
    """The sentences of the prose of a Markdown document. A semicolon ends a sentence, and so do a
    paragraph and an item of a list."""
    paragraph: list[str] = []
    begin, fenced = 1, False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if _FENCE.match(line):
            fenced, line = not fenced, ""
        prose = not fenced and line.strip() and not _NO_PROSE.match(line) and not line.startswith("    ")
        if (not prose or _ITEM.match(line)) and paragraph:
            yield from _split(" ".join(paragraph), begin)
            paragraph = []
        if prose:
            if not paragraph:
                begin = number
            paragraph.append(_ITEM.sub("", line).strip().lstrip("> "))


def _split(text: str, line: int) -> Iterator[Sentence]:
    text = _LINK.sub(r"\1", _CODE.sub("`code`", text))
    text = _SHORT.sub(lambda match: match[0].replace(".", ""), text)
    for part in _END.split(text):
        if part and any(map(str.isalnum, part)):
            yield Sentence(line, part.strip())


def wide_lines(text: str) -> Iterator[int]:
    """The numbers of the lines of prose that are too wide. A line that is one link or one piece of
    code cannot be broken."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if _FENCE.match(line):
            fenced = not fenced
        elif (
            not fenced
            and len(line) > COLUMNS
            and not _NO_PROSE.match(line)
            and not line.startswith("    ")
            and _breaks(line)
        ):
            yield number


def _breaks(line: str) -> bool:
    return " " in _CODE.sub("code", _LINK.sub("link", line)).strip()[:COLUMNS]


def documents(paths: list[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        yield from sorted(path.rglob("*.md")) if path.is_dir() else [path]


def limits_mean(path: Path) -> bool:
    return path.name == "README.md" or "guides" in path.parts


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks that documents are easy to read.")
    parser.add_argument("paths", nargs="+", help="Markdown files, and folders of them")
    parser.add_argument("--table", action="store_true", help="print words, mean and longest sentence of each document")
    arguments = parser.parse_args()
    failed = 0
    for path in documents(arguments.paths):
        try:
            text = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), path.read_text())
        except OSError as error:
            print(f"{path}: {error.strerror}", file=sys.stderr)
            return 2
        found = list(sentences(text))
        mean = sum(sentence.words for sentence in found) / max(len(found), 1)
        complaints = [
            f"{path}:{each.line}: a sentence of {each.words} words, more than {MOST}: {each.text}"
            for each in found
            if each.words > MOST
        ]
        complaints += [f"{path}:{number}: a line of more than {COLUMNS} columns" for number in wide_lines(text)]
        if limits_mean(path) and mean > MEAN:
            complaints.append(f"{path}: sentences have {mean:.1f} words on average, more than {MEAN:g}")
        failed += len(complaints)
        print(*complaints, sep="\n", end="\n" if complaints else "")
        if arguments.table:
            longest = max((sentence.words for sentence in found), default=0)
            print(f"{path}: {sum(sentence.words for sentence in found)} words, mean {mean:.1f}, longest {longest}")
    print(f"prose: {failed} too long" if failed else "prose: all within the limits")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
