"""Addresses of data, such as s3://bucket/name."""

from __future__ import annotations

WEB = ("https://", "http://")
"""Of servers that list nothing."""
ADDRESSES = ("s3://", "gs://", *WEB)


def shown(text: str) -> str:
    """A text for people: an address without its user, password and query."""
    if not text.startswith(ADDRESSES):
        return text
    scheme, rest = text.split("://", 1)
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path.partition('?')[0] if scheme.startswith('http') else path}"
