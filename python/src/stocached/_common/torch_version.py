"""torch, for modules that need it: `from ._common.torch_version import torch` raises an error with
advice if torch is missing or too old. Also what differs between its versions."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

__all__ = ["accelerator", "check", "check_numpy", "in_order", "item_bytes", "torch"]

OLDEST = (2, 0)

try:
    import torch
    import torch.utils.data
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "stocached.torch and stocached.SharedCache need torch, which is not installed; run: pip install torch. stocached.Loader and stocached.Cache do without",
        name="torch",
    ) from None


def check(version: str) -> None:
    """Raises ImportError for a version that is too old."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is not None and tuple(map(int, numbers.groups())) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(
            f"stocached needs torch {oldest} or later, and this is torch {version}; run: pip install 'torch>={oldest}'"
        )


def check_numpy() -> None:
    """Raises ImportError if torch was built for another NumPy: torch before 2.3 takes no NumPy
    2."""
    try:
        torch.from_numpy(np.empty(0))
    except RuntimeError as error:
        raise ImportError(
            f"torch {torch.__version__} does not work with NumPy {np.__version__} ({error}); run: pip install 'numpy<2', or pip install 'torch>=2.3'"
        ) from None


check(torch.__version__)
check_numpy()

in_order: bool = "in_order" in torch.utils.data.DataLoader.__init__.__annotations__
"""Whether torch's DataLoader takes in_order=, as it does from 2.6 on."""


def accelerator() -> str:
    """The kind of device that this process can use in addition to the CPU, such as "cuda"; "":
    none."""
    devices: Any = getattr(torch, "accelerator", None)  # from 2.6 on
    if devices is None:
        return "cuda" if torch.cuda.is_available() else ""
    return devices.current_accelerator().type if devices.is_available() else ""


def item_bytes(dtype: torch.dtype) -> int:
    """dtype.itemsize, which torch has from 2.1 on."""
    return torch.empty((), dtype=dtype).element_size()
