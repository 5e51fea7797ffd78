"""Mixed precision for PyTorch, steered by lists: the public functions.

::

    from habana_mp import hmp

    hmp.convert()                       # near the top of the script
    ...
    with hmp.disable_casts():           # around what must not be cast
        optimizer.step()
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TextIO

import torch

from habana_mp import _core
from habana_mp.common import locks
from habana_mp.common.errors import HmpWarning, ListError, warn
from habana_mp.common.undoing import run_cleanup
from habana_mp.patches import libraries
from habana_mp.patches.installation import installation
from habana_mp.patches.tools.compiled_functions import refused_in_graphs
from habana_mp.patches.torch import autocast_regions, stored_values
from habana_mp.policy.environment import level_of_environment
from habana_mp.policy.exact import Given as GivenExact
from habana_mp.policy.exact import exact_code
from habana_mp.policy.given_rules import given_rules
from habana_mp.policy.kept import forget_kept
from habana_mp.policy.lists import given_list
from habana_mp.policy.precisions import PRECISIONS, dtype_meant
from habana_mp.policy.presets import preset_named, with_own
from habana_mp.policy.rules import Policy, policy_from_lists, policy_o2
from habana_mp.reporting import counting
from habana_mp.reporting.comparison import Comparison, compare
from habana_mp.reporting.explanation import Explanation, ModelExplanation, explain
from habana_mp.reporting.guard import Guard, checked_guard, guarding
from habana_mp.reporting.log import close_log, open_log
from habana_mp.reporting.records import Detail, KeptWeights, Row
from habana_mp.reporting.report import Report
from habana_mp.reporting.watch import checked_detail, watch, watching
from habana_mp.scopes.custom_functions import custom_bwd, custom_fwd
from habana_mp.scopes.disable import disable_casts
from habana_mp.scopes.keep import keep
from habana_mp.scopes.op_wrap import op_wrap
from habana_mp.scopes.regions import autocast, get_autocast_dtype, is_autocast_available, is_autocast_enabled
from habana_mp.scopes.within import Given, checked, reject_models

if TYPE_CHECKING:
    from habana_mp.diagnosis.diagnosis import Diagnosis, diagnose
    from habana_mp.diagnosis.findings import Finding
    from habana_mp.tuning.tune import tune
    from habana_mp.tuning.tuned import Tuned

__all__ = [
    "Comparison",
    "Diagnosis",
    "Explanation",
    "Finding",
    "HmpWarning",
    "KeptWeights",
    "ListError",
    "ModelExplanation",
    "Report",
    "Row",
    "Tuned",
    "autocast",
    "compare",
    "convert",
    "custom_bwd",
    "custom_fwd",
    "diagnose",
    "disable_casts",
    "exact_packages",
    "explain",
    "get_autocast_dtype",
    "is_autocast_available",
    "is_autocast_enabled",
    "is_converted",
    "keep",
    "op_wrap",
    "report",
    "reset_report",
    "restore",
    "tune",
    "watch",
]

#: Names that are imported when they are used: most programs use none of them.
_IMPORTED_LATER = {
    "Diagnosis": "habana_mp.diagnosis.diagnosis",
    "Finding": "habana_mp.diagnosis.findings",
    "Tuned": "habana_mp.tuning.tuned",
    "diagnose": "habana_mp.diagnosis.diagnosis",
    "tune": "habana_mp.tuning.tune",
}


def __getattr__(name: str) -> Any:
    if name not in _IMPORTED_LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_IMPORTED_LATER[name]), name)
    return value


_Path = str | os.PathLike[str]

_OPT_LEVELS = {
    "O0": "nothing is cast",
    "O1": "the two lists decide",
    "O2": "GEMM and convolutions run in bf16, everything else in fp32",
}


@refused_in_graphs
@reject_models
def convert(
    opt_level: str = "O1",
    bf16_file_path: _Path | None = "",
    fp32_file_path: _Path | None = "",
    isVerbose: bool | int | Literal["why"] | None = False,  # noqa: N803  the name that scripts use
    *,
    preset: str | None = None,
    dtype: torch.dtype | str = torch.bfloat16,
    within: Given = None,
    rules: Mapping[str, str | torch.dtype] | None = None,
    exact: Iterable[GivenExact] | None = None,
    report: Detail = "operations",
    guard: Guard = False,
    log: _Path | TextIO | logging.Logger | None = None,
    weight_cache: bool = True,
    weight_cache_limit: int | None = None,
    packed_weights: bool = True,
    skip_slower: bool = False,
    reuse_memory: bool = True,
) -> None:
    """Makes torch run the safe operations in lower precision and the delicate ones in float32, from now on.

    Another call replaces the first configuration. If an argument is wrong, the call raises before it changes torch.

    Args:
        opt_level: ``"O1"``: the two lists decide. ``"O2"``: GEMM and convolutions run in the lower precision, every
            other operation that computes runs in float32. ``"O0"``: nothing is cast. Lower-case letters are accepted.
        bf16_file_path: A file with the operations for the lower precision, one name per line. ``""`` or None: the
            preset's list. The file is read during the call.
        fp32_file_path: The same for float32.
        isVerbose: Logs each call of a covered operation and the decision about it. ``"why"``: also logs the reason and
            the line of the caller. 0 and None mean False, 1 means True. A ``log`` turns the log on too.
        preset: The lists to start from; ``habana-mp lists`` shows their names. The default is ``"hmp-default"``.
        dtype: The lower precision: ``torch.bfloat16`` or ``torch.float16``, or its name (``"bf16"``, ``"half"``).
        within: The code in which operations are lowered. None: wherever Python code calls torch. ``"modules"``: only
            while the forward of an ``nn.Module`` runs. A module or a list of modules: only while the forward of one of
            them runs. Elsewhere nothing is lowered, but tensors that are already in lower precision still follow the
            float32 list and rules 2 to 4.
        rules: Lines of lists, with ``"fp32"``, ``"bf16"``, ``"fp16"`` or ``"lower"`` (``dtype``) for each:
            ``{"softmax @ encoder.**": "fp32", "* @ lm_head": "fp32"}``. They take precedence over equal lines of files
            and presets. What may follow ``@`` is in docs/patterns.md. ``O2`` obeys them too.
        exact: Code in which no list lowers an operation: a list of names of packages and modules
            (``"package.module"``), which may be imported later, of modules, functions and classes. What such code calls
            is lowered as elsewhere. They are added to the libraries that :func:`exact_packages` names.
        report: The detail of the report: by ``"operations"``, which are always counted, by ``"modules"``, or by
            ``"lines"`` of the calling code.
        guard: Watches for values that are not finite, and warns once with the operation that made the first one of
            finite inputs, its module, file and line. True: checks 1 % of the calls; a float above 0 and at most 1.0:
            this share; ``"raise"``: 1 %, and raises FloatingPointError. After such a value was seen, all calls are
            checked until the operation is named. Infinities that the code writes, as into a mask, do not count.
        log: The destination of the log: None for the console, a path for a file (``.jsonl`` for JSON lines), or a
            ``logging.Logger``. A destination turns the log on, whatever ``isVerbose`` is.
        weight_cache: Caches the casts of weights between calls. A weight that changed is cast again.
        weight_cache_limit: The most bytes that cached casts may take. None: half of the free memory. The casts of all
            weights together take half of the weights' size.
        packed_weights: Caches the weights of linear layers, of other products with a weight and of ``conv2d`` in a
            layout of habana_mp's kernels or of the CPU's library. Only if autograd does not track the call and a
            measurement shows that the layout is worth it.
        skip_slower: Leaves a GEMM or convolution on the CPU unchanged if autograd does not track the call and its
            shape, measured once, takes longer in the lower precision.
        reuse_memory: On the CPU, keeps up to 512 MB of freed memory for the next large casts, and as much in the C
            library's heap, instead of returning it to the system in every step.

    Raises:
        ValueError: an unknown level, preset or dtype, code that ``exact`` cannot find, or (:class:`ListError`) a list
            that cannot be used.
        TypeError: an invalid destination of the log, or a model: ``convert`` takes no model.
        OSError: a list file that cannot be read, or a log file that cannot be written.
    """
    explains = isinstance(isVerbose, str) and isVerbose == "why"
    if explains or isVerbose is None or (type(isVerbose) is int and isVerbose in (0, 1)):  # as scripts pass it
        isVerbose = bool(isVerbose)  # noqa: N806  as above
    opt_level = _level_meant(opt_level)
    opt_level = level_of_environment() or opt_level
    if not isinstance(isVerbose, bool):
        raise ValueError(f'`isVerbose` must be True, False or "why"; got {isVerbose!r}')
    _check_switches(
        weight_cache=weight_cache,
        packed_weights=packed_weights,
        skip_slower=skip_slower,
        reuse_memory=reuse_memory,
    )
    _check_limit(weight_cache_limit)
    detail = checked_detail("report", report)
    wanted_guard = checked_guard(guard)
    where = checked(within)
    exactly_run = exact_code(exact)
    # A fork waits for the whole block: the first conversion imports modules, and Python cannot fork during an import.
    with locks.installation:
        policy = replace(
            _make_policy(opt_level, bf16_file_path, fp32_file_path, preset, dtype, rules),
            weight_cache=weight_cache,
            weight_cache_limit=weight_cache_limit,
            packed_weights=packed_weights,
            skip_slower=skip_slower,
            reuse_memory=reuse_memory,
            exact=exactly_run,
        )
        level = _level_meant(opt_level)
        described = {
            "opt_level": level,
            "lower": policy.lower,
            "preset": preset or ("hmp-default" if level == "O1" else None),
            "bf16_list": os.fsdecode(bf16_file_path) if bf16_file_path else None,
            "fp32_list": os.fsdecode(fp32_file_path) if fp32_file_path else None,
            "within": within if within is None or isinstance(within, str) else "modules given",
        }
        installation.check_alone()
        verbose = isVerbose or log is not None
        log_before = _core.log_destination()
        if verbose:
            open_log(log, explains=explains)
        autocast_regions.forget_warnings()
        stored_values.forget_warnings()
        try:
            installation.install(policy, where, described)
        except BaseException:
            # Restores the log of the configuration that stays in force.
            _core.log_back_to(log_before if is_converted() else None)
            raise
        try:
            if not verbose:
                close_log()
            watching.of_convert(detail)
            guarding.of_convert(wanted_guard)
        except BaseException:
            run_cleanup(_end)
            raise


def _level_meant(given: str) -> str:
    level = given.upper() if isinstance(given, str) else ""
    if level not in _OPT_LEVELS:
        levels = "; ".join(f'"{name}": {meaning}' for name, meaning in _OPT_LEVELS.items())
        raise ValueError(f"`opt_level` must be one of {levels}; got {given!r}")
    return level


def _check_switches(**switches: object) -> None:
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise ValueError(f"`{name}` must be True or False; got {value!r}")


def _check_limit(limit: int | None) -> None:
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise ValueError(f"`weight_cache_limit` must be None or a number of bytes, 0 or more; got {limit!r}")


def _make_policy(
    opt_level: str,
    lower_path: _Path | None,
    fp32_path: _Path | None,
    preset: str | None,
    dtype: torch.dtype | str,
    rules: Mapping[str, str | torch.dtype] | None,
) -> Policy:
    lower_dtype = dtype_meant(dtype)
    if lower_dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"`dtype` must be torch.bfloat16 or torch.float16; got {dtype!r}")
    lower = PRECISIONS[lower_dtype]
    given = given_rules(rules, lower)
    if opt_level == "O1":
        lists = preset_named("hmp-default" if preset is None else preset)
        lists, own = with_own(lists, given_list("bf16_file_path", lower_path), given_list("fp32_file_path", fp32_path))
        return policy_from_lists(lists, lower, own, given=given)
    if rules and opt_level == "O0":
        warn('the rules are ignored: opt_level="O0" casts nothing')
    if lower_path or fp32_path or preset:
        warn(f'the lists are ignored: opt_level="{opt_level}" does not use them')
    return policy_o2(lower, given) if opt_level == "O2" else Policy(lower=lower)


@refused_in_graphs
def restore() -> None:
    """Undoes :func:`convert`: torch is exactly as before, and the log is closed. Without a ``convert`` it does nothing.

    The patches of regions are removed too. A region that is open then casts nothing until torch is patched again, and
    it ends normally.
    """
    installation.check_alone()
    forget_kept()
    _end()


def _end() -> None:
    """Ends what ``convert`` began. It is safe to call twice, as `run_cleanup` does."""
    guarding.end()
    installation.uninstall()
    close_log()
    watching.of_convert("operations")


def is_converted() -> bool:
    """True if a configuration of :func:`convert` is in force."""
    return installation.policy is not None


def exact_packages() -> tuple[str, ...]:
    """Returns the names of the code whose own operations no list lowers: the libraries that the package knows, whether
    they are imported or not, and what ``convert(exact=...)`` was given."""
    given = () if installation.policy is None else installation.policy.exact.names
    return tuple(dict.fromkeys((*libraries.exact_packages(), *given)))


def report(*, file: TextIO | None = None, show: bool = True) -> Report:
    """Prints what ran in which precision so far, where and why, and returns the same as data.

    The finest detail that ``convert(report=...)`` or :func:`watch` requested decides how exact the places are.

    Args:
        file: The stream to print to. None: ``sys.stdout``, or in a notebook the cell, as a table.
        show: False to print nothing and only return the data.

    Raises:
        TypeError: a ``file`` that is not a stream.
    """
    if file is not None and not hasattr(file, "write"):
        raise TypeError(f"`file` must be a stream to write text to, or None; got {type(file).__name__}: {file!r}")
    current = counting.current()
    if show:
        current.show(file)
    return current


def reset_report() -> None:
    """Resets all counts to zero."""
    counting.reset()
