"""Transforms for the tests of derived fingerprints: `pairs` that must differ, `twins` that must
not, and `without_digest` ones that have no fingerprint.

Run as a program, it prints the digest of each. They are equal in every process.
"""

from __future__ import annotations

import collections
import functools
import logging
import math
import operator
import random
import re
import sys
import threading
from enum import Enum
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from stocached._checks.identity import Identity

logger = logging.getLogger(__name__)
SCALE, MEANS = 2, {"a": [1.0, 2.0]}
lock = threading.Lock()


class Mode(Enum):
    NEAREST = 0
    LINEAR = 1


class Scale:
    """Uses a helper, a constant of its class, and a part of its attributes."""

    offset = 1
    unused = 5

    def __init__(self, by=2, **more):
        self.by, self.calls = by, 0
        self.__dict__.update(more)

    def __call__(self, x):
        logger.debug("scaling")
        return self._scaled(x) + self.offset

    def _scaled(self, x):
        return x * self.by

    def __repr__(self):
        return f"<Scale {id(self)}>"


class Shifted(Scale):
    offset = 2


class Inverted(Scale):
    def _scaled(self, x):
        return x / self.by


class Again(Scale):
    """Scale with other methods that no code calls, and a comment."""

    def _scaled(self, x):
        # the same
        return x * self.by

    def describe(self):
        return "again"


class Slots:
    __slots__ = ("size",)

    def __init__(self, size):
        self.size = size

    def __call__(self, x):
        return x[: self.size]


class Cyclic:
    def __init__(self, size):
        self.me, self.size = self, size

    def __call__(self, x):
        return self.me.size


def helper(x):
    return deeper(x) + 1


def deeper(x):
    return x * SCALE


def uses_helper(x):
    return helper(x)


def even(n):
    return n == 0 or odd(n - 1)


def odd(n):
    return n != 0 and even(n - 1)


def add(x, y=1, *, z=2):
    return x + y + z


def adder(n):
    return lambda x: x + n


def rescaled(scale):
    """The function `uses_helper` of a module with another SCALE."""
    space = {"__name__": "elsewhere", "SCALE": scale}
    exec(
        "def deeper(x):\n    return x * SCALE\ndef helper(x):\n    return deeper(x) + 1\ndef uses_helper(x):\n    return helper(x)\n",
        space,
    )
    return space["uses_helper"]


def compiled(text):
    space = {"__name__": "elsewhere"}
    exec(text, space)
    return space["f"]


def hot(function):
    """Calls a function until the interpreter has specialised its bytecode."""
    for k in range(5000):
        function(k)
    return function


