"""Damaged pictures of a server: bad_samples in its configuration, and in the loaders that read from it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from typing import Any

import numpy as np
import pytest
from pictures import encoded
from served import Server, program, until
from test_bad_samples import DAMAGED, GOOD, N, wanted
from torch_helpers import TORCH_WARNINGS, DataLoader, SourceDataset

from stocached import Cache, FetchError, image

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:stocached. a bad sample"),
    *TORCH_WARNINGS,
]


def solid(colour: int, format: str = "JPEG") -> bytes:
    return encoded(np.full((30, 40, 3), colour, np.uint8), format)


def name_of(k: int) -> str:
    return f"{k:03}.{DAMAGED[k][0] if k in DAMAGED else 'jpg'}"


def serve(server: Server, bad_samples: str | None = "skip") -> None:
    """Sample k is a grey picture of level 6 * k."""
    files = {name_of(k): DAMAGED[k][1] if k in DAMAGED else solid(6 * k) for k in range(N)}
    how = {} if bad_samples is None else {"bad_samples": bad_samples}
    server.files(files, decode={"resize": [16, 16], **how})


def level(sample: Any) -> int:
    return round(float(np.asarray(sample["image"], np.float64).mean()) / 6)


def levels(batches: Any) -> list[list[int]]:
    return [[level({"image": picture}) for picture in picture_of(batch)] for batch in batches]


def picture_of(batch: Any) -> Any:
    return batch["image"] if isinstance(batch, dict) else batch


def loader(server: Server, **options: Any) -> Any:
    transform = options.pop("transform", None)
    dataset = SourceDataset(server.name, transform=transform)
    return DataLoader(dataset, **({"batch_size": 6, "shuffle": True, "seed": 5, "bad_samples": "skip"} | options))


def as_list(samples: Any) -> Any:
    return np.stack([np.asarray(picture_of(sample)) for sample in samples])


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "worker": "thread"}])
@pytest.mark.parametrize("path", [{}, {"transform": lambda sample: picture_of(sample) * 1}, {"collate_fn": as_list}])
def test_a_loader_leaves_bad_samples_out(server, workers, path):
    serve(server)
    loads = loader(
        server,
        multiprocessing_context="fork" if "num_workers" in workers and "worker" not in workers else None,
        **workers,
        **path,
    )
    for epoch in range(3):
        assert levels(loads) == wanted(loads, epoch)
        assert loads.stats().bad_samples == len(DAMAGED) * (epoch + 1)
        assert loads.stats().samples == len(GOOD) * (epoch + 1)
    assert sorted(bad.index for bad in loads.stats().bad) == sorted(DAMAGED)
    for bad in loads.stats().bad:
        assert name_of(bad.index) in bad.reason
        assert bad.file is None, "the reason names it"
    # The server has read each of them once.
    assert server.metric("stocached_bad_samples") == len(DAMAGED)
    assert server.metric("stocached_fills_total") == len(GOOD)
    assert server.about()["source_errors"] == {"decode": len(DAMAGED)}


def test_errors_name_file_and_reason(server):
    """Of a loader that does not skip, and of fetch."""
    serve(server)
    batches = iter(loader(server, bad_samples="error", shuffle=False, order="sequential", seed=None))
    with pytest.raises(FetchError, match=r"sample 3: BAD: .*003.jpg: .* \(and 1 more\)") as raised:
        next(batches)
    assert [(failure.index, failure.kind) for failure in raised.value.failures] == [(3, "BAD"), (4, "BAD")]
    assert raised.value.bad
    assert levels([next(batches)]) == [[6, 7, 8, 9, 10, 11]]
    out, ok = Cache.attach(server.name).fetch([2, 3, 5], errors="return")
    assert ok.tolist() == [True, False, True]
    assert level({"image": out[0]}) == 2


def test_the_default_of_a_server_is_an_error(server):
    """Such samples are tried each time, and are no bad samples for a loader."""
    serve(server, None)
    loads = loader(server, shuffle=False, order="sequential", seed=None)
    for _ in range(2):
        with pytest.raises(FetchError, match="sample 3: DAMAGED: .*003.jpg.* does not decode"):
            next(iter(loads))
    assert server.metric("stocached_bad_samples") == 0
    assert server.about()["source_errors"]["decode"] >= 4
    assert loads.stats().bad_samples == 0


def test_users_decode_encoded_files(server):
    """The transform raises the error of stocached.image."""
    files = {name_of(k): DAMAGED[k][1] if k in DAMAGED else solid(6 * k) for k in range(N)}
    server.files(files)
    decode = image.Decode(16)
    loads = loader(server, transform=decode)
    for epoch in range(2):
        assert levels(loads) == wanted(loads, epoch)
        assert loads.stats().bad_samples == len(DAMAGED) * (epoch + 1)


def test_log_stats_and_a_reload(server):
    """The setting changes without an empty cache. A server that starts again tries the files again."""
    serve(server, "error")
    loads = loader(server)
    with pytest.raises(FetchError, match="DAMAGED"):
        list(loads)
    config = server.folder / "config.yaml"
    settings = json.loads(config.read_text())
    settings["caches"][0]["decode"]["bad_samples"] = "skip"
    config.write_text(json.dumps(settings))
    assert server.process is not None
    server.process.send_signal(signal.SIGHUP)

    def bad() -> bool:
        found = Cache.attach(server.name).fetch([*DAMAGED], errors="return")[1]
        return not found.any() and server.log().count("a sample is bad") == len(DAMAGED)

    until(bad)
    loads.set_epoch(0)
    assert levels(loads) == wanted(loads, 0)
    lines = [line for line in server.log().splitlines() if "a sample is bad" in line]
    assert len(lines) == len(DAMAGED)
    for k in DAMAGED:
        assert sum(name_of(k) in line for line in lines) == 1
    told = subprocess.run([program(), "stats", server.path, "--json"], capture_output=True, check=True).stdout
    assert json.loads(told)["bad_samples"] == len(DAMAGED)
    text = subprocess.run([program(), "stats", server.path, "--all"], capture_output=True, check=True, text=True).stdout
    assert re.search(rf"^bad samples +{len(DAMAGED)}$", text, re.MULTILINE)
    settings["caches"][0]["source"]["retry"] = {"tries": 2}  # another source, which may read what this one could not
    config.write_text(json.dumps(settings))
    server.process.send_signal(signal.SIGHUP)
    until(lambda: server.metric("stocached_bad_samples") == 0)
    server.stop()
    server.start()
    assert server.metric("stocached_bad_samples") == 0
    loads.set_epoch(1)
    assert levels(loads) == wanted(loads, 1)
    assert server.about()["adopted"]


def test_a_wrong_setting(server):
    with pytest.raises(AssertionError, match="bad_samples is .*no.*, but must be error or skip"):
        serve(server, "no")
