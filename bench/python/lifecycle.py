"""Measures the creation of a cache of 1 GiB for images, and the attachment to one of very many
samples."""

from __future__ import annotations

from measure import Bench, Subject

import stocached


def measure(bench: Bench, folder: str, huge: str) -> None:
    caches: list[stocached.Cache] = []

    def create() -> None:
        caches.append(
            stocached.Cache.create(
                "create", samples=2**30 // 150_528, shape=(3, 224, 224), dtype="uint8", size="1GiB", dir=folder
            )
        )

    def remove() -> None:
        caches[0].unlink()
        caches.pop().close()

    bench.alternate("python/create", "", Subject("Cache.create", 1, create, clean=remove))

    def attach() -> None:
        caches.append(stocached.Cache.attach(huge))
        if caches[0].get(0) is not None:  # work that is left to the first use counts too
            raise RuntimeError("sample 0 of an empty cache is there")

    bench.alternate("python/attach", "", Subject("Cache.attach", 1, attach, clean=lambda: caches.pop().close()))
