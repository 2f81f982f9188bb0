"""Reads timelines strictly."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest


def read(path: Path) -> dict:
    """The content of a file, checked against docs/spec/trace.md and the requirements of Perfetto's
    importer."""
    packed = path.read_bytes()
    text = (gzip.decompress(packed) if path.suffix == ".gz" else packed).decode()
    file = json.loads(text, parse_constant=pytest.fail)
    assert text.startswith('{"displayTimeUnit"')
    assert list(file) == ["displayTimeUnit", "otherData", "traceEvents"]  # the program fails at an unknown member
    assert file["displayTimeUnit"] == "ms"
    about = file["otherData"]
    assert (about["format"], about["version"]) == ("stocached trace", 1)
    pids = {rank["pid"] for rank in about["ranks"]}
    assert len(pids) == len(about["ranks"])
    assert min(pids) >= 1
    threads: dict[int, str] = {}
    open_spans: dict[int, list[int]] = {}
    spans = 0
    for event in file["traceEvents"]:
        assert event["pid"] in pids
        if event["ph"] == "M":
            assert spans == 0
            if event["name"] == "thread_name":
                assert event["tid"] not in threads
                assert event["tid"] // 10000 == event["pid"]
                assert event["tid"] % 10000 > 0
                threads[event["tid"]] = event["args"]["name"]
            else:
                assert event["name"] in ("process_name", "process_sort_index", "thread_sort_index")
            continue
        assert event["ph"] == "X"
        assert event["tid"] in threads
        assert event["name"]
        assert list(event) == ["ph", "pid", "tid", "ts", "dur", "name", "args"]
        spans += 1
        # like Perfetto: digits after the point are cut off
        start, length = int(event["ts"] * 1000), int(event["dur"] * 1000)
        assert start == event["ts"] * 1000
        assert length == event["dur"] * 1000
        assert start % 125 == length % 125 == 0
        assert length >= 0
        around = open_spans.setdefault(event["tid"], [])
        while around and around[-1] <= start:
            around.pop()
        assert not around or start + length <= around[-1], "spans of a track that overlap are dropped"
        around.append(start + length)
        assert set(event["args"]) <= {"epoch", "batch", "index", "samples", "hits", "misses", "bytes"}
        assert all(isinstance(value, int) and value >= 0 for value in event["args"].values())
    assert spans == sum(rank["events"] for rank in about["ranks"])
    return file


def spans_of(file: dict, track: str) -> list[dict]:
    tids = {
        event["tid"]
        for event in file["traceEvents"]
        if event["name"] == "thread_name" and event["args"]["name"] == track
    }
    return [event for event in file["traceEvents"] if event["ph"] == "X" and event["tid"] in tids]
