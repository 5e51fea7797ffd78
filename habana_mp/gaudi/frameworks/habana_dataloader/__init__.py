"""``habana_dataloader``: torch's own loader under the name that Gaudi scripts use."""

from __future__ import annotations

from typing import Any, NoReturn

from torch.utils.data import DataLoader

__all__ = ["HabanaDataLoader", "HabanaDataloaderWrapper", "fetch_habana_unet_loader"]


class HabanaDataLoader(DataLoader[Any]):
    """:class:`torch.utils.data.DataLoader`. On Gaudi it decodes images of known datasets in hardware; here the dataset
    does all the work."""


def fetch_habana_unet_loader(*_: Any, **__: Any) -> NoReturn:
    """Raises NotImplementedError: images are decoded by Gaudi's media pipelines."""
    raise NotImplementedError(_without_media("fetch_habana_unet_loader"))


class HabanaDataloaderWrapper:
    """Raises NotImplementedError when it is called: images are decoded by Gaudi's media pipelines."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError(_without_media("HabanaDataloaderWrapper"))


def _without_media(name: str) -> str:
    return (
        f"`{name}` is not in habana_mp's stand-in for Gaudi: it decodes images on Gaudi's own hardware; use "
        "torch.utils.data.DataLoader with the same dataset"
    )
