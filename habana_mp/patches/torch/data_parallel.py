"""``nn.DataParallel``: replicas make the same casts as the thread that calls them.

``parallel_apply`` runs each replica in its own thread, under ``torch.autocast`` as it was in the caller. If autocast
was off, it is entered as ``enabled=False``, which rule 10 would take for a request of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.nn.parallel import parallel_apply

from habana_mp.common.ledger import Assumption
from habana_mp.patches.tools.code_exchange import ReplacedFunction
from habana_mp.patches.torch.checkpoint import AsWhenGiven


class DataParallel(ReplacedFunction):
    """Replaces torch.nn.parallel.parallel_apply, so that the replicas keep their state."""

    assumption = Assumption(
        "torch.parallel-apply",
        assumed="`torch.nn.parallel.parallel_apply` is given nn.DataParallel's replicas, and runs each in a thread",
        check="it is a function of Python that takes arguments by their position",
        otherwise="replicas of nn.DataParallel run without casts",
    )

    @staticmethod
    def find() -> Any:
        return parallel_apply

    @staticmethod
    def call(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        replicas: Sequence[Any] = arguments[0]
        return original([AsWhenGiven(one) for one in replicas], *arguments[1:], **keywords)
