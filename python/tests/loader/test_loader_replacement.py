"""If a library replaces our loader by torch's, a warning says so."""

from __future__ import annotations

import sys
import types
import warnings
from typing import Any

import pytest
from torch_helpers import TORCH_WARNINGS, torch

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS]

if torch is not None:
    from framework_samples import Samples, lift

    from stocached._loader import replacement
    from stocached.torch import CachedDataset, DataLoader

# Like Ray Train.
LIBRARY = """
from torch.utils.data import DataLoader, DistributedSampler
def prepare(loader):
    sampler = DistributedSampler(loader.dataset, 2, 0)
    return DataLoader(loader.dataset, loader.batch_size, sampler=sampler, num_workers=loader.num_workers, collate_fn=loader.collate_fn)
"""


@pytest.fixture
def library(monkeypatch):
    """A module in the directory where pip installs libraries."""
    module: Any = types.ModuleType("ray_like")
    module.__file__ = "/usr/lib/python3/site-packages/ray_like.py"
    monkeypatch.setitem(sys.modules, "ray_like", module)
    exec(LIBRARY, module.__dict__)
    replacement._say.cache_clear()
    return module


def said(make: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
        make()
    return [str(warning.message) for warning in caught if "stocached" in str(warning.message)]


@pytest.mark.parametrize(
    ("settings", "lost"),
    [
        ({"size": "8MiB"}, "the cache of"),
        ({"augment": "lift"}, "the augment= of"),
        ({"size": "8MiB", "augment": "lift"}, "the cache and the augment= of"),
    ],
)
def test_a_library_that_makes_a_loader_of_torch(library, settings, lost):
    loader = DataLoader(Samples(), 4, **{name: lift if value == "lift" else value for name, value in settings.items()})
    messages = said(lambda: library.prepare(loader))
    assert len(messages) == 1, "once"
    assert "ray_like has made torch's DataLoader" in messages[0]
    assert lost in messages[0]


def test_nothing_is_lost(library):
    cached = DataLoader(CachedDataset(Samples(), size="8MiB"), 4)
    plain, other = DataLoader(Samples(), 4), DataLoader(Samples(), 4, size="8MiB", augment=lift)
    assert said(lambda: library.prepare(cached)) == []
    assert said(lambda: library.prepare(plain)) == []
    assert said(lambda: torch.utils.data.DataLoader(other.dataset, 4)) == [], "the program made this loader itself"
    assert said(lambda: library.prepare(DataLoader(CachedDataset(Samples(), size="8MiB"), 4, augment=lift))) != []


def test_what_a_library_puts_around_constructors_makes_no_loaders(library, monkeypatch):
    """Lightning does, and leaves it there after an error in a hook."""
    exec(
        "def around(init):\n    def wrapper(obj, *arguments, **settings):\n        init(obj, *arguments, **settings)\n    return wrapper",
        library.__dict__,
    )
    other = DataLoader(Samples(), 4, size="8MiB")
    monkeypatch.setattr(torch.utils.data.DataLoader, "__init__", library.around(torch.utils.data.DataLoader.__init__))
    assert said(lambda: torch.utils.data.DataLoader(other.dataset, 4)) == [], "the program made this loader itself"
    assert said(lambda: library.prepare(other)) != []
