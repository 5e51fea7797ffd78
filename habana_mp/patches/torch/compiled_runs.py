"""Finds out whether a step calls compiled functions, and runs it with these compiled anew."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from habana_mp.common.ledger import Assumption, holds
from habana_mp.common.places import is_passed_over
from habana_mp.patches.tools.compiled_functions import forget_compiled_code
from habana_mp.patches.tools.exchange import Exchanged

_RUNS = Assumption(
    "torch.compiled-runs",
    assumed="Dynamo calls `_callback_from_stance` of `torch._dynamo.eval_frame`, with a function as the argument, "
    "whenever a compiled function begins; Inductor's configuration can pass each graph to a function after it is "
    "decomposed, draw eager code's random numbers, and round as eager code does, also single nodes by "
    "`low_precision_pointwise_barrier`; AOTAutograd's can compile a backward together with its forward",
    check="that function is there, and both configurations have these settings",
    otherwise="a diagnosis does not compare compiled code with eager code",
)

_OF_INDUCTOR = ("post_grad_custom_pre_pass", "fallback_random", "emulate_precision_casts")
#: Inductor rounds the result of a node that has this among its data.
_BARRIER = "low_precision_pointwise_barrier"
_OF_AOT = "force_non_lazy_backward_lowering"

_FRAME = re.compile(r'File "(.+?)", line (\d+)')

#: Files and line numbers.
Lines = set[tuple[str, int]]


@contextmanager
def noting_compiled_calls() -> Iterator[list[Any]]:
    """A block that yields a list, which is not empty in the end if compiled functions were called."""
    calls: list[Any] = []
    dynamo: Any = importlib.import_module("torch._dynamo.eval_frame")  # the step may be the first that compiles
    with Exchanged() as exchanged:
        if holds(_RUNS, lambda: callable(dynamo._callback_from_stance), "calls"):
            former = dynamo._callback_from_stance

            def noting(callback: Any) -> Any:
                if callable(callback):
                    calls.append(callback)
                return former(callback)

            exchanged.exchange(dynamo, "_callback_from_stance", noting)
        yield calls


def can_compile() -> bool:
    """True if :func:`compiled_anew` can be used."""
    return holds(_RUNS, _has_settings, "settings")


def _has_settings() -> bool:
    inductor, aot = _settings()
    return all(hasattr(inductor, one) for one in _OF_INDUCTOR) and hasattr(aot, _OF_AOT)


def _settings() -> tuple[Any, Any]:
    from torch._functorch import config as aot
    from torch._inductor import config as inductor

    return inductor, aot


@contextmanager
def compiled_anew(unrounded: Lines, rounded: Lines | None) -> Iterator[None]:
    """A block in which functions are compiled again, and draw the random numbers of eager code. All compiled code is
    forgotten at its end. Adds to ``unrounded`` the lines whose results Inductor does not round to a lower precision as
    eager code does. Inductor rounds the results of the lines ``rounded``, and all results if it is None."""

    def read(graph: torch.fx.Graph) -> None:
        for node in filter(_is_not_rounded, graph.nodes):
            line = line_of_node(node)
            unrounded.add(line)
            if rounded is not None and line in rounded:
                node.meta[_BARRIER] = True

    inductor, aot = _settings()
    settings = dict(zip(_OF_INDUCTOR, (read, True, rounded is None), strict=True))
    forget_compiled_code()
    try:
        with torch.compiler.set_stance("default"), inductor.patch(settings), aot.patch({_OF_AOT: True}):
            yield
    finally:
        forget_compiled_code()


def _is_not_rounded(node: torch.fx.Node) -> bool:
    """True if Inductor may pass the result to another operation without rounding it to its lower precision."""
    result = node.meta.get("val")
    is_lower = isinstance(result, torch.Tensor) and result.dtype in (torch.bfloat16, torch.float16)
    return is_lower and _is_fused(node) and _is_used_in_kernel(node)


def _is_used_in_kernel(node: torch.fx.Node) -> bool:
    """True if the result goes into an operation that the same kernel may compute."""
    return any(
        _is_fused(one) or (getattr(one.target, "is_view", False) and _is_used_in_kernel(one)) for one in node.users
    )


def _is_fused(node: torch.fx.Node) -> bool:
    return any(tag.name in ("pointwise", "reduction") for tag in getattr(node.target, "tags", ()))


def line_of_node(node: torch.fx.Node) -> tuple[str, int]:
    """Returns the file and the line of the innermost call in user code, or ``("", 0)``."""
    frames: list[tuple[str, str]] = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [one for one in frames if not is_passed_over(one[0])]
    return (own[-1][0], int(own[-1][1])) if own else ("", 0)
