"""The raw binding of the library for pictures: all functions, structs and constants of stocached_image.h."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _image_library
from ._binding import names_of

globals().update(names_of("stocached_image.h", "stoc_image_", _image_library.releasing, _image_library.holding))

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
