"""Files whose folders are their classes, as a server gives them with `labels: folders`."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from .._common.errors import InvalidError
from .._common.numbers import position_of
from .._common.one_line import one_line, printable
from .._common.warning import warn_user
from .._image.decoding import bytes_of
from .._image.folder import classes_in, warn_of_odd_classes
from .._memory.texts import Texts

FOLDERS = "folders"


class LabelledFiles:
    """Each element is a dict: `data`, the bytes of a file, and `label`, the number of its class.

    classes, class_to_idx and targets are those of torchvision's ImageFolder. Can be pickled. Any number of threads and
    forked children."""

    picture_fields = ("data", "label")
    _of_errors = ("root", "class_to_idx")  # the paths and the classes say all

    def __init__(self, paths: Texts, root: str) -> None:
        """root: has a folder for each class. Files in none of them are left out, with a warning. Raises InvalidError if no
        file is left."""
        self.root = root
        self.classes = classes_in(root or ".")
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        start = len(os.path.join(root, ""))
        numbers = np.empty(len(paths), np.int32)
        for k, path in enumerate(paths):
            name, inside, _ = path[start:].lstrip(os.sep).partition(os.sep)  # a//b is a/b
            numbers[k] = self.class_to_idx[name] if inside else -1
        kept, shown = numbers >= 0, printable(root or ".")
        outside = len(paths) - np.count_nonzero(kept)
        if outside == len(paths):
            raise InvalidError(f"{shown} has no file in a folder of a class; {outside} lie beside the folders")
        if outside:
            warn_user(f"{shown}: {outside} files outside folders were left out")
        self.paths = paths.chosen(kept) if outside else paths
        self._numbers = numbers[kept]
        warn_of_odd_classes(root or ".", self.classes, set(np.unique(self._numbers).tolist()))

    @property
    def targets(self) -> list[int]:
        numbers: list[int] = self._numbers.tolist()
        return numbers

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        k = position_of(index, len(self))
        return {"data": bytes_of(self.paths[k]), "label": int(self._numbers[k])}

    def name(self, index: int) -> str:
        """The file, for errors."""
        return printable(self.paths[index % len(self)])

    def picture_files(self) -> Any:
        """Where the bytes lie, for C."""
        from .._image.pipeline import Files  # needs the library for pictures

        return Files.of([*zip(self.paths, self.targets)])

    def __repr__(self) -> str:
        return f"<{len(self):,} files of {len(self.classes):,} classes>"


def labelled(paths: Texts, roots: set[str], text: str, options: dict[str, Any]) -> LabelledFiles:
    """roots: the folders that the patterns of a text begin with. options: of the program. Raises InvalidError."""
    labels = options.pop("labels", FOLDERS)
    if options or labels != FOLDERS:
        what = ", ".join(options) or f"labels={labels!r}"
        hint = "are for files of a format, and these are paths alone" if options else f'is not "{FOLDERS}"'
        raise InvalidError(f"source({one_line(text)}): {what} {hint}")
    check_roots(roots, text)
    return LabelledFiles(paths, roots.pop())


def check_roots(roots: set[str], text: str) -> None:
    """Raises InvalidError if there are several."""
    if len(roots) > 1:
        raise InvalidError(
            f'source({one_line(text)}): labels="{FOLDERS}" numbers the folders of one folder, and the braces name several: '
            f"{', '.join(map(printable, sorted(roots)[:3]))}; join their pipes by +"
        )
