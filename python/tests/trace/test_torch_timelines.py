"""Timelines and statistics of stocached.torch.DataLoader."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch")

from trace_file import read, spans_of  # noqa: E402

from stocached import progress  # noqa: E402
from stocached._trace import LOOP  # noqa: E402
from stocached.torch import DataLoader  # noqa: E402

pytestmark = pytest.mark.torch

N, BATCH = 48, 8


class Pictures(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int):
        time.sleep(0.004)
        return torch.full((3, 8, 8), index, dtype=torch.float32), index


@pytest.mark.parametrize(
    "arguments",
    [dict(num_workers=0), dict(num_workers=2), dict(num_workers=2, size="8MiB", persistent_workers=True)],
    ids=str,
)
def test_a_timeline(tmp_path, arguments):
    loader = DataLoader(Pictures(), BATCH, shuffle=True, trace=tmp_path / "a.json", **arguments)
    for _ in range(2):
        for images, labels in progress(loader, disable=True):
            assert (images[:, 0, 0, 0] == labels).all()
    stats = loader.stats()
    loader.close()
    file = read(tmp_path / "a.json")
    (about,) = file["otherData"]["ranks"]
    assert about["settings"]["dataset"] == "test_torch_timelines.Pictures"
    waits = [span for span in spans_of(file, LOOP) if span["name"] == "wait" and "batch" in span["args"]]
    assert [span["args"]["batch"] for span in waits] == list(range(N // BATCH)) * 2
    assert sum(span["args"]["hits"] for span in waits) == stats.hits == (N if "size" in arguments else 0)
