"""``custom_fwd`` and ``custom_bwd``: the forward and backward of a user-defined autograd function under lists."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from habana_mp import _core
from habana_mp.scopes.disable import disable_casts
from habana_mp.scopes.regions import stand_ins


def custom_fwd(
    fwd: Callable[..., Any] | None = None, *, device_type: str, cast_inputs: torch.dtype | None = None
) -> Callable[..., Any]:
    """Decorates the ``forward`` of a :class:`torch.autograd.Function`: :func:`torch.amp.custom_fwd` for habana_mp too.

    Without :func:`convert`, and outside of regions of both habana_mp and torch, the forward runs as it is.

    Args:
        fwd: The function to decorate.
        device_type: The device whose tensors ``cast_inputs`` applies to.
        cast_inputs: Casts the floating-point tensors of that device, except float64, to this dtype, and runs the
            forward without casts. None: the forward runs like the code around it.
    """
    _check_function("fwd", fwd)
    if cast_inputs is not None and not isinstance(cast_inputs, torch.dtype):
        raise ValueError(f"`cast_inputs` must be a torch.dtype or None; got {cast_inputs!r}")
    device_type = stand_ins.get(device_type, device_type)
    torchs: Callable[..., Any] = torch.amp.custom_fwd(fwd, device_type=device_type, cast_inputs=cast_inputs)
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @functools.wraps(fwd)
    def decorated(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return torchs(ctx, *args, **kwargs)
        ctx._habana_mp_state = _core.current_state()
        ctx._habana_mp_is_torchs = not _core.lists_apply_here()
        if ctx._habana_mp_is_torchs:
            return torchs(ctx, *args, **kwargs)
        if cast_inputs is None:
            return fwd(ctx, *args, **kwargs)
        with disable_casts():
            ctx._habana_mp_state = _core.current_state()
            return fwd(ctx, *_cast(args, device_type, cast_inputs), **_cast(kwargs, device_type, cast_inputs))

    return decorated


def custom_bwd(bwd: Callable[..., Any] | None = None, *, device_type: str) -> Callable[..., Any]:
    """Decorates the ``backward``: it runs under the lists of its forward, which :func:`custom_fwd` must decorate.

    Args:
        bwd: The function to decorate.
        device_type: As for :func:`torch.amp.custom_bwd`.
    """
    _check_function("bwd", bwd)
    torchs: Callable[..., Any] = torch.amp.custom_bwd(bwd, device_type=device_type)
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def decorated(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        state = getattr(ctx, "_habana_mp_state", None)
        if state is None or not hasattr(ctx, "_habana_mp_is_torchs"):  # our custom_fwd did not decorate its forward
            return torchs(ctx, *args, **kwargs)
        before = _core.exchange_state(state)
        try:
            return torchs(ctx, *args, **kwargs) if ctx._habana_mp_is_torchs else bwd(ctx, *args, **kwargs)
        finally:
            _core.exchange_state(before)

    return decorated


def _check_function(name: str, function: object) -> None:
    if function is not None and not callable(function):
        raise TypeError(f"`{name}` must be a function; got {type(function).__name__}: {function!r}")


def _cast(value: Any, device_type: str, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        is_cast = value.is_floating_point() and value.device.type == device_type and value.dtype is not torch.float64
        return value.to(dtype) if is_cast else value
    if isinstance(value, Mapping):
        return {key: _cast(one, device_type, dtype) for key, one in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_cast(one, device_type, dtype) for one in value)
    return value
