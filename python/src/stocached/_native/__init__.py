"""The raw binding: all functions, structs and constants of stocached.h, and nothing else.

`_header` is generated from the header; `_library` finds and loads the library. Imports no other
package."""

from __future__ import annotations

import ctypes

from . import _header
from ._header import *  # noqa: F403  all names of the header
from ._library import IoVec as IoVec
from ._library import bind, holding, rebind, releasing

_bind = bind  # other modules bind functions of the C library

NO_LENGTH = 2**64 - 1  # what stoc_lengths writes for a miss

# The same functions with the other handle: for small samples with the GIL held, to wait without it.
get_small = rebind(holding, _header.get)
lengths_held = rebind(holding, _header.lengths)
queue_look = rebind(holding, _header.queue_wait)
queue_take_wait = rebind(releasing, _header.queue_take)

# int munmap(void *address, size_t length);   of the C library, for payload maps that outlived their
# handle
munmap = bind(ctypes.PyDLL(None), "munmap", ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
