"""`Loader`: batches of NumPy arrays. The loader of torch batches is
`stocached.torch.DataLoader`."""

from __future__ import annotations

from ._loader.numpy_loader import Loader

__all__ = ["Loader"]
