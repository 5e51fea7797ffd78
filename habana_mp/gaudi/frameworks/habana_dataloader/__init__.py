"""``habana_dataloader``: torch's own loader under the name that Gaudi scripts use."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from habana_mp.gaudi.finder import NO_MEDIA, refused

__all__ = ["HabanaDataLoader", "HabanaDataloaderWrapper", "fetch_habana_unet_loader"]


class HabanaDataLoader(DataLoader[Any]):
    """:class:`torch.utils.data.DataLoader`. On Gaudi it decodes images of known datasets in hardware; here the dataset
    does all the work."""


fetch_habana_unet_loader = refused("fetch_habana_unet_loader", NO_MEDIA)
HabanaDataloaderWrapper = refused("HabanaDataloaderWrapper", NO_MEDIA)
