"""Properties that are computed once."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:

    class cached_property(functools.cached_property):
        """That of Python 3.12, without the lock that older ones have for all objects of a class: a child that is forked
        while another thread has it would wait for ever."""

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            if instance is None:
                return self
            return vars(instance).setdefault(self.attrname, self.func(instance))


__all__ = ["cached_property"]
