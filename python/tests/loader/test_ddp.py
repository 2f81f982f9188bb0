"""Two ranks of a DDP job share one named cache: one of them loads each sample."""

from __future__ import annotations

import textwrap

import pytest
from torch_helpers import two_ranks

pytestmark = pytest.mark.torch

RANK = """
    import sys, torch, torch.distributed as dist
    from torch.utils.data import DataLoader, Dataset
    from torch.utils.data.distributed import DistributedSampler
    from stocached.torch import CachedDataset

    rank, port, name, workers = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])

    class Images(Dataset):
        def __len__(self): return 64
        def __getitem__(self, k): return torch.full((3, 16, 16), k, dtype=torch.uint8), k

    if __name__ == "__main__":
        dist.init_process_group("gloo", init_method=f"file://{port}", rank=rank, world_size=2)
        dataset = CachedDataset(Images(), name=name, size="64MiB")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(768, 1))
        sampler = DistributedSampler(dataset, num_replicas=2, rank=rank)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            seen = []
            for images, labels in DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=workers):
                assert (images[:, 0, 0, 0].long() == labels).all()
                model(images.flatten(1).float()).sum().backward()
                seen += labels.tolist()
            assert len(seen) == 32
            dist.barrier()
        stats = dataset.stats()
        print(stats.stored, stats.ready, stats.hits + stats.misses)
        dist.barrier()
        dist.destroy_process_group()
"""


def test_two_ranks(cache_name, tmp_path):
    program = tmp_path / "rank.py"
    program.write_text(textwrap.dedent(RANK))
    for rank in two_ranks(program, lambda rank: [rank, tmp_path / "store", cache_name, 1]):
        assert rank.returncode == 0, rank.stderr
        output, error = rank.stdout, rank.stderr
        assert output.split()[:2] == ["64", "64"], (output, error)
        assert int(output.split()[2]) >= 3 * 64
