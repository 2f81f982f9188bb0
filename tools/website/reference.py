"""Reference pages from the code: Python, C, Go, commands and configuration."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

MODULES = (
    "stocached",
    "stocached.torch",
    "stocached.image",
    "stocached.streams",
    "stocached.prepare",
    "stocached.lightning",
)
HEADERS = ("cclient/stocached.h", "cimage/stocached_image.h")
PACKAGES = ("client", "loader", "order", "cache", "shm", "policy", "source", "tier", "control", "server")


def write(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, text in (
        ("python", python()),
        ("c", c(*map(Path, HEADERS))),
        ("go", go()),
        ("commands", commands()),
        ("configuration", configuration()),
    ):
        (folder / f"{name}.md").write_text(text)


def fenced(text: str, language: str = "text") -> str:
    return f"```{language}\n{text.strip()}\n```\n"


def python() -> str:
    pages = ["# Python\n\nThe [guide](../docs/guides/python.md) shows how to use them.\n"]
    return "\n".join(pages + [f"::: {module}\n    options: {{heading_level: 2}}\n" for module in MODULES])


# Text up to a blank line that stands in no comment and in no braces.
BLOCK = re.compile(r"(?:/\*.*?\*/|\{[^{}]*\}|.)+?(?=\n\s*\n|\Z)", re.DOTALL)
COMMENT = re.compile(r"\s*/\*(.*?)\*/\s*", re.DOTALL)
GUARD = re.compile(r"#ifdef __cplusplus\n.*?#endif\n|^#(?:ifndef|define) \w+_H$|#endif\n\Z", re.DOTALL | re.MULTILINE)
DECLARED = re.compile(r"^(?:enum|struct|typedef struct) (\w+)|\b(stoc_\w+)\(|^#define (\w+)", re.MULTILINE)


def c(*headers: Path) -> str:
    """What each header says first, a heading for each of its parts, and below that one for each block of code."""
    text = ["# C\n\nThe [guide](../docs/guides/c.md) shows how to use it.\n"]
    for header in headers:
        text.append(f"## {header.name}\n")
        for block in BLOCK.findall(GUARD.sub("", header.read_text())):
            comment = COMMENT.match(block)
            code = block[comment.end() :] if comment else block
            said = re.sub(r"\n *\* ?", "\n", comment[1]).strip() if comment else ""
            if part := re.match(r"-+ (.*)", said):
                text.append(f"### {part[1]}\n")
                said = said[part.end() :]
            if names := [next(filter(None, found)) for found in DECLARED.findall(COMMENT.sub("", code))]:
                text.append(f"#### {names[0]}\n")
            # A list needs an empty line before it.
            text.append(re.sub(r"^(?!- )(\S.*)\n(?=- )", r"\1\n\n", prose(said), flags=re.MULTILINE) + "\n")
            text.append(fenced(code, "c") if code.strip() else "")
    return "\n".join(text)


def prose(text: str) -> str:
    """Markdown that shows a text as it is, with its `code` as code."""
    return re.sub(r"(`[^`]*`)|([*_<])", lambda mark: mark[1] or {"<": "&lt;"}.get(mark[2], "\\" + mark[2]), text)


def go() -> str:
    text = [
        "# Go\n\nThe [guide](../docs/guides/go.md) shows how to use them. Import paths begin with\n"
        "`github.com/stocached/stocached/`.\n"
    ]
    for package in PACKAGES:
        told = subprocess.run(("go", "doc", "-all", f"./{package}"), capture_output=True, text=True, check=True).stdout
        text.append(f"## {package}\n\n{fenced(told)}")
    return "\n".join(text)


def commands() -> str:
    text = ["# Commands\n\nThe [guide](../docs/guides/command-line.md) shows the first ones.\n"]

    def tell(*names: str) -> None:
        told = subprocess.run(("bin/stocached", *names, "--help"), capture_output=True, text=True, check=True).stdout
        told = told.replace(f"/dev/shm/stocached-{os.getuid()}", "/dev/shm/stocached-UID")  # as in the manual pages
        text.append(f"## {' '.join(('stocached', *names))}\n\n{fenced(told)}")
        listed = re.search(r"^(?:Available )?Commands:\n((?:  .*\n)+)", told, re.MULTILINE)
        # Further lines of a text have more spaces.
        for name in re.findall(r"^  (\w\S*)", listed[1] if listed else "", re.MULTILINE):
            if name not in ("help", "completion"):
                tell(*names, name)

    tell()
    return "\n".join(text)


def configuration() -> str:
    example = Path("config.example.yaml").read_text()
    return (
        "# Configuration\n\nAll keys of a server, as in `config.example.yaml`. The comments say the defaults. Values are\n"
        f"defaults or examples. The [guide](../docs/guides/server.md) explains them.\n\n{fenced(example, 'yaml')}"
    )
