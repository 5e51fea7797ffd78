"""``autocast``: a block of code, or a function, that runs under lists of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch

from habana_mp import _core
from habana_mp.common.devices import is_there
from habana_mp.common.errors import ListError, warn
from habana_mp.patches.installation import installation
from habana_mp.patches.tools.compiled_functions import constant_in_graph
from habana_mp.patches.tools.pytree import tree_leaves
from habana_mp.patches.tools.region_dtypes import as_autocast
from habana_mp.patches.torch.dynamo import OwnCode
from habana_mp.policy.lists import Listed, given_list, read_list
from habana_mp.policy.module_rules import ModuleRule, given_rules
from habana_mp.policy.options import level_of_environment
from habana_mp.policy.precisions import PRECISIONS, dtype_meant
from habana_mp.policy.presets import preset_named
from habana_mp.policy.rules import OwnLists, Policy, left_alone, policy_from_lists
from habana_mp.scopes.disable import CastsOff, disable_casts
from habana_mp.scopes.scope import Scope

_Path = str | os.PathLike[str]
#: The arguments of `autocast` without lists.
_Asked = tuple[str, torch.dtype | str | None, bool, bool | None, str | None]


class _System(NamedTuple):
    """The documented defaults of torch or a vendor for a device: the lower precision, and the lists, which may be
    others for float16."""

    dtype: torch.dtype
    preset: str
    preset_in_float16: str


_SYSTEMS = {
    "cpu": _System(torch.bfloat16, "torch-cpu", "torch-cpu"),
    "cuda": _System(torch.float16, "torch-cuda", "torch-cuda"),
    "xpu": _System(torch.bfloat16, "xpu-amp-bf16", "xpu-amp-fp16"),
    "hpu": _System(torch.bfloat16, "hpu-autocast", "hpu-autocast"),
}

#: Presets that are for inference only if their lower precision is float16.
_INFERENCE_IN_FLOAT16 = ("xpu-amp-bf16", "xpu-amp-fp16")

#: Operations that raise under float16 if no list names them.
_REFUSED_IN_FLOAT16 = frozenset({"binary_cross_entropy"})

#: The environment variables that name files for HPU's lists: the name in HPU's first releases, and today's name.
_LOWER_LIST = ("LOWER_LIST", "PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST")
_FP32_LIST = ("FP32_LIST", "PT_HPU_AUTOCAST_FP32_OPS_LIST")

#: Device types that lead to another device, by the stand-in of habana_mp.gaudi. Their lists are still their own.
stand_ins: dict[str, str] = {}

#: Stands for no region.
_NOTHING = -1
#: The number of a region in which nothing is cast.
_NO_CASTS = 0


@dataclass(frozen=True)
class _Request:
    """Everything that determines a region's rules."""

    device_type: str
    dtype: torch.dtype
    preset: str
    own: OwnLists
    caches_weights: bool
    given: tuple[ModuleRule, ...] = ()
    #: False where the environment switches all casts off.
    casts: bool = True


#: The request of each region, by its number.
_requests: dict[int, _Request] = {}


