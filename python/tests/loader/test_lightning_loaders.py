"""Loaders in the real Lightning, which makes them again with other samplers. Cache and augmentation
stay, and batches are those of torch's loader."""

from __future__ import annotations

import gc
import json
import os
import subprocess
from pathlib import Path

import pytest
from helpers import checks_of
from served import program

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def checks(monkeypatch, in_lightning):
    import lightning_checks

    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):  # Lightning leaves them set
        monkeypatch.setenv(name, "0")
    return lightning_checks


# All checks run on two ranks (test_framework_ranks.py); `make soak` sets the variable.
ALL = "STOCACHED_TEST_FRAMEWORKS" in os.environ
CHECKS = checks_of("lightning_checks.py") if ALL else ["check_stages", "check_a_state_in_the_middle_of_an_epoch"]
CHECKS += [] if ALL else ["check_rows_whose_epochs_differ_in_length"]


@pytest.mark.parametrize("name", CHECKS)
def test_in_one_process(name, checks, tmp_path):
    getattr(checks, name)(tmp_path)


def test_one_cache_for_a_dataset(checks, tmp_path):
    def caches() -> int:
        gc.collect()  # a Trainer is part of reference cycles
        listed = json.loads(
            subprocess.run([program(), "ls", "--json"], capture_output=True, text=True, check=True).stdout
        )
        return sum(os.getpid() in cache["pids"] for cache in listed)

    def hooked(samples):
        return checks.Model({stage: lambda: checks.ours(samples, checks.BATCH) for stage in ("train", "val")})

    before, dataset = caches(), checks.Samples()
    train, check = checks.ours(dataset, checks.BATCH, shuffle=True), checks.ours(dataset, checks.BATCH)
    model, run = checks.Model(), checks.trainer(tmp_path)
    run.fit(model, train, check)
    run.validate(model, check, verbose=False)
    run.test(model, check, verbose=False)
    run.predict(model, check)
    overfit = checks.trainer(tmp_path, overfit_batches=2)
    overfit.fit(model, train)
    assert caches() == before + 1
    assert overfit.train_dataloader.cache is run.predict_dataloaders.cache is train.cache
    run.fit(hooked(dataset))
    assert caches() == before + 1
    del train, check, model, run, overfit, dataset
    assert caches() == before


def test_a_loader_that_was_made_before_ranks_were_known(checks, monkeypatch, tmp_path):
    """A script under Lightning's launcher makes the loader before the Trainer initialises
    torch.distributed."""
    from stocached import InvalidError

    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = checks.ours(checks.Samples(), checks.BATCH, seed=7, shuffle=True, trace=tmp_path / "run.json")
    with pytest.raises(InvalidError, match="WORLD_SIZE=2 is set and RANK is not"):
        iter(loader)
    monkeypatch.setenv("RANK", "1")
    assert (loader.sampler.rank, loader.sampler.world_size, loader.sampler.ends) == (1, 2, "pad")
    assert len(list(loader)) == len(loader) == 3
    loader.close()
    about = json.loads(Path(tmp_path / "run.json").read_text())["otherData"]["ranks"][0]
    assert (about["rank"], about["world_size"]) == (1, 2)
