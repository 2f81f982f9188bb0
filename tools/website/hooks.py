"""Hooks of mkdocs: a page asks no other host for anything."""

from __future__ import annotations

import os
import re
from typing import Any

# The plugin `offline` has pages load this script, which makes the search work in a page of a folder.
SHIM = "https://unpkg.com/iframe-worker/shim"
# With this mark, the theme asks GitHub for the numbers of stars and forks, from every page.
ASKS = ' data-md-component="source"'
MERMAID = re.compile(r'\s*<script src="[./]*assets/mermaid\.js"></script>')  # 5 MB, for the pages that have diagrams

BOOST = {"docs/guides/": 10, "bench/results/20": 0.1}  # the weight of pages in what the search finds


def on_page_markdown(markdown: str, page: Any, **_: Any) -> None:
    page.meta["search"] = {"boost": next((by for of, by in BOOST.items() if page.file.src_uri.startswith(of)), 1)}


def on_post_page(output: str, page: Any, config: Any) -> str:
    output = output.replace(ASKS, "")
    if '<pre class="mermaid">' not in output:
        output = MERMAID.sub("", output)
    return output.replace(SHIM, os.path.relpath("assets/iframe-worker.js", os.path.dirname(page.file.dest_uri)))


def on_post_template(output: str, template_name: str, config: Any) -> str:
    return MERMAID.sub("", output).replace(ASKS, "").replace(SHIM, "assets/iframe-worker.js")  # 404.html
