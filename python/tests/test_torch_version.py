"""The versions of torch that stocached works with: what is declared, tested and refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from helpers import python
from torch_helpers import torch

pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("version", ["1.13.1", "1.13.1+cu117", "1.9.0a0+git1234567"])
def test_older_ones_are_refused_with_numbers(version):
    from stocached._common import torch_version

    with pytest.raises(
        ImportError,
        match=rf"^stocached needs torch 2\.0 or later, and this is torch {re.escape(version)}; run: pip install 'torch>=2\.0'$",
    ):
        torch_version.check(version)


@pytest.mark.parametrize("version", ["2.0.0", "2.15.0.dev20261101+cpu", "10.0", "own build"])
def test_others_are_taken(version):
    from stocached._common import torch_version

    torch_version.check(version)


@pytest.mark.parametrize(
    "line",
    [
        "from stocached.torch import DataLoader",
        "from stocached import SharedCache",
    ],
)
def test_without_torch(line):
    """Whether or not torch is installed here: a finder before all others says that it is
    missing."""
    program = f"""
    import sys

    class Missing:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == "torch":
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

    sys.meta_path.insert(0, Missing())
    try:
        {line}
    except ModuleNotFoundError as error:
        print(error.name, "|", error)
    """
    assert python(program).stdout.startswith(
        "torch | stocached.torch and stocached.SharedCache need torch, which is not installed; run: pip install torch"
    )


def test_a_torch_for_another_numpy_is_refused(monkeypatch):
    from stocached._common import torch_version

    def from_numpy(_: Any) -> None:
        raise RuntimeError("Numpy is not available")

    monkeypatch.setattr(torch, "from_numpy", from_numpy)
    with pytest.raises(
        ImportError, match=r"does not work with NumPy .* \(Numpy is not available\); run: pip install 'numpy<2'"
    ):
        torch_version.check_numpy()


def test_what_is_declared_is_what_is_tested():
    """`make test-torch-oldest` installs the oldest versions that python/pyproject.toml allows."""
    from stocached._common import torch_version

    declared = dict(re.findall(r'"(torch|numpy)>=([\d.]+)"', (ROOT / "python" / "pyproject.toml").read_text()))
    tested = dict(
        re.findall(
            r"^(torch|numpy)==(.*)\.0$", (ROOT / "tools" / "requirements-torch-oldest.txt").read_text(), re.MULTILINE
        )
    )
    assert declared == tested
    assert declared["torch"] == ".".join(map(str, torch_version.OLDEST))
