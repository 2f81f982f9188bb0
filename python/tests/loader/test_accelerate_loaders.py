"""Loaders in the real accelerate, which takes loaders apart. Cache and augmentation stay, and a
training loop gets the same as from torch's loader."""

from __future__ import annotations

import os
from typing import Any

import pytest
from helpers import checks_of
from torch_helpers import torch

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def checks(in_accelerate):
    import accelerate_checks

    return accelerate_checks


# All checks run on two ranks (test_framework_ranks.py); `make soak` sets the variable.
ALL = "STOCACHED_TEST_FRAMEWORKS" in os.environ


@pytest.mark.parametrize("name", checks_of("accelerate_checks.py") if ALL else ["check_what_a_training_loop_sees"])
def test_in_one_process(name, checks, tmp_path):
    getattr(checks, name)(tmp_path)


def test_another_way_to_make_loaders_is_noticed(checks, monkeypatch):
    """If accelerate changes how it makes loaders, that is an error, and not a silent loss of the
    cache."""
    import accelerate.data_loader as theirs
    from accelerate import Accelerator

    from stocached import UnsupportedError
    from stocached.torch import DataLoader

    def init(
        self: Any, dataset: Any, use_stateful_dataloader: bool = False, batch_sampler: Any = None, **arguments: Any
    ) -> None:
        self.base_dataloader = torch.utils.data.DataLoader(dataset, batch_sampler=batch_sampler)

    monkeypatch.setattr(theirs, "DataLoader", torch.utils.data.DataLoader)
    monkeypatch.setattr(theirs.DataLoaderAdapter, "__init__", init)
    loader = DataLoader([1, 2, 3], 2, size="8MiB")
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="this version of accelerate.*CachedDataset"):
            Accelerator(cpu=True).prepare(loader)
    assert theirs.DataLoader is torch.utils.data.DataLoader, "for others it works as before"
