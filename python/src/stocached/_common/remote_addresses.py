"""Addresses of data, such as s3://bucket/name."""

from __future__ import annotations

WEB = ("https://", "http://")
"""Of servers that list nothing."""
ADDRESSES = ("s3://", "gs://", *WEB)


def shown(text: str) -> str:
    """A text for people: an address without its user, password and query."""
    scheme, found, rest = text.partition("://")
    host, slash, path = rest.partition("/")
    user, _, bare = host.rpartition("@")
    if not text.startswith(ADDRESSES):  # fsspec has it, and before @ may stand a container
        return f"{scheme}://{bare}{slash}{path}" if found and ":" in user else text
    return f"{scheme}://{bare}{slash}{path.partition('?')[0] if scheme.startswith('http') else path}"
