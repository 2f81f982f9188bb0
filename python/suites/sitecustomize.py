"""Python runs this file at its start, in spawned children too. It puts our DataLoader in the place
of the class that a suite tests."""

import os

_SUITE = os.environ.get("STOCACHED_SUITE")

if _SUITE == "torch":
    import torch.utils.data

    from stocached.torch import DataLoader

    torch.utils.data.DataLoader = DataLoader  # type: ignore[misc]
elif _SUITE == "torchdata":
    import torchdata.stateful_dataloader

    from stocached.torch import DataLoader

    torchdata.stateful_dataloader.StatefulDataLoader = DataLoader
