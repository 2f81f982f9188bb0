"""The source of the image files: the user's folder, a package of pictures from Debian's archive, or
JPEGs made here."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}

DEBIAN_PACKAGE = "openclipart-png"
DEBIAN_FOLDER = "usr/share/openclipart/png"
DEBIAN_MEGABYTES = 131  # to download; unpacked it is a little more

# As in the benchmark of the stocaching library: JPEG files of 512 x 512 pixels.
MADE_PIXELS = 512
MADE_QUALITY = 90


class NoImagesError(Exception):
    """A folder has fewer usable images than the demo needs. The message says how many, and what is
    usable."""


@dataclass(frozen=True)
class Source:
    """A folder of image files and which of them to take."""

    folder: Path
    description: str
    short: str  # the same in a few words, for the chart
    min_side: int = 1  # pixels; smaller images would be enlarged
    # Larger images take seconds to decode. Pillow warns of decompression bombs from 89 million
    # pixels on.
    max_pixels: int = 80_000_000


def choose(folder: str | None, work: Path, count: int) -> Source:
    """The user's folder if given, else Debian's pictures, else `count` JPEGs made below `work`. The
    description says which."""
    if folder is not None:
        if not Path(folder).is_dir():
            raise NoImagesError(f"{folder} is no folder")
        return Source(Path(folder), f"images of your folder {folder}", "images")
    if debian := debian_pictures(work):
        # Clip art comes in every size, from icons to posters. These bounds leave about 3,000
        # pictures of 0.05 to 2 megapixels.
        return Source(
            debian, f"pictures of Debian's {DEBIAN_PACKAGE}", "PNG pictures", min_side=224, max_pixels=2_000_000
        )
    make_jpegs(work / "made", count)
    size = f"{MADE_PIXELS} x {MADE_PIXELS}"
    return Source(
        work / "made",
        f"JPEGs made here ({size}, as in the benchmark of stocaching: no package of real pictures could be downloaded)",
        f"made JPEGs of {size}",
    )


def debian_pictures(work: Path) -> Path | None:
    """The folder of Debian's pictures: installed, or downloaded and unpacked below `work`. None if
    that fails."""
    installed = Path("/") / DEBIAN_FOLDER
    if installed.is_dir():
        return installed
    unpacked = work / DEBIAN_PACKAGE
    if not unpacked.is_dir() and not unpack_debian_package(unpacked):
        return None
    return unpacked / DEBIAN_FOLDER


def unpack_debian_package(target: Path) -> bool:
    """Downloads the package and unpacks it to `target`, which exists only when it is complete."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        say(
            f"downloading {DEBIAN_PACKAGE} ({DEBIAN_MEGABYTES} MB of real pictures) from Debian's archive, once; the demo does not install it"
        )
        if not download(folder):
            say(f"apt-get could not download {DEBIAN_PACKAGE}; to use your own folder: IMAGES=dir")
            return False
        (package,) = Path(folder).glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", str(package), f"{folder}/unpacked"], check=True)
        os.rename(f"{folder}/unpacked", target)
    return True


def download(folder: str) -> bool:
    """Tries once with the present package lists, and as root once more with fresh lists."""
    command = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", DEBIAN_PACKAGE]
    if subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
        return True
    if os.geteuid() != 0:
        return False
    subprocess.run(["apt-get", "-qq", "update"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL).returncode == 0


def make_jpegs(folder: Path, count: int) -> None:
    """Makes `count` JPEGs with the detail of a photograph: noise at several scales, each with its
    own weight. Keeps files that exist."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [k for k in range(count) if not (folder / f"{k:05d}.jpg").exists()]
    if missing:
        say(f"making {len(missing)} JPEGs in {folder}")
    for k in missing:
        noise = np.random.default_rng(k)
        picture = np.zeros((MADE_PIXELS, MADE_PIXELS, 3), np.float32)
        for side, weight in ((4, 0.5), (16, 0.3), (64, 0.15), (256, 0.05)):
            layer = Image.fromarray(noise.integers(0, 256, (side, side, 3), dtype=np.uint8))
            picture += weight * np.asarray(
                layer.resize((MADE_PIXELS, MADE_PIXELS), Image.Resampling.BICUBIC), np.float32
            )
        partial = folder / f"{k:05d}.partial"
        Image.fromarray(picture.astype(np.uint8)).save(partial, "JPEG", quality=MADE_QUALITY)
        partial.rename(folder / f"{k:05d}.jpg")


def pick(source: Source, count: int, seed: int = 0) -> list[Path]:
    """`count` usable images of the source, or all if it has fewer. The same seed and folder give
    the same."""
    files = sorted(found(source.folder))
    random.Random(seed).shuffle(files)
    picked: list[Path] = []
    for file in files:
        if len(picked) == count:
            break
        if usable(file, source):
            picked.append(file)
    if len(picked) < 2:
        raise NoImagesError(
            f"{source.folder} has {len(files)} files that end in {', '.join(sorted(SUFFIXES))}, and {len(picked)} that Pillow opens and that have at most "
            f"{source.max_pixels:,} pixels: at least 2 are needed. Give another folder, as in: make demo IMAGES=~/pictures"
        )
    return picked


def found(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if path.suffix.lower() in SUFFIXES and path.is_file() and not path.is_symlink():
                yield path


def usable(file: Path, source: Source) -> bool:
    """Reads only the file's header."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(file) as image:
                width, height = image.size
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return False
    return min(width, height) >= source.min_side and width * height <= source.max_pixels


def say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)
