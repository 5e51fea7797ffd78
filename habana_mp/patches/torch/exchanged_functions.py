"""All named functions that are replaced by others."""

from __future__ import annotations

from collections.abc import Iterator

from habana_mp.patches.tools.named_functions import Exchange, ExchangedFunctions
from habana_mp.patches.torch import (
    autograd_hooks,
    checkpoint,
    checks_of_dtypes,
    copied_modules,
    without_casts,
)

EXCHANGES: tuple[Exchange, ...] = (
    *without_casts.EXCHANGES,
    *autograd_hooks.EXCHANGES,
    *checks_of_dtypes.EXCHANGES,
    *copied_modules.EXCHANGES,
    *checkpoint.EXCHANGES,
)


def exchanged_functions() -> Iterator[ExchangedFunctions]:
    """Yields the patches of these functions, one for each module."""
    for exchange in EXCHANGES:
        yield from exchange.patches()
