"""The pictures as JPEG files with a folder for each class: the user's own files, or copies that are saved once."""

from __future__ import annotations

import contextlib
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from demo.images import say
from demo.loading import on_white, readable

QUALITY = 90
SUFFIXES = {".jpeg", ".jpg"}


@dataclass(frozen=True)
class Jpegs:
    """JPEG files and their classes."""

    files: Sequence[Path]
    classes: Sequence[str]
    folder: Path  # folder of the copies
    copies: int  # among the files

    @contextlib.contextmanager
    def class_folders(self, out: Path) -> Iterator[Path]:
        """A folder with a folder of links for each class, as stocached.image.Folder wants it. It goes at the end."""
        with tempfile.TemporaryDirectory(dir=out, prefix="classes-") as name:
            for k, (file, label) in enumerate(zip(self.files, self.classes, strict=True)):
                link = Path(name, label, f"{k:06d}.jpg")
                link.parent.mkdir(exist_ok=True)
                link.symlink_to(file.absolute())
            yield Path(name)


def prepare(files: Sequence[Path], source: Path, out: Path, workers: int) -> Jpegs:
    """Saves what is no JPEG as JPEG below `out`, in a folder of this source. Keeps copies that are up to date."""
    # Two sources may have files of one name.
    folder = out / "jpegs" / f"{source.resolve().name}-{zlib.crc32(bytes(source.resolve())):08x}"
    inside = [file.relative_to(source) for file in files]
    jpegs = [
        file if file.suffix.lower() in SUFFIXES else folder / name.parent / f"{name.name}.jpg"
        for file, name in zip(files, inside, strict=True)
    ]
    pairs = [(file, jpeg) for file, jpeg in zip(files, jpegs, strict=True) if file != jpeg]
    old = [pair for pair in pairs if not is_newer(pair[1], pair[0])]
    if old:
        say(f"saving {len(old)} pictures as JPEG (quality {QUALITY}, on white) in {folder}, once")
        with ProcessPoolExecutor(workers) as pool:
            list(pool.map(save, *zip(*old, strict=True), chunksize=8))
    return Jpegs(jpegs, classes_of(inside), folder, len(pairs))


def is_newer(copy: Path, file: Path) -> bool:
    return copy.exists() and copy.stat().st_mtime > file.stat().st_mtime


def save(file: Path, jpeg: Path) -> None:
    jpeg.parent.mkdir(parents=True, exist_ok=True)
    partial = jpeg.with_suffix(".partial")
    with readable(file), Image.open(file) as picture:
        on_white(picture).save(partial, "JPEG", quality=QUALITY)
    partial.rename(jpeg)


def classes_of(inside: Sequence[Path]) -> list[str]:
    """The folder of each file is its class. Without two such folders, two classes are made up."""
    classes = [path.parts[0] if len(path.parts) > 1 else "others" for path in inside]
    return classes if len(set(classes)) > 1 else [("even", "odd")[k % 2] for k in range(len(inside))]
