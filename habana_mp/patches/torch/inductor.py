"""Inductor: the table of kernels that its code calls at run time, and products in lower precision on processors without
instructions for them.

Code that Inductor generated calls torch's builtins (``extern_kernels.convolution(...)``). The casts were decided when
the graph was traced. Handling these calls again would cast a second time, and a kernel would read memory in a
precision that the surrounding code does not expect. So Inductor gets builtins without rules.

Its own calls of torch's products are slow on some processors. A pass over each graph puts operators of the package in
their place, which have the same schemas. Their operands are tensors in memory, so Inductor cannot leave out a rounding,
as it does where it computes by itself.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

from habana_mp import _core
from habana_mp.common.ledger import Assumption, holds
from habana_mp.patches.tools.in_float32 import value_in_float32
from habana_mp.patches.tools.when_imported import WhenImported
from habana_mp.patches.torch import products

_INDUCTOR = Assumption(
    "torch.inductor",
    assumed="`torch._inductor.select_algorithm.extern_kernels` has, as attributes, the builtins that Inductor calls; "
    "`torch._inductor.config` has `post_grad_custom_post_pass`, which takes a `CustomGraphPass`, and the operators of "
    "products have the names that Inductor's graphs have",
    check="each is there",
    otherwise="these calls are answered and counted as others, by what holds where the lists are silent, and products "
    "are torch's own",
)


class KernelTable(WhenImported):
    """Puts unpatched copies of torch's builtins in the table that Inductor's code calls at run time."""

    name = "torch._inductor.select_algorithm"
    _originals: Mapping[str, Any] = types.MappingProxyType({})

    def do(self, module: Any) -> None:
        kernels = module.extern_kernels
        if not holds(_INDUCTOR, lambda: type(kernels).__module__.startswith("torch."), "kernels"):
            return
        originals = self._originals = {}

        def set_untouched(namespace: Any, name: str, value: Any) -> None:
            if type(value) is types.BuiltinFunctionType:
                originals[name] = value
                value = _core.unpatched_copy(value)
            object.__setattr__(namespace, name, value)

        # Kernels are added to the table when lowerings are registered, so later ones must be replaced too.
        self.exchanged.exchange(type(kernels), "__setattr__", set_untouched)
        for name, value in list(vars(kernels).items()):
            setattr(kernels, name, value)

    def undo(self, module: Any) -> None:
        for name, original in self._originals.items():
            object.__setattr__(module.extern_kernels, name, original)


_aten: Any = torch.ops.aten
#: Operators, and the results that are in the precision of the operands; None: all.
_OPERATORS: dict[str, tuple[int, ...] | None] = {
    "mm": None,
    "addmm": None,
    "bmm": None,
    "baddbmm": None,
    "convolution": None,
    "convolution_backward": None,
    "_scaled_dot_product_flash_attention_for_cpu": (0,),
    "_scaled_dot_product_flash_attention_for_cpu_backward": None,
}


def _in_float32(operator: Any, rounded: tuple[int, ...] | None) -> Callable[..., Any]:
    """Returns a function that calls the operator in float32, and rounds its results."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        dtype = arguments[0].dtype
        if operator in (_aten.mm.default, _aten.addmm.default) and not keywords:
            *bias, input, weight = arguments
            if not bias or bias[0].dim() == 1:
                return products.product_of_rows(input, weight.mT, *bias)
        made = operator(*map(value_in_float32, arguments), **_each(value_in_float32, keywords))
        declared = operator(*map(_on_meta, arguments), **_each(_on_meta, keywords))
        if isinstance(made, torch.Tensor):
            return _as(declared, made, dtype)
        return tuple(
            _as(like, one, dtype) if one is not None and (rounded is None or at in rounded) else one
            for at, (like, one) in enumerate(zip(declared, made, strict=True))
        )

    return call


def _on_meta(value: Any) -> Any:
    return value.to("meta") if isinstance(value, torch.Tensor) else value


def _each(change: Callable[[Any], Any], keywords: dict[str, Any]) -> dict[str, Any]:
    return {name: change(value) for name, value in keywords.items()}


def _as(declared: torch.Tensor, made: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns the result with the strides on which the compiled code relies."""
    if made.stride() == declared.stride():
        return made.to(dtype)
    return torch.empty_strided(declared.shape, declared.stride(), dtype=dtype).copy_(made)


@cache
def _define() -> None:
    """Defines the operators, once in a process."""
    library = products.operators()
    for name, rounded in _OPERATORS.items():
        operator = getattr(_aten, name).default
        library.define(str(operator._schema).removeprefix("aten::"))
        library.impl(name, _in_float32(operator, rounded), "CPU")
        library.impl(name, operator, "Meta")


def _uses_slow_product(node: torch.fx.Node, slow: set[torch.dtype]) -> bool:
    operands = [one.meta.get("val") for one in node.all_input_nodes]
    tensors = [one for one in operands if isinstance(one, torch.Tensor)]
    return bool(tensors) and all(one.device.type == "cpu" for one in tensors) and tensors[0].dtype in slow


def _put_ours(graph: torch.fx.Graph, slow: set[torch.dtype]) -> None:
    from torch._inductor.virtualized import V

    if getattr(V, "aot_compilation", False):  # the package runs without habana_mp
        return
    for name in _OPERATORS:
        for node in graph.find_nodes(op="call_function", target=getattr(_aten, name).default):
            if _uses_slow_product(node, slow):
                node.target = getattr(torch.ops.habana_mp, name).default


class CompiledProducts(WhenImported):
    """Gives Inductor the pass. A pass of other code stays."""

    name = "torch._inductor.compile_fx"

    def do(self, module: Any) -> None:
        multiplied = {torch.bfloat16: products.multiplies_bfloat16(), torch.float16: products.multiplies_float16()}
        slow = {dtype for dtype, is_fast in multiplied.items() if not is_fast}
        if not slow or not holds(_INDUCTOR, _find_pass, "products"):
            return
        from torch._inductor import config
        from torch._inductor.custom_graph_pass import CustomGraphPass

        _define()

        class ProductsPass(CustomGraphPass):
            def __call__(self, graph: torch.fx.Graph) -> None:
                _put_ours(graph, slow)

            def uuid(self) -> Any:
                return f"habana_mp products {sorted(map(str, slow))}"

        if config.post_grad_custom_post_pass is None:
            self.exchanged.exchange(config, "post_grad_custom_post_pass", ProductsPass())


def _find_pass() -> bool:
    from torch._inductor import config

    return hasattr(config, "post_grad_custom_post_pass") and all(hasattr(_aten, name) for name in _OPERATORS)
