"""The golden segment, which Go, C and Python all read: docs/spec/segment.md in bytes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from stocached import Cache, State

DATA = Path(__file__).resolve().parents[3] / "shm" / "testdata"


@pytest.fixture
def golden(folder):
    (folder / "golden").write_bytes(gzip.decompress((DATA / "golden.seg.gz").read_bytes()))
    return folder / "golden", json.loads((DATA / "golden.json").read_text())


def test_golden_segment(golden):
    path, want = golden
    cache = Cache.attach(path, fingerprint=want["fingerprint"], read_only=True)
    assert (cache.samples, cache.slots, cache.sample_bytes) == (want["samples"], want["slots"], want["sample_bytes"])
    assert cache.uuid.hex() == want["uuid"]
    assert cache.segment_bytes == want["segment_bytes"]
    assert [(field.name, field.offset, field.bytes) for field in cache.fields] == [
        (f["name"], f["offset"], f["bytes"]) for f in want["fields"]
    ]
    assert [list(field.shape) for field in cache.fields] == [f["dims"] for f in want["fields"]]
    states = [State[record["state"]] for record in want["index"]]
    assert cache.states().tolist() == states
    for index, record in enumerate(want["index"]):
        if states[index] is not State.READY:
            assert cache.get(index) is None
            continue
        raw = bytes.fromhex(record["bytes"])
        for value in (cache.get(index), cache.get(index, copy=True)):
            for field in cache.fields:
                assert value[field.name].tobytes() == raw[field.offset : field.offset + field.bytes]
    assert cache.verify() == []
    assert not cache.stats().clients_live