def autocast(
    device_type: str = "",
    dtype: torch.dtype | str | None = None,
    enabled: bool = True,
    cache_enabled: bool | None = None,
    *,
    preset: str | None = None,
    bf16_file_path: _Path | None = "",
    fp32_file_path: _Path | None = "",
    rules: Mapping[str, str | torch.dtype] | None = None,
) -> Region:
    """Runs a block of code, or a function, under lists of its own. It is used like :class:`torch.autocast`.

    ::

        with hmp.autocast("cpu"):
            loss = criterion(model(inputs), targets)
        loss.backward()

    ``with hmp.autocast("cpu"):`` goes around a forward pass and its loss. ``@hmp.autocast("cpu")`` decorates a
    function, a generator or a coroutine function. It needs no :func:`convert`. If one is in force, the region's lists
    replace its lists. Regions nest in any order, the innermost one applies, and each thread has its own.

    Args:
        device_type: The device whose tensors are cast: ``"cpu"``, ``"cuda"``, ``"xpu"``, ``"hpu"``. It also determines
            the defaults of the other arguments. An index (``"cuda:0"``) is ignored.
        dtype: The lower precision: ``torch.bfloat16`` or ``torch.float16``, or its name. None: that of the device that
            ``preset`` names, else of ``device_type``: float16 for ``"cuda"``, bfloat16 for all others. With any other
            dtype nothing is cast in the region, and a warning says so.
        enabled: False for a region in which nothing is cast.
        cache_enabled: False to cache no casts of weights in the region. It has no effect with the lists of HPU, as
            documented there.
        preset: The lists; ``habana-mp lists`` shows their names. A device's name stands for its lists, its precision
            and its restrictions. None: those of ``device_type``.
        bf16_file_path: A file with the operations for the lower precision, one name per line, which replaces the list
            of the preset.
        fp32_file_path: The same for float32.
        rules: Lines of lists with their precision, as in :func:`convert`. Those of ``convert`` do not hold here.

    Raises:
        ValueError: an invalid argument, or (:class:`ListError`) a list that cannot be used.
        RuntimeError: a device type for which torch has no autocast.
        OSError: a list file that cannot be read.
    """
    if not device_type or not isinstance(device_type, str):
        call = f'hmp.autocast("cpu"{f", {device_type}" if isinstance(device_type, torch.dtype) else ""})'
        raise TypeError(
            "`hmp.autocast` takes the name of a device first, as torch.autocast does, and goes around a block: `with "
            f'{call}:`, or a function: `@{call}`. For the whole script write `hmp.convert(preset="recommended")`; got '
            f"{type(device_type).__name__}: {device_type!r}"
        )
    number = _number((device_type, dtype, enabled, cache_enabled, preset), bf16_file_path, fp32_file_path, rules)
    if torch.compiler.is_compiling():
        in_graph: Any = _in_graph(number)
        return in_graph  # type: ignore[no-any-return]  # torch.autocast, which does the same
    return Region(number)


class Region(Scope):
    """The result of :func:`autocast`."""

    _name = "autocast"
    _advice = (
        "hmp.autocast(...) alone does nothing: write `with hmp.autocast(...):` around a block, or "
        '`hmp.convert(preset="recommended")` for the whole script'
    )

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> Region:
        self._is_used = True
        number = self._number
        if number >= 0 and not _core.enter_region(self, number):
            # `restore` has removed the patches of the region.
            _core.enter_region(self, _ready(number))
        return self

    def __exit__(self, *_: object) -> None:
        if self._number >= 0:
            _core.leave_region(self)

    def _again(self) -> AbstractContextManager[Any]:
        return _in_graph(self._number) if torch.compiler.is_compiling() else self

    def __reduce__(self) -> tuple[Any, ...]:
        # A number is valid in one process only.
        return _region_for, (_requests.get(self._number, self._number),)


def _region_for(request: _Request | int) -> Region:
    return Region(_ready(_made(request)) if isinstance(request, _Request) else request)


def is_autocast_available(device_type: str) -> bool:
    """True if torch has autocast for this device type, as :func:`torch.amp.is_autocast_available` says."""
    return bool(torch.amp.is_autocast_available(device_type))


def is_autocast_enabled(device_type: str | None = None) -> bool:
    """True if this thread is in a region of :func:`autocast` that casts, for this device type if one is given."""
    wanted = None if device_type is None else _real_type(_type_of(device_type))
    request = _current()
    return request is not None and wanted in (None, request.device_type)


def get_autocast_dtype(device_type: str) -> torch.dtype:
    """Returns the lower precision for this device type: that of the current region for it, else a region's default."""
    device_type = _type_of(device_type)
    request = _current()
    if request is not None and request.device_type == _real_type(device_type):
        return request.dtype
    return _SYSTEMS[device_type].dtype if device_type in _SYSTEMS else torch.get_autocast_dtype(device_type)


