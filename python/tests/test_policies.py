"""Policies decide as docs/spec/policies.md says."""

from __future__ import annotations

from pathlib import Path

import policies_document as document

VECTORS = Path(__file__).parents[2] / "policy/testdata/policies.txt"


def test_the_vectors_are_what_the_document_says():
    def sample(index: int) -> document.Sample:
        return document.Sample(index, 100 + 7919 * index % 900, next=lambda: turn(index))

    def turn(index: int) -> int:
        n = (37 * index + cache.hits + cache.loads) % 50
        return document.UNREAD if n == 49 else n

    caches: dict[str, document.Cache] = {}
    lines = 0
    for line in VECTORS.read_text().splitlines():
        if line.startswith("#"):
            continue
        name, *rest = line.split()
        if name == "generator":
            seed, n, value = map(int, rest)
            assert document.random(seed, n) == value
            continue
        cache = caches.setdefault(name, document.Cache(name, 16, 42, sample))
        slot, victim, hit = cache.read(int(rest[0]), int(rest[1]))
        s = cache.samples[int(rest[0])]
        reference = s.reference if slot >= 0 else 0
        assert rest[2:] == [
            str(x) for x in (slot, victim, str(hit).lower(), s.cost, cache.spread, cache.hand, reference)
        ], line
        lines += 1
    assert list(caches) == list(document.LOOKS)
    assert lines == 600 * 7
