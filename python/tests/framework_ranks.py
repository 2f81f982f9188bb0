"""Two ranks of a job, for test_framework_ranks.py. Each runs the checks of lightning_checks.py,
then those of accelerate_checks.py.

framework_ranks.py FOLDER      prints [rank, name of the check] for each check that passes

The ranks are forked, because importing the frameworks takes seconds.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import lightning_checks
import torch


def check_a_loader_made_before_accelerate_is_imported(folder: Path) -> None:
    from stocached.torch import DataLoader

    loader = DataLoader([1, 2, 3], 2, size="8MiB")
    assert "accelerate" not in sys.modules
    from accelerate import Accelerator, PartialState

    DataLoader([1])
    assert not PartialState._shared_state, "the program, not this state, must describe the job"
    assert isinstance(Accelerator(cpu=True).prepare(loader).base_dataloader, DataLoader)


def run(rank: int, folder: Path) -> None:
    def passes(checks: list[Callable[[Path], None]]) -> None:
        for check in checks:
            check(folder)
            # whole lines, because the other rank writes too
            os.write(1, f"{json.dumps([rank, check.__name__])}\n".encode())

    # Like ranks that Lightning's launcher starts: the environment does not have the rank, but
    # torch.distributed does after a Trainer has begun.
    os.environ |= {"NODE_RANK": "0", "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    passes(lightning_checks.CHECKS)
    os.environ["RANK"] = str(rank)
    passes([check_a_loader_made_before_accelerate_is_imported])
    import accelerate_checks

    passes(accelerate_checks.CHECKS)
    torch.distributed.destroy_process_group()


def main(folder: Path) -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    running = set()
    for rank in range(2):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                run(rank, folder)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        running.add(pid)
    failed = 0
    while running:
        pid, status = os.wait()
        running.discard(pid)
        if status:
            failed = 1
            for other in running:  # the other rank waits for this one
                os.kill(other, signal.SIGTERM)
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
