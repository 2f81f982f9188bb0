"""Hooks of mkdocs: a page asks no other host for anything."""

from __future__ import annotations

import os
from typing import Any

# The plugin `offline` has pages load this script, which makes the search work in a page of a folder.
SHIM = "https://unpkg.com/iframe-worker/shim"


def on_post_page(output: str, page: Any, config: Any) -> str:
    return output.replace(SHIM, os.path.relpath("assets/iframe-worker.js", os.path.dirname(page.file.dest_uri)))


def on_post_template(output: str, template_name: str, config: Any) -> str:
    return output.replace(SHIM, "assets/iframe-worker.js")  # 404.html
