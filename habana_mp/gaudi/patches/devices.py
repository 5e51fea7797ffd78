"""The device ``"hpu"`` in torch's functions and methods that take a device."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.jit import _builtins
from torch.utils import _device as torchs_device

from habana_mp.common.ledger import Assumption, UnmetError, holds
from habana_mp.gaudi.callers import is_script
from habana_mp.gaudi.devices import Devices
from habana_mp.gaudi.patches.changes import Changes

#: torch functions that take ``device=``. Some releases lack some of them.
_FUNCTIONS = (
    *("arange", "as_tensor", "asarray", "bartlett_window", "blackman_window", "empty", "empty_like"),
    *("empty_permuted", "empty_quantized", "empty_strided", "eye", "full", "full_like", "hamming_window"),
    *("hann_window", "kaiser_window", "linspace", "logspace", "normal", "ones", "ones_like", "rand", "rand_like"),
    *("randint", "randint_like", "randn", "randn_like", "randperm", "range", "scalar_tensor"),
    *("sparse_bsc_tensor", "sparse_bsr_tensor", "sparse_compressed_tensor", "sparse_coo_tensor"),
    *("sparse_csc_tensor", "sparse_csr_tensor", "tensor", "tril_indices", "triu_indices", "zeros", "zeros_like"),
)
_OF_FFT = ("fftfreq", "rfftfreq")
#: Methods that take ``device=``; for `to` it may also be the first argument.
_METHODS = ("to", "new", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros")

_DEVICE_MODES = Assumption(
    "torch.device-modes",
    assumed="torch.set_default_device and `with torch.device(...)` make a torch.utils._device.DeviceContext, which "
    "keeps a set of the functions that it is for",
    check="its constructor takes `device`, and the set has torch.empty",
    otherwise='of these two, "hpu" is refused by torch',
)

_TENSOR_DEVICE = Assumption(
    "torch.tensor-device",
    assumed="Tensor.device and Tensor.to are descriptors that torch.Tensor inherits, and that can be put in front of",
    check="they are looked at",
    otherwise="a script is told the real device of a tensor",
)

#: The module has no type annotations.
_script_builtins: Any = _builtins

_SCRIPT_BUILTINS = Assumption(
    "torch.script-builtins",
    assumed="TorchScript finds the operator of a function of torch in a table, by the function's id",
    check="the first that is asked for is found there",
    otherwise="torch.jit.script refuses functions that call a factory of torch",
)


def _copied(data: torch.Tensor, *, requires_grad: bool = False, pin_memory: bool = False, **given: Any) -> Any:
    """Returns what torch.tensor makes of a tensor. Warns of it as torch does, but at the line of the script."""
    warnings.warn(
        "To copy construct from a tensor, it is recommended to use sourceTensor.detach().clone() or "
        "sourceTensor.detach().clone().requires_grad_(True), rather than torch.tensor(sourceTensor).",
        stacklevel=3,
    )
    copied = data.detach().to(**given, copy=True)
    return (copied.pin_memory() if pin_memory else copied).requires_grad_(requires_grad)


class _Device:
    """``Tensor.device``, as the script's own code sees it. On the class it is torch's own descriptor."""

    def __init__(self, hpu: Devices) -> None:
        self._torchs = inspect.getattr_static(torch.Tensor, "device")
        self._real, self._seen = self._torchs.__get__, hpu.seen

    def __get__(self, tensor: Any, owner: Any = None) -> Any:
        if tensor is None:
            return self._torchs
        real = self._real(tensor)
        return self._seen(real) if is_script(sys._getframe(1)) else real

    def __set__(self, tensor: Any, value: Any) -> None:
        self._torchs.__set__(tensor, value)


class Method:
    """A method of tensors that takes a device. On the class it is torch's own descriptor."""

    def __init__(self, name: str, call: Callable[..., Any]) -> None:
        self._torchs = inspect.getattr_static(torch.Tensor, name)
        self._call = call

    def __get__(self, tensor: Any, owner: Any = None) -> Any:
        return self._torchs if tensor is None else types.MethodType(self._call, tensor)


def change_devices(hpu: Devices, changes: Changes) -> None:
    """Factories, methods of tensors and modules, generators, ``torch.set_default_device`` and ``with torch.device``."""
    # First, because torch collects its own functions when DeviceContext needs them for the first time.
    if holds(_DEVICE_MODES, _modes_are_as_expected):

        def map_default(arguments: dict[str, Any]) -> None:
            arguments["device"] = hpu.real_of(hpu.numbered(arguments["device"]), "the default device")

        changes.edit(torchs_device.DeviceContext.__init__, map_default)
    for module, names in ((torch, _FUNCTIONS), (torch.fft, _OF_FFT)):
        for name in names:
            if hasattr(module, name):
                original, function = getattr(module, name), _function(hpu, module, name)
                changes.exchange(module, name, function)
                _tell_script(original, function, changes)
    for name in _METHODS:
        method = Method(name, _method(hpu, getattr(torch.Tensor, name), f"Tensor.{name}"))
        changes.exchange(torch.Tensor, name, method)
    if holds(_TENSOR_DEVICE, _device_is_inherited):
        changes.exchange(torch.Tensor, "device", _Device(hpu))
    _add_methods(hpu, changes)
    changes.exchange(torch, "Generator", _generator_class(hpu))


