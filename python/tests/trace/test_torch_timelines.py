"""Timelines, statistics and autotune of stocached.torch.DataLoader."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch")

from processes import held, nothing_new  # noqa: E402
from trace_file import read, spans_of  # noqa: E402

from stocached import progress  # noqa: E402
from stocached._trace import LOOP  # noqa: E402
from stocached.torch import DataLoader, autotune  # noqa: E402

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


class Slow(Pictures):
    """So slow that even on a busy machine three workers are better than one."""

    def __getitem__(self, index: int):
        time.sleep(0.02)
        return super().__getitem__(index)


def test_autotune_leaves_generators_and_processes_alone():
    generator = torch.Generator().manual_seed(5)
    loader = DataLoader(
        Slow(), BATCH, shuffle=True, generator=generator, num_workers=1, pin_memory=False, drop_last=True
    )
    torch.manual_seed(7)
    before, had = (torch.get_rng_state().tolist(), generator.get_state().tolist(), loader.state_dict()["epoch"]), held()
    seen: list[torch.Tensor] = []
    tuned = autotune(loader, step=lambda batch: seen.append(batch[1]), seconds=1.5, workers=[1, 3])
    assert (torch.get_rng_state().tolist(), generator.get_state().tolist(), loader.state_dict()["epoch"]) == before
    assert tuned.settings["num_workers"] == 3
    assert {len(labels) for labels in seen} == {BATCH}
    assert torch.cat(seen[:6]).tolist() != sorted(torch.cat(seen[:6]).tolist())
    nothing_new(had)


def test_autotune_of_no_workers():
    loader = DataLoader(Pictures(), BATCH, num_workers=0, size="8MiB")
    for _ in loader:
        pass
    tuned = autotune(loader, seconds=1, workers=[0, 1])
    assert all(trial.hit_rate == 1 for trial in tuned.trials)
    assert tuned.settings["num_workers"] == 0 or tuned.chosen.samples_per_second > tuned.current.samples_per_second
    DataLoader(**(loader.settings | tuned.settings)).close()
