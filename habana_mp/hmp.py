"""Mixed precision for PyTorch, steered by lists: the functions a user calls.

::

    from habana_mp import hmp

    hmp.convert()                       # near the top of the script
    ...
    with hmp.disable_casts():           # around what must not be cast
        optimizer.step()
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import types
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import IO, Any, TypeVar, overload

import torch

from habana_mp import _core, _places, _policy, _report
from habana_mp._errors import HmpWarning, ListError
from habana_mp._install import installation
from habana_mp._lists import read_list
from habana_mp._log import close_log, open_log
from habana_mp._policy import PRECISIONS, Policy
from habana_mp._presets import Preset, presets
from habana_mp._report import Report, Row

__all__ = [
    "HmpWarning",
    "ListError",
    "Report",
    "Row",
    "convert",
    "disable_casts",
    "is_converted",
    "op_wrap",
    "report",
    "reset_report",
    "restore",
]

_F = TypeVar("_F", bound=Callable[..., Any])
_Path = str | os.PathLike[str]

_OPT_LEVELS = {
    "O0": "nothing is cast",
    "O1": "the two lists decide",
    "O2": "GEMM and convolutions run in bf16, everything else in fp32",
}


def convert(
    opt_level: str = "O1",
    bf16_file_path: _Path | None = "",
    fp32_file_path: _Path | None = "",
    isVerbose: bool = False,  # noqa: N803  the name that scripts use
    *,
    preset: str | None = None,
    dtype: torch.dtype = torch.bfloat16,
    log: _Path | IO[str] | logging.Logger | None = None,
) -> None:
    """Make torch run the safe operations in lower precision and the delicate ones in float32, from here on.

    Calling it again replaces the first configuration. When anything is wrong it raises before torch is touched.

    Args:
        opt_level: ``"O1"``: the two lists decide. ``"O2"``: GEMM and convolutions in the lower precision, every other
            floating operation in float32. ``"O0"``: nothing is cast.
        bf16_file_path: A file with the operations for the lower precision, one name a line; ``""`` or None for the
            preset's. The file is read at once.
        fp32_file_path: The same for float32.
        isVerbose: Log each call of a covered operation and what was decided.
        preset: The lists to start from; ``habana-mp lists`` shows their names. The default is ``"hmp-default"``.
        dtype: The lower precision: ``torch.bfloat16`` or ``torch.float16``.
        log: Where the log goes: None for the console, a path for a file (``.jsonl`` for JSON lines), or a
            ``logging.Logger``. Giving it turns the log on.

    Raises:
        ValueError: an unknown level, preset or dtype, or (:class:`ListError`) a list that cannot be used.
        OSError: a list file that cannot be read, or a log file that cannot be written.
    """
    policy = _make_policy(opt_level, bf16_file_path, fp32_file_path, preset, dtype)
    verbose = isVerbose or log is not None
    if verbose:
        open_log(log)
    try:
        installation.install(policy)
    except BaseException:
        if verbose:
            close_log()
        raise
    if not verbose:
        close_log()
    _places.forget_warnings()


def _make_policy(
    opt_level: str, lower_path: _Path | None, fp32_path: _Path | None, preset: str | None, dtype: torch.dtype
) -> Policy:
    if opt_level not in _OPT_LEVELS:
        levels = "; ".join(f'"{name}": {meaning}' for name, meaning in _OPT_LEVELS.items())
        raise ValueError(f"`opt_level` must be one of {levels}; got {opt_level!r}")
    if dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"`dtype` must be torch.bfloat16 or torch.float16; got {dtype!r}")
    lower = PRECISIONS[dtype]
    if opt_level == "O1":
        return _policy.policy_from_lists(_lists(preset, lower_path, fp32_path), lower)
    if lower_path or fp32_path or preset:
        warnings.warn(f'the lists are ignored: opt_level="{opt_level}" does not use them', HmpWarning, stacklevel=3)
    return _policy.policy_o2(lower) if opt_level == "O2" else Policy(lower=lower)


def _lists(preset: str | None, lower_path: _Path | None, fp32_path: _Path | None) -> Preset:
    known = presets()
    name = "hmp-default" if preset is None else preset
    if name not in known:
        shipped = ", ".join(one for one in known if not one.startswith("gaudi/"))
        raise ValueError(f"`preset` must be one of {shipped}, or a name that `habana-mp lists` shows; got {name!r}")
    lists = known[name]
    # A file replaces its side of the preset; what it names is taken out of the preset's other side, since the user's
    # own word counts more.
    if lower_path:
        own = read_list(lower_path)
        named = {one.name for one in own}
        lists = replace(lists, lower=own, fp32=tuple(one for one in lists.fp32 if one.name not in named))
    if fp32_path:
        own = read_list(fp32_path)
        named = {one.name for one in own}
        kept = lists.lower if lower_path else tuple(one for one in lists.lower if one.name not in named)
        lists = replace(lists, lower=kept, fp32=own)
    return lists


def restore() -> None:
    """Undo :func:`convert`: torch is exactly as it was, the log is closed. Without a ``convert`` it does nothing."""
    installation.uninstall()
    close_log()


def is_converted() -> bool:
    """Is a configuration of :func:`convert` in force?"""
    return installation.policy is not None


def report(*, file: IO[str] | None = None, show: bool = True) -> Report:
    """Print what ran in which precision so far, and give the same as data.

    Args:
        file: Where to print; ``sys.stdout`` when None.
        show: False to print nothing and only return the data.
    """
    current = _report.current()
    if show:
        print(current, file=file)
    return current


def reset_report() -> None:
    """Count from zero again."""
    _core.reset_counts()


class disable_casts:  # noqa: N801  the name that scripts use
    """Casts off in this thread: a context manager and a decorator.

    It may be nested and reused, an exception leaves the state right, and other threads are not affected. Tensors that
    are in lower precision already stay so.
    """

    @overload
    def __new__(cls) -> disable_casts: ...
    @overload
    def __new__(cls, function: _F) -> _F: ...
    def __new__(cls, function: Any = None) -> Any:
        made = super().__new__(cls)
        return made if function is None else made(function)

    def __enter__(self) -> None:
        _core.disable()

    def __exit__(self, *_: object) -> None:
        _core.enable()

    def __call__(self, function: _F) -> _F:
        if not callable(function):
            raise TypeError(f"`disable_casts` decorates a function; got {type(function).__name__}: {function!r}")
        if inspect.isgeneratorfunction(function):
            return _decorate_generator(function)
        if inspect.iscoroutinefunction(function):
            return _decorate_coroutine(function)

        @functools.wraps(function)
        def without_casts(*args: Any, **kwargs: Any) -> Any:
            with disable_casts():
                return function(*args, **kwargs)

        return without_casts  # type: ignore[return-value]


def _without_casts_between_yields(generator: Any) -> Any:
    """Run a generator with casts off, and its consumer with whatever it had."""
    value: Any = None
    error: BaseException | None = None
    try:
        while True:
            with disable_casts():
                yielded = generator.send(value) if error is None else generator.throw(error)
            value, error = None, None
            try:
                value = yield yielded
            except GeneratorExit:
                raise
            except BaseException as thrown:
                error = thrown
    except StopIteration as stop:
        return stop.value
    finally:
        with disable_casts():
            generator.close()


def _decorate_generator(function: Any) -> Any:
    @functools.wraps(function)
    def without_casts(*args: Any, **kwargs: Any) -> Any:
        return (yield from _without_casts_between_yields(function(*args, **kwargs)))

    return without_casts


def _decorate_coroutine(function: Any) -> Any:
    @functools.wraps(function)
    async def without_casts(*args: Any, **kwargs: Any) -> Any:
        @types.coroutine
        def driven() -> Any:
            return (yield from _without_casts_between_yields(function(*args, **kwargs)))

        return await driven()

    return without_casts


@overload
def op_wrap(function: _F, to: str | torch.dtype = ...) -> _F: ...
@overload
def op_wrap(*, to: str | torch.dtype = ...) -> Callable[[_F], _F]: ...
def op_wrap(function: Any = None, to: str | torch.dtype = "bf16") -> Any:
    """Give a function of your own, or an operation, a precision: its tensor arguments are cast to it.

    ``hmp.op_wrap(fn, to="bf16")`` returns the wrapped function; ``@hmp.op_wrap(to="fp32")`` decorates one. Inside of it
    the lists are silent: every operation follows the precision of its inputs. It casts while :func:`convert` is in
    force and casts are not disabled.

    Args:
        function: What to wrap.
        to: ``"bf16"``, ``"fp16"`` or ``"fp32"`` (or the dtype), ``"widest"`` for the widest among the inputs, or
            ``"first"`` for the first input's.
    """
    ruling = _wrap_ruling(to)
    if function is None:
        return lambda decorated: op_wrap(decorated, to)
    if not callable(function):
        raise TypeError(f"`op_wrap` needs a function; got {type(function).__name__}: {function!r}")
    name = getattr(function, "__name__", type(function).__name__)
    engine = _core.Function(function, function, name, ruling.rule(""))

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if installation.policy is None or not installation.policy.covered:
            return function(*args, **kwargs)
        return engine.call(args, kwargs)

    return wrapped


_WRAP_RULINGS = {
    "bf16": _policy.Ruling("precision", "bf16"),
    "fp16": _policy.Ruling("precision", "fp16"),
    "fp32": _policy.Ruling("precision", "fp32"),
    "widest": _policy.Ruling("widest"),
    "first": _policy.Ruling("first_input"),
}


def _wrap_ruling(to: str | torch.dtype) -> _policy.Ruling:
    name = PRECISIONS.get(to, str(to)) if isinstance(to, torch.dtype) else to
    if name not in _WRAP_RULINGS:
        raise ValueError(f"`to` must be one of {', '.join(map(repr, _WRAP_RULINGS))}, or a dtype of these; got {to!r}")
    return _WRAP_RULINGS[name]


