"""``convert(results="fp32")``: what leaves a model is in float32.

The core converts a tensor that the outermost module returns (src/engine/modules.hpp), and calls a
function for any other result. In code that torch.compile reads, the call of an outermost module becomes a function that
converts (``module_calls.py``), so that the graph has the conversion.
"""

from __future__ import annotations

from typing import Any

from habana_mp import _core
from habana_mp.common.ledger import require
from habana_mp.patches.tools import direct_calls
from habana_mp.patches.tools.compiled_functions import run_by_python
from habana_mp.patches.tools.in_containers import InFloat32, holds_dtype
from habana_mp.patches.tools.patch import Patch, Settings
from habana_mp.patches.torch.module_calls import CALLS, can_tap_calls, modules_in_graphs


class ModelResults(Patch):
    """Converts what leaves a model."""

    def check(self, settings: Settings) -> None:
        if settings.options.results_in_float32:
            require(CALLS, can_tap_calls)

    def install(self, settings: Settings) -> None:
        if not settings.options.results_in_float32:
            self.uninstall()
            return
        dtype = settings.options.lower_dtype

        @run_by_python
        def convert(result: Any) -> Any:
            made = InFloat32(dtype)
            converted = made.of(result)
            _core.count_model_results(len(made.tensors), sum(one.nbytes for _, one in made.tensors))
            return converted

        @run_by_python
        def is_lower(value: Any) -> bool:
            return holds_dtype(value, dtype)

        direct_calls.begin("results")
        _core.convert_model_results(dtype, is_lower, convert)
        modules_in_graphs.converted = dtype
        modules_in_graphs.begin("results")

    def uninstall(self) -> None:
        modules_in_graphs.end("results")
        _core.stop_converting_model_results()
        direct_calls.end("results")
