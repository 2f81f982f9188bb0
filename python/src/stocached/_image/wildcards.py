"""Wildcards in the pattern of shards, as the server's source tar matches them: source/tar/testdata/wildcards.json has
cases of both."""

from __future__ import annotations

import glob
import re

from .._common.errors import InvalidError

# A [ with its ]: characters or ranges, after ! or ^ all others.
_CHOICE = r"\[[!^]?(?:[^]\-](?:-[^]\-])?)+\]"


def matches(pattern: str) -> list[str]:
    """The files that match, in byte order, without index files. * and ? and [ ] match within a name; a hidden name needs
    a pattern with its dot."""
    if "**" in pattern:
        raise InvalidError(f"{pattern!r}: ** is not supported; name the folders, as in {{train,val}}/*.tar")
    if "[" in re.sub(_CHOICE, "", pattern):
        raise InvalidError(f"{pattern!r} is no pattern: [ needs a ] with characters or ranges before it")
    found = glob.glob(re.sub(r"\[\^", "[!", pattern))
    return sorted(path for path in found if ".stocached-index" not in path)
