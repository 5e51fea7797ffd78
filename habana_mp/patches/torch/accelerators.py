"""Functions about torch's accelerator that the core calls, and a patch of its graphs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor

from habana_mp import _core
from habana_mp.common.ledger import Assumption, holds
from habana_mp.patches.tools.exchange import Exchanged
from habana_mp.patches.tools.patch import Patch, Settings

_STREAMS = Assumption(
    "torch.streams-of-accelerators",
    assumed="the core finds the current stream of a device of torch's accelerator",
    check="for each device it is the one that `torch.accelerator.current_stream` returns",
    otherwise="no casts of weights on that device are cached",
)


#: Products that torch.autocast casts on a device, as torch's dispatcher names them.
_PRODUCTS = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm", "conv2d", "conv_transpose2d.input")


def accelerator_of(weight: Tensor) -> int:
    """Returns the number of the weight's accelerator; -1 if its device has no memory, or is not torch's accelerator."""
    accelerator = torch.accelerator.current_accelerator()
    device = weight.device
    if accelerator is None or accelerator.type != device.type:
        return -1
    graphs_of_accelerators.follow()  # the accelerator may have been registered after `convert`
    number = device.index
    return number if holds(_STREAMS, partial(_agree_on_stream, number), f"{device}") else -1


def autocast_of(tensor: torch.Tensor) -> int | None:
    """Returns the number of the type of the tensor's device if torch.autocast casts products there, -1 if it does not,
    None if the device is not torch's accelerator."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or tensor.device.type != accelerator.type:
        return None
    key = f"Autocast{torch._C._dispatch_key_for_device(accelerator.type)}"
    if not all(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key) for name in _PRODUCTS):
        return -1
    return torch.accelerator.current_stream(tensor.device).device_type


def _agree_on_stream(number: int) -> bool:
    return bool(_core.current_stream(number) == torch.accelerator.current_stream(number).stream_id)


def free_memory(number: int) -> int:
    """Returns how many bytes can still be allocated on an accelerator: also what its allocator holds for reuse."""
    module: Any = torch.get_device_module()
    free, _ = module.mem_get_info(number)
    return int(free + module.memory_reserved(number) - module.memory_allocated(number))


def wait_for_stream(cast: Tensor, number: int) -> None:
    """Makes the current stream wait for the stream of that number, which has made the cast. The cast's memory is not
    used for anything else before the current stream has finished."""
    here = torch.accelerator.current_stream(cast.device)
    made_on = torch.Stream(stream_id=number, device_index=here.device_index, device_type=here.device_type)
    here.wait_stream(made_on)
    cast.record_stream(here)


class GraphsOfAccelerators(Patch):
    """Tells the core when a graph is captured, and casts weights again after a graph has run: it may have changed
    them without a new version."""

    def __init__(self) -> None:
        self._exchanged = Exchanged()
        self._followed: set[type] = set()
        self._is_installed = False

    def install(self, settings: Settings) -> None:
        if not self._is_installed and _is_capturing():
            _core.weights_capture_begins()
        self._is_installed = True
        _core.set_autocast_of_accelerator(autocast_of)
        _core.set_number_in_range(_in_range())
        self.follow()

    def uninstall(self) -> None:
        self._is_installed = False
        _core.set_number_in_range(None)
        self._exchanged.put_back()
        self._followed.clear()
        while _core.is_capturing():  # the end of these captures will not be seen
            _core.weights_capture_ends()

    def follow(self) -> None:
        """Also follows the graphs of an accelerator that has come since."""
        for graph in _classes_of_graphs() if self._is_installed else ():
            if graph not in self._followed:
                self._followed.add(graph)
                for name, (notice, even_after_errors) in _NOTICES.items():
                    noticed = _followed_by(getattr(graph, name), notice, even_after_errors)
                    self._exchanged.exchange(graph, name, noticed)


graphs_of_accelerators = GraphsOfAccelerators()


def _in_range() -> Callable[[Tensor, float], Tensor]:
    """Returns a function that brings a number in a tensor into the range of a lower precision: on the device, where it
    neither waits nor fails while a graph is captured."""
    functions: Any = torch._C._VariableFunctions
    clamp, isinf, where = map(_core.unpatched_copy, (functions.clamp, functions.isinf, functions.where))

    def in_range(number: Tensor, limit: float) -> Tensor:
        """Returns the number with a finite value up to the limit. Infinities and NaN stay."""
        made: Tensor = where(isinf(number), number, clamp(number, -limit, limit))
        return made

    return in_range


def _is_capturing() -> bool:
    """True if a graph is captured on the current stream: the capture began before `convert`."""
    accelerator = torch.accelerator.current_accelerator()
    module: Any = None if accelerator is None else torch.get_device_module(accelerator)
    if not hasattr(module, "is_current_stream_capturing") or not module.is_initialized():
        return False
    return bool(module.is_current_stream_capturing())


def _classes_of_graphs() -> Iterator[type]:
    """Yields the classes of torch's accelerators that capture and replay a graph, such as `torch.cuda.CUDAGraph`."""
    for name in ("accelerator", "cuda", "xpu", torch._C._get_privateuse1_backend_name()):
        for one in vars(sys.modules.get(f"torch.{name}", torch.cuda)).values():
            if isinstance(one, type) and all(hasattr(one, method) for method in _NOTICES):
                yield one


def _followed_by(method: Callable[..., Any], notice: Callable[[], Any], even_after_errors: bool) -> Callable[..., Any]:
    @wraps(method)
    def method_and_notice(*args: Any, **kwargs: Any) -> Any:
        try:
            result = method(*args, **kwargs)
        except BaseException:
            if even_after_errors:
                notice()
            raise
        notice()
        return result

    return method_and_notice


# The function of the core that is called after each method, and whether it is called after an error too.
_NOTICES = {
    "capture_begin": (_core.weights_capture_begins, False),
    "capture_end": (_core.weights_capture_ends, True),
    "replay": (_core.weights_doubt_all, False),
}