def _type_of(device_type: str) -> str:
    """Returns the device type of ``"cpu"`` or ``"cuda:0"``. Raises RuntimeError if torch has no autocast for it."""
    if not isinstance(device_type, str):
        raise ValueError(f"`device_type` must be a string; got {type(device_type).__name__}: {device_type!r}")
    is_available = False
    with suppress(RuntimeError):  # torch knows no device of this name
        is_available = torch.amp.is_autocast_available(device_type)
    if not is_available:
        raise RuntimeError(
            '`device_type` must be one that torch has autocast for: "cpu", "cuda" (GPUs of NVIDIA and AMD), "xpu" (of '
            f'Intel), "hpu" (Gaudi); got {device_type!r}'
        )
    return torch.device(device_type).type


def _real_type(device_type: str) -> str:
    return stand_ins.get(device_type, device_type)


def _current() -> _Request | None:
    number = _core.current_region()
    casts = number and _core.region_is_put_in(number) and _core.lists_apply_here()
    return _requests[number] if casts else None


def _in_graph(number: int) -> AbstractContextManager[Any]:
    """Returns a context manager that torch.compile supports and that has the region's effect."""
    if number == _NOTHING:
        return nullcontext()
    return disable_casts() if number == _NO_CASTS else as_autocast(_mark(number))


@constant_in_graph
def _mark(number: int) -> int:
    """Returns the number of the dtype by which torch.compile sees a region, which can then be entered."""
    return _core.region_mark(_ready(number))


def _ready(number: int) -> int:
    """Returns the same number, after making sure that its region can be entered."""
    if not _core.region_is_put_in(number):
        installation.put_in_region(number)
    return number


@constant_in_graph
def _number(
    asked: _Asked, lower_path: _Path | None, fp32_path: _Path | None, rules: Mapping[str, str | torch.dtype] | None
) -> int:
    """Returns the number of a region with these arguments."""
    own = given_list("bf16_file_path", lower_path), given_list("fp32_file_path", fp32_path)
    if own != (None, None) or rules is not None:
        return _find_number(asked, own, rules)
    try:
        number = installation.numbers.get(asked)
    except TypeError:  # an argument that cannot be hashed is invalid
        number = None
    if number is None:
        number = _find_number(asked, own, None)
        if number != _NOTHING:
            installation.numbers[asked] = number
    return number


