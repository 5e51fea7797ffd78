"""``nn.DataParallel``: replicas cast as the thread that calls them.

``parallel_apply`` runs each replica in a thread of its own, under ``torch.autocast`` as it was in the caller, and
autocast that was off is entered as ``enabled=False``, which rule 10 would take for the model's own wish.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.nn.parallel import parallel_apply

from habana_mp._checkpoint import AsWhenGiven
from habana_mp._composites import Replacement


def parallel_apply_replacement() -> Replacement:
    """torch.nn.parallel.parallel_apply, with the replicas made to remember."""

    def call(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        replicas: Sequence[Any] = arguments[0]
        return original([AsWhenGiven(one) for one in replicas], *arguments[1:], **keywords)

    return Replacement(parallel_apply, call)
