"""Two ranks of a job share one named cache: in our loader and in torch's. Each sample is loaded once
for both, and the state of one rank is that of the other."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from torch_helpers import DataLoader, run_ranks

pytestmark = pytest.mark.torch

SAMPLES, BATCH, EPOCHS = 90, 8, 3

RANK = """
    import json, os, sys, torch, torch.distributed as dist
    from pathlib import Path
    from stocached.torch import DataLoader

    rank, store, name, folder, workers = int(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4]), int(sys.argv[5])
    samples, batch, epochs = (int(argument) for argument in sys.argv[6:9])

    class Images(torch.utils.data.Dataset):
        def __len__(self): return samples
        def __getitem__(self, k):
            with open(folder / f"{k}-{os.getpid()}", "a") as file:
                file.write("x")
            return torch.full((3, 16, 16), k, dtype=torch.uint8), k

    if __name__ == "__main__":
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
        loader = DataLoader(Images(), batch, shuffle=True, seed=11, num_workers=workers, name=name, size="64MiB")
        dist.barrier()  # probed samples do not count
        if rank == 0:
            for file in folder.iterdir(): file.unlink()
        dist.barrier()
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(768, 1))
        seen, states = [], []
        for epoch in range(epochs):
            loader.set_epoch(epoch)
            mine = []
            for images, labels in loader:
                assert (images == labels[:, None, None, None]).all()
                model(images.flatten(1).float()).sum().backward()  # hangs if a rank has a batch more
                mine.append(labels.tolist())
                states.append(loader.state_dict())
            seen.append(mine)
            dist.barrier()
        print(json.dumps({"seen": seen, "states": states, "len": len(loader), "stored": loader.cache.stats().stored}))
        dist.destroy_process_group()
"""


def test_two_ranks_load_each_sample_once(warm_ranks, cache_name, tmp_path):
    program, folder = tmp_path / "rank.py", tmp_path / "loads"
    folder.mkdir()
    program.write_text(textwrap.dedent(RANK))
    settings = [tmp_path / "store", cache_name, folder, 1, SAMPLES, BATCH, EPOCHS]
    ranks = run_ranks(warm_ranks, program, lambda rank: [rank, *settings])
    for rank in ranks:
        assert rank.returncode == 0, rank.stderr
    results = [json.loads(rank.stdout) for rank in ranks]
    # Each sample was loaded once for both ranks, and the probed ones were not loaded again. Each
    # rank loads 32 of the 45 samples that it stores again, to compare them.
    loads = count_loads(folder)
    assert sorted(loads.values()) == [1] * (SAMPLES - 64) + [2] * 64, loads
    assert results[0]["stored"] == SAMPLES
    # Together the ranks read all samples in each epoch. With ends="pad", the default for several
    # ranks, they have equal numbers of batches.
    for epoch in range(EPOCHS):
        batches = [result["seen"][epoch] for result in results]
        assert len(batches[0]) == len(batches[1]) == results[0]["len"]
        labels = [[label for batch in mine for label in batch] for mine in batches]
        assert len(labels[0]) == len(labels[1]) == SAMPLES // 2
        assert sorted(labels[0] + labels[1]) == list(range(SAMPLES))
    assert results[0]["states"] == results[1]["states"], "ranks have different positions"
    # One rank continues the epoch of two.
    for step in (0, 2, 5):
        state = results[0]["states"][step]
        loader = DataLoader(range(SAMPLES), BATCH, shuffle=True, seed=11, rank=0, world_size=1)
        loader.load_state_dict(state)
        before = [label for result in results for batch in result["seen"][0][: step + 1] for label in batch]
        after = [label for batch in loader for label in batch.tolist()]
        assert sorted(before + after) == list(range(SAMPLES)), f"after {step + 1} batches of two ranks"
    assert results[0]["states"][-1]["epoch"] == EPOCHS - 1


def count_loads(folder: Path) -> dict[int, int]:
    loads: dict[int, int] = {}
    for file in folder.iterdir():
        index = int(file.name.partition("-")[0])
        loads[index] = loads.get(index, 0) + len(file.read_text())
    return loads
