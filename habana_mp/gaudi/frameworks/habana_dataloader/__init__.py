"""``habana_dataloader``: torch's own loader under the name that Gaudi scripts use."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

__all__ = ["HabanaDataLoader"]


class HabanaDataLoader(DataLoader[Any]):
    """:class:`torch.utils.data.DataLoader`. On Gaudi it decodes images of known datasets in hardware; here the dataset
    does all the work."""