pairs = {
    "a constant that a docstring has too": (
        compiled("def f(x):\n    'a'\n    return x + 'a'"),
        compiled("def f(x):\n    'a'\n    return x + 'b'"),
    ),
    "constants in another order": (
        compiled("def f(x):\n    return [x + 'a', x + 'b']"),
        compiled("def f(x):\n    return [x + 'b', x + 'a']"),
    ),
    "a constant twice": (
        compiled("def f(x):\n    return [x + 'a', x + 'b', x + 'a']"),
        compiled("def f(x):\n    return [x + 'a', x + 'b', x + 'b']"),
    ),
    "arguments": (Scale(2), Scale(3)),
    "types": (Scale(2), Shifted(2)),
    "a method": (Scale(2), Inverted(2)),
    "constant of a lambda": (lambda x: x + 1, lambda x: x + 2),
    "operation of a lambda": (lambda x: x + 1, lambda x: x - 1),
    "attribute of a lambda": (lambda x: x.real, lambda x: x.imag),
    "closures": (adder(1), adder(2)),
    "defaults": (compiled("def f(x, y=1):\n    return x + y"), compiled("def f(x, y=2):\n    return x + y")),
    "default of a lambda": (lambda x, y=1: x + y, lambda x, y=2: x + y),
    "keyword defaults": (lambda x, *, y=1: x + y, lambda x, *, y=2: x + y),
    "a global that a helper's helper names": (rescaled(1), rescaled(2)),
    "partial arguments": (functools.partial(add, y=1), functools.partial(add, y=2)),
    "partial functions": (functools.partial(add, y=1), functools.partial(operator.add, 1)),
    "order of a list": ([Scale(2), Scale(3)], [Scale(3), Scale(2)]),
    "functions of a library": (np.sqrt, np.square),
    "functions of the standard library": (math.floor, math.ceil),
    "members": (Scale(Mode.NEAREST), Scale(Mode.LINEAR)),
    "arrays": (Scale(np.zeros(3)), Scale(np.array([0, 0, 1.0]))),
    "dtypes": (Scale(np.zeros(3)), Scale(np.zeros(3, np.float32))),
    "numbers of another type": (Scale(1), Scale(1.0)),
    "true and one": (Scale(True), Scale(1)),
    "patterns": (Scale(re.compile("a")), Scale(re.compile("a", re.I))),
    "slots": (Slots(1), Slots(2)),
    "attributes that others may use": (Scale(2), Scale(2, label="a")),
    "bound methods": (Scale(2)._scaled, Scale(3)._scaled),
    "cycles": (Cyclic(1), Cyclic(2)),
    "dict arguments": (Scale({"a": 1, "b": 2}), Scale({"a": 2, "b": 1})),
    "nested functions": (
        compiled("f = lambda xs: [x + 1 for x in xs]"),
        compiled("f = lambda xs: [x + 2 for x in xs]"),
    ),
    "classes that are used": (
        compiled("class A:\n    def go(self, x):\n        return x\nf = lambda x: A().go(x)"),
        compiled("class A:\n    def go(self, x):\n        return -x\nf = lambda x: A().go(x)"),
    ),
    "a decorator": (functools.lru_cache(None)(lambda x: x), functools.lru_cache(None)(lambda x: -x)),
    "a default factory": (Scale(collections.defaultdict(int)), Scale(collections.defaultdict(list))),
    "an own list": (Scale(type("Own", (list,), {})([1])), Scale(type("Own", (list,), {})([2]))),
    "a dict in another order": (Scale({"a": 1, "b": 2}), Scale({"b": 2, "a": 1})),
    "an OrderedDict in another order": (
        Scale(collections.OrderedDict(a=1, b=2)),
        Scale(collections.OrderedDict(b=2, a=1)),
    ),
    "namespaces": (Scale(SimpleNamespace(size=1)), Scale(SimpleNamespace(size=2))),
}
twins = {
    "arguments in another order": (Scale(a=1, b=2), Scale(b=2, a=1)),
    "sets in another order": (Scale({"a", "b", "c"}), Scale({"c", "b", "a"})),
    "keywords in another order": (functools.partial(add, y=1, z=2), functools.partial(add, z=2, y=1)),
    "another line": (adder(3), adder(3)),
    "the same text": (lambda x: x + 1, lambda x: x + 1),
    "docstrings and comments": (
        compiled("def f(x):\n    return x"),
        compiled("def f(x):\n    'what it does'\n\n    # and why\n    return x"),
    ),
    "a docstring beside constants": (
        compiled("def f(x):\n    return x + 1, 'a', 2.5"),
        compiled("def f(x):\n    'what it does'\n    return x + 1, 'a', 2.5"),
    ),
    "a docstring beside constants and a function": (
        compiled("def f(x):\n    g = lambda y: (y, 'b')\n    return g(x) + (x, 'a')"),
        compiled("def f(x):\n    'b'\n    g = lambda y: (y, 'b')\n    return g(x) + (x, 'a')"),
    ),
    "calls before": (compiled("def f(x):\n    return x + 1"), hot(compiled("def f(x):\n    return x + 1"))),
    "the state of a generator": (Scale(random.Random(1)), Scale(random.Random(2))),
    "locks and loggers": (Scale(threading.Lock()), Scale(threading.Lock())),
    "recursion": (even, even),
}
others = {
    "Again": Again(2),
    "uses_helper": uses_helper,
    "means": lambda x: x - MEANS["a"],
    "locked": lambda x: lock.locked(),
    "path": Scale(Path("x")),
}


def without_digest():
    """Transforms whose fingerprint cannot be derived."""
    return {
        "an open file": Scale(sys.stdout),
        "a generator": Scale(k for k in range(3)),
        "a mapped object": Scale(memoryview(b"x")),
        "too many objects": Scale([Mode.LINEAR] * 30_000),
    }


def digest(transform):
    identity = Identity()
    made = identity.of(transform)
    return b"".join([made, *sorted(body for body, _ in identity.functions().values())]).hex()


if __name__ == "__main__":
    for table in (pairs, twins):
        for name, both in table.items():
            print(name, *map(digest, both))
    for name, one in others.items():
        print(name, digest(one))
