"""Stages the documents: those that the site shows, with links that hold on it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

SHOWN = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "bench/results", "examples/README.md")
SOURCE = "https://github.com/stocached/stocached/blob/main/"
FENCE = re.compile(r"^(\s*```[a-z]+) .*$")
REST = re.compile(r"^<!-- run as\n(?:(?!-->).*\n)*-->\n", re.M)  # a block shows a part of the program: docs.py
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")


def stage(pages: Path, diagrams: bool = True) -> list[Path]:
    """Copies the documents and their images. Returns the documents, as paths in the repository. Without `diagrams`,
    pages show what mermaid would draw as text."""
    tracked = subprocess.run(("git", "ls-files", *SHOWN), capture_output=True, text=True, check=True).stdout.split("\n")
    shown = {Path(name) for name in tracked if name.endswith((".md", ".png", ".svg"))}
    documents = []
    for path in sorted(shown):
        target = pages / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            target.write_text(on_site(path.read_text(), path.parent, shown, diagrams))
            documents.append(path)
        else:
            shutil.copyfile(path, target)
    return documents


def on_site(text: str, folder: Path, shown: set[Path], diagrams: bool = True) -> str:
    """A document as the site shows it. Links to files that it does not show lead to the repository. Fences lose what
    they say to our tests, and the rest of their programs."""
    lines, code = [], False
    for line in REST.sub("", text).split("\n"):
        if line.lstrip().startswith("```"):
            code = not code
            line = FENCE.sub(r"\1", line)
            line = line if diagrams else line.replace("```mermaid", "```text")
        elif not code:
            line = LINK.sub(lambda m: m[1] + target(m[2], folder, shown) + m[3], line)
        lines.append(line)
    return "\n".join(lines)


def target(link: str, folder: Path, shown: set[Path]) -> str:
    if re.match(r"[a-z]+:", link):
        return link
    root = Path.cwd()
    path = (root / folder / link).resolve().relative_to(root)
    if not path.exists():
        sys.exit(f"stocached: a document in {folder} links to {link}, which does not exist")
    return link if path in shown else SOURCE + str(path)


def list_folders(pages: Path) -> None:
    """Gives each folder of pages a page that lists what it holds, so that the address of a folder shows something."""
    for folder in sorted({parent for page in pages.rglob("*.md") for parent in page.relative_to(pages).parents}):
        if not any((pages / folder / name).exists() for name in ("index.md", "README.md")):
            held = sorted(
                path for path in (pages / folder).iterdir() if path.suffix == ".md" or any(path.rglob("*.md"))
            )
            rows = [f"- [{title(path)}]({address(path)})" for path in held]
            (pages / folder / "index.md").write_text(f"# {folder.name.capitalize()}\n\n" + "\n".join(rows) + "\n")


def title(path: Path) -> str:
    """The heading of a page, or the name of a folder."""
    return path.name.capitalize() if path.is_dir() else path.read_text().partition("\n")[0].lstrip("# ")


def address(path: Path) -> str:
    """Where a page of the same folder finds a page, or the first page of a folder."""
    if path.is_file():
        return path.name
    return f"{path.name}/{'README' if (path / 'README.md').exists() else 'index'}.md"