def _tell_script(original: Any, function: Any, changes: Changes) -> None:
    """Registers the function with TorchScript."""
    if holds(_SCRIPT_BUILTINS, lambda: _script_builtins._find_builtin(original) is not None):
        operator = _script_builtins._find_builtin(original)
        if operator is not None:
            _script_builtins._register_builtin(function, operator)
            changes.callback(_script_builtins._get_builtin_table().pop, id(function), None)


def _function(hpu: Devices, module: types.ModuleType, name: str) -> Callable[..., Any]:
    original, full_name = getattr(module, name), f"{module.__name__}.{name}"

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs and hpu.means(device := hpu.numbered(kwargs["device"])):
            kwargs["device"] = hpu.real_of(device, full_name)
            if function is torch.tensor and args and isinstance(args[0], torch.Tensor):
                return _copied(*args, **kwargs)  # torch would warn at this line
        return original(*args, **kwargs)

    # Functions are pickled by their names.
    function.__module__, function.__name__, function.__qualname__ = module.__name__, name, name
    return function


def _method(hpu: Devices, original: Callable[..., Any], name: str) -> Callable[..., Any]:
    takes_device_first = original.__name__ == "to"

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and hpu.means(first := hpu.numbered(args[0]) if takes_device_first else args[0]):
            args = (hpu.real_of(first, name), *args[1:])
        elif "device" in kwargs and hpu.means(device := hpu.numbered(kwargs["device"])):
            kwargs["device"] = hpu.real_of(device, name)
        return original(self, *args, **kwargs)

    return method


def _moved(hpu: Devices, name: str) -> Callable[..., Any]:
    def moved(self: Any, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        """Returns this on the stand-in's device."""
        named = "hpu" if device is None else f"hpu:{device}" if isinstance(device, int) else device
        return self.to(device=hpu.real_of(named, name), non_blocking=non_blocking, **kwargs)

    moved.__name__, moved.__qualname__ = "hpu", name
    return moved


def _add_methods(hpu: Devices, changes: Changes) -> None:
    torchs_pin_memory, torchs_record_stream = torch.Tensor.pin_memory, torch.Tensor.record_stream

    def is_hpu(self: torch.Tensor) -> bool:
        """True if the tensor is on the stand-in's device."""
        return self.device.type == hpu.real.type

    def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        if not hpu.means(device):
            return torchs_pin_memory(self) if device is None else torchs_pin_memory(self, device)
        real = hpu.real_of(device, "Tensor.pin_memory")
        return self if real.type == "cpu" else torchs_pin_memory(self)

    def record_stream(self: torch.Tensor, s: Any) -> None:
        """Keeps the memory until the stream's work is done. On a CPU it is done already."""
        if hpu.real.type != "cpu":
            torchs_record_stream(self, s)

    for method in (pin_memory, record_stream):
        changes.exchange(torch.Tensor, method.__name__, Method(method.__name__, method))
    changes.exchange(torch.nn.Module, "to", _method(hpu, torch.nn.Module.to, "Module.to"))
    for owner in (torch.Tensor, torch.nn.Module, torch.UntypedStorage):
        changes.exchange(owner, "hpu", _moved(hpu, f"{owner.__name__}.hpu"))
    changes.exchange(torch.Tensor, "is_hpu", property(is_hpu))


def _generator_class(hpu: Devices) -> type:
    torchs: Any = torch.Generator

    class Meta(type(torchs)):  # type: ignore[misc]  # the metaclass of torch's own class
        def __call__(cls, device: Any = "cpu") -> Any:
            return super().__call__(hpu.real_of(hpu.numbered(device), "torch.Generator"))

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, torchs) if cls is made else super().__instancecheck__(instance)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, torchs) if cls is made else super().__subclasscheck__(subclass)

    def new(cls: type, device: Any = "cpu") -> Any:
        return torchs(device) if cls is made else torchs.__new__(cls, device)

    made: type = Meta("Generator", (torchs,), {"__new__": new, "__module__": "torch", "__doc__": torchs.__doc__})
    return made


def _modes_are_as_expected() -> bool:
    parameters = inspect.signature(torchs_device.DeviceContext.__init__).parameters
    return "device" in parameters and torch.empty in torchs_device._device_constructors()


def _device_is_inherited() -> bool:
    if "device" in vars(torch.Tensor):
        raise UnmetError("torch.Tensor has a `device` of its own")
    return hasattr(inspect.getattr_static(torch.Tensor, "device"), "__get__")
