"""Finds and loads the C library for pictures, and binds its functions."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from . import _library


def image_library_path() -> Path:
    """The library to load: beside the one of $STOCACHED_LIB_PATH, else the one in the package."""
    path = _library.path.parent / "libstocached_image.so"
    if not path.is_file():
        raise ImportError(f"stocached.image: no library at {path}. Run: {install_again()}")
    return path


def with_codecs() -> str:
    """What to run, so that the library decodes files."""
    packages = "libjpeg-dev libpng-dev libdeflate-dev libwebp-dev"
    return f"on Debian and Ubuntu run: sudo apt-get install -y {packages} && {install_again()}"


def install_again() -> str:
    """The command that compiles this package again, from where it came."""
    if os.environ.get("STOCACHED_LIB_PATH"):
        return "make build"
    import json
    from importlib import metadata

    try:
        origin = json.loads(metadata.distribution("stocached").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        return "make build"
    source = origin.get("url", "--no-cache-dir --no-binary stocached stocached")  # the cache may have this build
    install = "pip install --force-reinstall --no-deps"
    if source.endswith(".whl"):
        return f"make wheel && {install} build/wheel/*.whl"
    if "vcs_info" in origin:
        source = f"{origin['vcs_info']['vcs']}+{source}#subdirectory={origin.get('subdirectory', '.')}"
    if origin.get("dir_info", {}).get("editable"):
        source = f"-e {source}"
    return f"{install} {source}"


path = image_library_path()
releasing = ctypes.CDLL(str(path))  # releases the GIL during a call
holding = ctypes.PyDLL(str(path))  # keeps it: cheaper, for functions of nanoseconds
