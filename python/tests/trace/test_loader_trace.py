"""Timelines of real loaders contain every step, wait, gather and load, for each way that a loader
works."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from helpers import python
from trace_file import read, spans_of

from stocached import Loader
from stocached._datasets.cached_samples import CachedSamples
from stocached._trace import LOOP

N, BATCH, EPOCHS = 40, 8, 2


class Pictures:
    seconds = 0.001

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> np.ndarray:
        if not 0 <= index < N:
            raise IndexError(index)
        time.sleep(self.seconds)
        return np.full(16, index, np.int32)


class Stream:
    def __iter__(self):
        return iter(np.arange(N))


def waits_of(path: Path) -> list[Any]:
    """The waits for a batch."""
    return [span for span in spans_of(read(path), LOOP) if span["name"] == "wait" and "batch" in span["args"]]


def plus_one(sample: np.ndarray) -> np.ndarray:
    return sample + 1


WAYS = {
    "in the loop": dict(num_workers=0),
    "workers": dict(num_workers=2),
    "threads": dict(num_workers=2, worker="thread"),
    "workers that stay": dict(num_workers=2, persistent_workers=True),
    "cache": dict(num_workers=0, size="8MiB"),
    "cache and workers": dict(num_workers=2, size="8MiB"),
    "augmented": dict(num_workers=2, size="8MiB", augment=plus_one),
    "own batches": dict(num_workers=2, collate_fn=np.stack),
    "own batches in the loop": dict(num_workers=0, collate_fn=np.stack),
    "as they come": dict(num_workers=2, in_order=False),
    "single samples": dict(num_workers=2, batch_size=None),
}


@pytest.mark.parametrize("way", WAYS)
def test_everything_is_recorded(tmp_path, way):
    path = tmp_path / "run.json"
    arguments = dict(batch_size=BATCH, shuffle=True, seed=3) | WAYS[way]
    begin = time.monotonic_ns()
    pictures = Pictures()
    if arguments["num_workers"]:
        pictures.seconds = 0.01  # one worker does not finish all of them before the other has started
    loader = Loader(pictures, trace=path, **arguments)
    batches = 0
    for _ in range(EPOCHS):
        for _ in loader:
            batches += 1
            time.sleep(0.001)
    stats = loader.stats()
    assert not path.exists()
    loader.close()
    end = time.monotonic_ns()
    file = read(path)
    (about,) = file["otherData"]["ranks"]
    assert about["settings"]["num_workers"] == arguments["num_workers"]
    assert about["settings"]["dataset"] == "test_loader_trace.Pictures"
    loop = spans_of(file, LOOP)
    starts = [span for span in loop if span["name"] == "wait" and "batch" not in span["args"]]
    assert [span["args"] for span in starts] == [{"epoch": epoch} for epoch in range(EPOCHS)]
    waits = waits_of(path)
    steps = [span for span in loop if span["name"] == "step"]
    for spans in (waits, steps):
        assert [(span["args"]["epoch"], span["args"]["batch"]) for span in spans] == [
            (epoch, batch) for epoch in range(EPOCHS) for batch in range(batches // EPOCHS)
        ]
    assert all(span["dur"] >= 1000 for span in steps)
    assert sum(span["args"]["samples"] for span in waits) == stats.samples == EPOCHS * N
    assert sum(span["args"]["hits"] for span in waits) == stats.hits
    assert sum(span["dur"] for span in waits) <= stats.wait_seconds * 1e6 + 1
    assert sum(span["dur"] for span in steps) == pytest.approx(stats.step_seconds * 1e6, abs=batches)
    spans = [event for event in file["traceEvents"] if event["ph"] == "X"]
    origin = about["clock"]["monotonic_ns"]
    assert all(
        begin <= origin + span["ts"] * 1000 + 200 and origin + (span["ts"] + span["dur"]) * 1000 <= end + 200
        for span in spans
    )
    spans = [span for span in spans if span["args"]["epoch"] < EPOCHS]  # the loader may have begun the next epoch ahead
    loads = [span for span in spans if span["name"] == "load"]
    assert loads
    if "collate_fn" not in arguments and arguments["batch_size"] and (arguments["num_workers"] or "size" in arguments):
        assert len(loads) == stats.misses == (N if "size" in arguments else EPOCHS * N)
        assert {span["args"]["index"] for span in loads} == set(range(N))
    if "augment" in arguments:
        augments = [span["args"]["index"] for span in spans if span["name"] == "augment"]
        assert sorted(augments) == sorted(EPOCHS * list(range(N)))
        copies = [span["args"]["index"] for span in spans if span["name"] == "gather"]
        assert sorted(copies) == list(range(N))
    if "size" in arguments and "augment" not in arguments:
        gathers = [span for span in spans if span["name"] == "gather"]
        # a gather of one sample: the cache had it in the end
        copied = sum(span["args"].get("hits", 1) for span in gathers)
        assert copied == stats.hits == N
    if arguments["num_workers"]:
        assert not any(span["name"] == "load" for span in loop)
        assert {event["args"]["name"] for event in file["traceEvents"] if event["name"] == "thread_name"} >= {
            "worker 0",
            "worker 1",
        }


AUGMENTED = {
    "sample by sample": dict(num_workers=2, size="8MiB"),
    "threads": dict(num_workers=2, worker="thread", size="8MiB"),
    "whole batches": dict(num_workers=2, size="8MiB", collate_fn=np.stack),
    "in the loop": dict(num_workers=0, size="8MiB"),
}
MORE_AUGMENTED = {
    "with a generator": dict(num_workers=2, size="8MiB", augment=lambda sample, generator: slow(sample)),
    "without a cache": dict(num_workers=2),
}
AUGMENT, LOAD = 4000, 1000  # us, at least


def slow(sample: np.ndarray) -> np.ndarray:
    time.sleep(AUGMENT / 1e6)
    return sample + 1


@pytest.mark.parametrize(
    ("way", "of"), [*((way, "loader") for way in AUGMENTED | MORE_AUGMENTED), *((way, "dataset") for way in AUGMENTED)]
)
def test_the_random_part_is_apart_from_loads(tmp_path, way, of):
    """Its span follows the rest of the sample, or of the whole batch, on the same track, and lasts
    as long as the function took, without waits for a processor, which may lie between."""
    arguments = dict(batch_size=BATCH, augment=slow) | (AUGMENTED | MORE_AUGMENTED)[way]
    hits = N if "size" in arguments else 0
    dataset: Any = Pictures()
    if of == "dataset":
        dataset = CachedSamples(dataset, size=arguments.pop("size"), augment=arguments.pop("augment"))
    loader = Loader(dataset, trace=tmp_path / "run.json", **arguments)
    for _ in range(EPOCHS):
        list(loader)
    loader.close()
    file = read(tmp_path / "run.json")
    tracks = [LOOP] if arguments["num_workers"] == 0 else ["worker 0", "worker 1"]
    least = {"load": LOAD, "augment": AUGMENT, "gather": 0, "delay": 0}
    seen = dict.fromkeys(least, 0)
    took: dict[str, list[float]] = {name: [] for name in least}
    for track in tracks:
        before: dict[str, Any] = {}
        for span in spans_of(file, track):
            if span["name"] not in seen:
                continue
            samples = 1 if "index" in span["args"] else BATCH
            seen[span["name"]] += samples
            took[span["name"]].append(span["dur"] / samples)
            if span["name"] == "augment":
                assert before["name"] != "augment"
                assert before["ts"] + before["dur"] == span["ts"]
                assert before["args"] == span["args"]
            before = span
    assert seen == {"load": EPOCHS * N - hits, "gather": hits, "augment": EPOCHS * N, "delay": seen["delay"]}
    for name in ("load", "augment"):  # delays are as of 50 us ago, and sometimes the kernel says milliseconds too many
        assert median(took[name]) >= least[name] - 50


def test_what_is_random_about_whole_batches_is_recorded(tmp_path):
    def augment(batch: np.ndarray) -> np.ndarray:
        time.sleep(AUGMENT / 1e6)
        return batch

    loader = Loader(Pictures(), batch_size=BATCH, batch_augment=augment, trace=tmp_path / "run.json")
    list(loader)
    loader.close()
    spans = [span for span in spans_of(read(tmp_path / "run.json"), LOOP) if span["name"] == "batch_augment"]
    assert [span["args"] for span in spans] == [{"epoch": 0, "batch": batch} for batch in range(N // BATCH)]
    assert all(span["dur"] >= AUGMENT - 1 for span in spans)


def test_iterable_datasets(tmp_path):
    loader = Loader(Stream(), batch_size=BATCH, num_workers=1, trace=tmp_path / "a.json")
    list(loader)
    loader.close()
    assert sum(span["args"]["samples"] for span in waits_of(tmp_path / "a.json")) == N
    assert len(spans_of(read(tmp_path / "a.json"), "worker 0")) >= N // BATCH


def test_left_early(tmp_path):
    loader = Loader(Pictures(), batch_size=BATCH, num_workers=2, trace=tmp_path / "a.json.gz")
    for _ in loader:
        break
    list(loader)
    del loader
    assert [span["args"]["epoch"] for span in waits_of(tmp_path / "a.json.gz")] == [0] + [1] * (N // BATCH)


@pytest.mark.parametrize("way", ["in the loop", "workers", "threads", "own batches", "timeout"])
def test_waits_for_an_error(tmp_path, way):
    """Such as for a worker that hangs: without them the timeline would end when all was well."""

    class Late(Pictures):
        def __getitem__(self, index: int) -> np.ndarray:
            if index == 3 * BATCH:
                time.sleep(60 if way == "timeout" else 0.3)
                raise ValueError("not today")
            return super().__getitem__(index)

    settings = dict(num_workers=2, timeout=0.3) if way == "timeout" else WAYS[way]
    loader = Loader(Late(), batch_size=BATCH, trace=tmp_path / "a.json", **settings)
    with pytest.raises((ValueError, RuntimeError), match="timed out" if way == "timeout" else "not today"):
        list(loader)
    loader.close()
    spans = [span for span in spans_of(read(tmp_path / "a.json"), LOOP) if span["name"] in ("wait", "step")]
    assert spans[-1]["name"] == "wait"
    assert set(spans[-1]["args"]) == {"epoch", "batch"}
    assert sum(span["dur"] for span in spans if span["name"] == "wait") > 0.25e6
    assert loader.stats().wait_seconds > 0.25


@pytest.mark.parametrize("how", ["exit", "error", "interrupt"])
def test_a_program_that_ends_in_the_middle(tmp_path, how):
    program = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path[:0] = {[str(folder) for folder in Path(__file__).parents[:2]]!r}
from test_loader_trace import Pictures
from stocached import Loader
loader = Loader(Pictures(), batch_size=8, num_workers=2, trace={str(tmp_path / "a.json")!r})
for k, batch in enumerate(loader):
    if k == 2:
        {dict(exit="sys.exit(0)", error="raise ValueError('x')", interrupt="signal.raise_signal(signal.SIGINT)")[how]}
"""
    done = python(program, check=False, options=())
    assert done.returncode == dict(exit=0, error=1, interrupt=-signal.SIGINT)[how], done.stderr
    assert len(waits_of(tmp_path / "a.json")) == 3
    assert os.listdir(tmp_path) == ["a.json"]