def _find_number(asked: _Asked, own: OwnLists, rules: Mapping[str, str | torch.dtype] | None) -> int:
    """Returns the number of a region with these arguments. All errors in them are found here."""
    device_type, dtype, enabled, cache_enabled, preset = asked
    device_type = _type_of(device_type)
    if isinstance(enabled, str):
        raise ValueError(f"`enabled` must be True or False; got {enabled!r}")
    if isinstance(cache_enabled, str):
        raise ValueError(f"`cache_enabled` must be True, False or None; got {cache_enabled!r}")
    if preset is not None and not isinstance(preset, str):
        preset_named(preset)  # raises
    if not enabled:
        return _NO_CASTS
    if preset is None and device_type not in _SYSTEMS:
        raise ValueError(f"`preset` must be given for {device_type!r}: there are no lists of its own for it")
    preset = device_type if preset is None else preset
    system = _SYSTEMS.get(preset)
    given = (system or _SYSTEMS.get(device_type, _SYSTEMS["cpu"])).dtype if dtype is None else dtype
    dtype = dtype_meant(given)
    device_type = _real_type(device_type)
    if dtype is None:
        raise ValueError(f"`dtype` must be torch.bfloat16 or torch.float16; got {given!r}")
    name = preset_named(preset).name if system is None else system.preset
    if system is not None and dtype is torch.float16:
        name = system.preset_in_float16
    if name == "hpu-autocast" and dtype is torch.float16:
        raise ValueError("`dtype` must be torch.bfloat16 with the lists of hpu: its autocast has no torch.float16")
    if not is_there(device_type):
        warn(f'`hmp.autocast("{device_type}")` has no effect: {device_type.upper()} is not available here')
        return _NOTHING
    if dtype not in (torch.bfloat16, torch.float16):
        warn(
            f"`hmp.autocast` lowers to torch.bfloat16 or torch.float16, not to {dtype}: nothing is cast in this region"
        )
        return _NO_CASTS
    if device_type == "cuda" and dtype is torch.bfloat16 and not torch.cuda.is_bf16_supported():
        raise RuntimeError("this CUDA device does not support bfloat16; use dtype=torch.float16")
    if name == "hpu-autocast":
        if cache_enabled is not None:
            warn("`cache_enabled` has no effect with the lists of hpu")
        cache_enabled = None
        lower, fp32 = own
        own = (
            _from_environment(*_LOWER_LIST) if lower is None else lower,
            _from_environment(*_FP32_LIST) if fp32 is None else fp32,
        )
    caches_weights = cache_enabled is None or bool(cache_enabled)
    of_region = given_rules(rules, PRECISIONS[dtype])
    casts = level_of_environment() is None
    return _ready(_made(_Request(device_type, dtype, name, own, caches_weights, of_region, casts)))


# torch.compile does not trace these methods of a region that was created outside of compiled code.
OwnCode.functions += [Region.__enter__, Region.__exit__, CastsOff.__enter__, CastsOff.__exit__]


@cache
def _from_environment(*variables: str) -> tuple[Listed, ...] | None:
    """Returns the list in the file that one of these environment variables names, or None if none is set. The file is
    read once, when lists for hpu are first used."""
    given = [(variable, os.environ[variable]) for variable in variables if os.environ.get(variable)]
    lists = [read_list(path, source=f"{variable}: {path}") for variable, path in given]
    for (variable, path), listed in zip(given[1:], lists[1:], strict=True):
        if {one.name for one in listed} != {one.name for one in lists[0]}:
            first, its_path = given[0]
            raise ListError(
                f"{first} and {variable} are two names for one list, and must name the same operations; got {its_path} "
                f"and {path}: unset one of the two"
            )
    return lists[0] if lists else None


@cache
def _made(request: _Request) -> int:
    precision = PRECISIONS[request.dtype]
    in_float16 = request.dtype is torch.float16
    refused = _REFUSED_IN_FLOAT16 if in_float16 else frozenset()
    lists = preset_named(request.preset)
    policy = policy_from_lists(lists, precision, request.own, given=request.given, refused=refused)
    number = installation.make_region(
        policy if request.casts else left_alone(policy),
        on_cpu=request.device_type == "cpu",
        caches_weights=request.caches_weights,
        name=f"{request.preset} in {precision} on {request.device_type}{_with_rules(policy)}",
        after_tracked=_refuse_backward
        if request.casts and in_float16 and request.preset in _INFERENCE_IN_FLOAT16
        else None,
    )
    _requests[number] = request
    return number


def _with_rules(policy: Policy) -> str:
    """Returns the words for the rules by module of a region. The core takes regions of the same name and lists for one,
    and these rules are no part of the lists."""
    rules = [f"{one.listed.line_text} in {one.precision}" for one in policy.module_rules.rules]
    return f", with {', '.join(rules)}" if rules else ""


def _refuse_backward(result: Any) -> None:
    for tensor in tree_leaves(result):
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
            tensor.register_hook(_backward_is_refused)  # type: ignore[no-untyped-call]  # torch's has no types


def _backward_is_refused(_: torch.Tensor) -> None:
    raise RuntimeError(
        "float16 with the lists of xpu is for inference only: its training supports bfloat16; give the region "
        "dtype=torch.bfloat16"
    )
