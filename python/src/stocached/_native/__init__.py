"""The raw binding: all functions, structs and constants of stocached.h, and nothing else.

`_binding` makes them of the header; `_library` finds and loads the library. Imports no other
package."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from ._binding import names_of
from ._library import IoVec as IoVec
from ._library import bind, holding, rebind, releasing

_names = names_of("stocached.h", "stoc_", releasing, holding)
globals().update(_names)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


_bind = bind  # other modules bind functions of the C library

NO_LENGTH = 2**64 - 1  # what stoc_lengths writes for a miss

# The same functions with the other handle: for small samples with the GIL held, to wait without it.
get_small = rebind(holding, _names["get"])
lengths_held = rebind(holding, _names["lengths"])
queue_look = rebind(holding, _names["queue_wait"])
queue_take_wait = rebind(releasing, _names["queue_take"])

# int munmap(void *address, size_t length);   of the C library, for payload maps that outlived their
# handle
munmap = bind(ctypes.PyDLL(None), "munmap", ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
