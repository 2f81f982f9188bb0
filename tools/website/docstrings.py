"""Docstrings as pages show them: lists of arguments, and what comments say of the fields of dataclasses and enums.
What only the package itself calls or gives is not shown."""

from __future__ import annotations

import re
from typing import Any

from griffe import Docstring, Extension

from website.reference import prose

NAMES = re.compile(r"^([\w\\]+(?:, [\w\\]+)*): ", re.MULTILINE)  # names of arguments; as `prose` has them
COMMENT = re.compile(r"(?:^|  )# (.*)$")

LOADERS = {"numpy_loader.Loader": "options", "torch_loader.DataLoader": "torch_loader"}  # who has their arguments

# By class, what other parts of the package call, and no program.
INTERNAL = {
    "_datasets.cache_backed.CacheBacked": ("in_cache", "gathered_tree", "blank"),
    "_datasets.cached_samples.CachedSamples": (
        *("check_repeatable", "encode", "advice", "over", "is_fresh", "gathered_tree", "ahead"),
        *("finish", "peek", "peek_several", "load_record"),
    ),
    "_datasets.served_samples.ServedSamples": ("gathered_tree", "blank"),
    "_image.decoding.Decode": ("keeps_size", "but", "accepts", "decode", "picture", "in_c"),
    "_image.folder.Decoded": ("decoding", "sizes_vary", "files", "pipeline", "encoded", "name"),
    "_image.folder.Folder": ("files", "name"),
    "_image.shards.Shards": ("files", "name"),
    "_image.steps.Compose": ("picture",),
}


def is_internal(path: str) -> bool:
    """Whether this method or property is in the table, or a step of pictures has it for C."""
    owner, _, name = path.removeprefix("stocached.").rpartition(".")
    return name in INTERNAL.get(owner, ()) or (owner.startswith("_image.steps.") and name in ("apply", "in_c"))


class Docstrings(Extension):
    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.is_class:
            for member in [member for member in obj.members.values() if is_internal(member.path)]:
                del obj.members[member.name]
        if obj.is_function:
            for argument in [one.name for one in obj.parameters if one.name.startswith("_")]:
                del obj.parameters[argument]
        if obj.is_attribute and has_fields(obj.parent) and not obj.docstring and (said := comment(obj)):
            obj.docstring = Docstring(said, parent=obj)
        if obj.docstring:
            parts = re.split(r"\n\s*\n", obj.docstring.value)
            obj.docstring.value = "\n\n".join(part if part.startswith("    ") else shown(part) for part in parts)

    def on_package(self, *, pkg: Any, **_: Any) -> None:
        """Gives constructors the parameters that `takes` gives them at run time."""
        for path, module in LOADERS.items():
            loader, arguments = pkg[f"_loader.{path}"], pkg[f"_loader.{module}.Arguments"]
            loader["__init__"].parameters = arguments["__init__"].parameters
            options = pkg["_loader.options.Options"].docstring.value
            loader.docstring.value = f"{loader.docstring.value}\n\n{options}"


def has_fields(parent: Any) -> bool:
    return "dataclass" in parent.labels or (parent.is_class and "Enum" in str(parent.bases))


def shown(part: str) -> str:
    part = prose(part)
    return NAMES.sub(r"- **\1**: ", part) if NAMES.match(part) else part


def comment(field: Any) -> str:
    """What stands behind a field, or in the lines above it."""
    lines = field.lines_collection[field.filepath]
    if found := COMMENT.search(lines[field.endlineno - 1]):
        return found[1]
    said: list[str] = []
    for line in reversed(lines[: field.lineno - 1]):
        if not line.lstrip().startswith("# "):
            break
        said.insert(0, line.lstrip()[2:])
    return " ".join(said)
