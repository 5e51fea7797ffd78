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
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from habana_mp import _core
from habana_mp.common import locks
from habana_mp.common.errors import HmpWarning, ListError, warn
from habana_mp.patches import libraries
from habana_mp.patches.installation import installation
from habana_mp.patches.tools.compiled_functions import refused_in_graphs
from habana_mp.patches.tools.tapped_calls import require_tap
from habana_mp.patches.torch import autocast_regions, stored_values
from habana_mp.policy.exact import exact_code
from habana_mp.policy.kept import forget_kept
from habana_mp.policy.lists import given_list
from habana_mp.policy.module_rules import given_rules
from habana_mp.policy.options import Options, level_of_environment, takes_options
from habana_mp.policy.presets import AS_COMPUTED, Preset, preset_named
from habana_mp.policy.rules import Policy, left_alone, policy_from_lists, policy_o2
from habana_mp.recording.comparison import Difference, RecordComparison, compare
from habana_mp.recording.record import record
from habana_mp.reporting import counting
from habana_mp.reporting.comparison import Comparison
from habana_mp.reporting.explanation import Explanation, ModelExplanation, explain
from habana_mp.reporting.guard import guarding
from habana_mp.reporting.log import close_log, open_log
from habana_mp.reporting.ranks import is_loader_worker, of_all_ranks, own_rank
from habana_mp.reporting.records import CachedWeights, Row
from habana_mp.reporting.remedies import Finding
from habana_mp.reporting.report import Report
from habana_mp.reporting.watch import watch, watching
from habana_mp.scopes.custom_functions import custom_bwd, custom_fwd
from habana_mp.scopes.disable import disable_casts
from habana_mp.scopes.keep import keep
from habana_mp.scopes.op_wrap import op_wrap
from habana_mp.scopes.regions import autocast, get_autocast_dtype, is_autocast_available, is_autocast_enabled
from habana_mp.warming import warm

if TYPE_CHECKING:
    from habana_mp.auditing.audit import Audit, audit
    from habana_mp.diagnosis.diagnosis import Diagnosis, diagnose
    from habana_mp.tuning.tune import tune
    from habana_mp.tuning.tuned import Tuned

__all__ = [
    "Audit",
    "CachedWeights",
    "Comparison",
    "Diagnosis",
    "Difference",
    "Explanation",
    "Finding",
    "HmpWarning",
    "ListError",
    "ModelExplanation",
    "RecordComparison",
    "Report",
    "Row",
    "Tuned",
    "audit",
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
    "record",
    "report",
    "reset_report",
    "restore",
    "tune",
    "warm",
    "watch",
]

#: Names that are imported when they are used: most programs use none of them.
_IMPORTED_LATER = {
    "Audit": "habana_mp.auditing.audit",
    "Diagnosis": "habana_mp.diagnosis.diagnosis",
    "Tuned": "habana_mp.tuning.tuned",
    "audit": "habana_mp.auditing.audit",
    "diagnose": "habana_mp.diagnosis.diagnosis",
    "tune": "habana_mp.tuning.tune",
}


def __getattr__(name: str) -> Any:
    if name not in _IMPORTED_LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_IMPORTED_LATER[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__


@refused_in_graphs
@takes_options(Options)
def convert(options: Options) -> None:
    """Makes torch run the safe operations in lower precision and the delicate ones in float32, from now on.

    ::

        hmp.convert(preset="recommended")                  # once, near the top of the script
        hmp.convert(bf16_file_path="bf16.txt", fp32_file_path="fp32.txt", report="lines")

    Another call replaces the first configuration. If an argument is wrong, the call raises before it changes torch.

    Args:
        {options}

    Raises:
        ValueError: an unknown level, preset or dtype, code that ``exact`` cannot find, or (:class:`ListError`) a list
            that cannot be used.
        TypeError: an invalid destination of the log, or a model: ``convert`` takes no model.
        OSError: a list file that cannot be read, or a log file that cannot be written.
    """
    level = level_of_environment() or options.opt_level
    if is_loader_worker():
        warn(
            "hmp.convert was called in a worker of a DataLoader, where nothing is lowered: call it in the main process"
        )
    if options.report != "operations":
        require_tap()
    # A fork waits for the whole block: the first conversion imports modules, and Python cannot fork during an import.
    with locks.installation:
        policy, start = _make_policy(level, options)
        options = replace(
            options,
            within=start.within if options.within is None else options.within,
            results=AS_COMPUTED if level == "O0" else start.results if options.results is None else options.results,
        )
        lists = {"bf16_list": options.bf16_file_path, "fp32_list": options.fp32_file_path}
        described = {
            "opt_level": level,
            "lower": policy.lower,
            "preset": options.preset or ("hmp-default" if level == "O1" else None),
            **{name: os.fsdecode(path) if path else None for name, path in lists.items()},
            "rules": list(map(str, options.rules or ())),
            "within": options.within_in_words,
            "results": options.results,
            "weight_cache": options.weight_cache,
        }
        installation.check_alone()
        gone = (installation.described or {}).get("rules")
        if gone and options.rules is None:
            warn(f"the rules of the earlier convert are gone ({', '.join(gone)}): pass them again, or `rules={{}}`")
        verbose = bool(options.isVerbose) or options.log is not None
        log_before = _core.log_destination()
        if verbose:
            open_log(options.log, explains=options.isVerbose == "why")
        autocast_regions.forget_warnings()
        stored_values.forget_warnings()
        try:
            installation.install(policy, options, described)
        except BaseException:
            # Restores the log of the configuration that stays in force.
            _core.log_back_to(log_before if is_converted() else None)
            raise
        try:
            if not verbose:
                close_log()
            watching.of_convert(options.report)
            guarding.of_convert(options.guard)
        except BaseException:
            _end()
            raise


def _make_policy(level: str, options: Options) -> tuple[Policy, Preset]:
    """Returns the policy, and the preset that says what the options leave to it."""
    lower_path, fp32_path, preset = options.bf16_file_path, options.fp32_file_path, options.preset
    given = given_rules(options.rules, options.lower)
    exact = exact_code(options.exact)
    if options.opt_level == "O2" and preset == "half":
        raise ValueError(
            'opt_level="O2" runs all but products in float32, and preset="half" casts nothing: leave one of them out'
        )
    if options.rules and options.opt_level == "O0":
        warn('the rules are ignored: opt_level="O0" casts nothing')
    if options.opt_level != "O1" and (lower_path or fp32_path or preset):
        warn(f'the lists are ignored: opt_level="{options.opt_level}" does not use them')
    if options.opt_level == "O2":
        start, policy = Preset("", ""), policy_o2(options.lower, given)
    else:
        start = preset_named("hmp-default" if preset is None else preset)
        own = given_list("bf16_file_path", lower_path), given_list("fp32_file_path", fp32_path)
        policy = policy_from_lists(start, options.lower, own, given=given)
    return replace(left_alone(policy) if level == "O0" else policy, exact=exact, strict=options.strict), start


@refused_in_graphs
def restore() -> None:
    """Undoes :func:`convert`: torch is exactly as before, and the log is closed. Without a ``convert`` it does nothing.

    ::

        hmp.convert()
        model(batch)      # with casts
        hmp.restore()
        model(batch)      # as if this package were not there

    The patches of regions are removed too. A region that is open then casts nothing until torch is patched again, and
    it ends normally. A record that is open goes on.
    """
    installation.check_alone()
    forget_kept()
    _end()


def _end() -> None:
    """Ends what ``convert`` began."""
    try:
        guarding.end()  # it may warn
    finally:
        installation.restore()
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


def report(file: TextIO | None = None, *, show: bool = True, ranks: bool = False) -> Report:
    """Prints what ran in which precision so far, where and why, and returns the same as data.

    ::

        hmp.report()                                       # prints
        hmp.report(show=False).to_html("report.html")      # a page for a browser

    The finest detail that ``convert(report=...)`` or :func:`watch` requested decides how exact the places are.

    Args:
        file: The stream to print to. None: ``sys.stdout``, or in a notebook the cell, as a table.
        show: False to print nothing and only return the data.
        ranks: True for one report of all ranks of torch.distributed. All ranks must call it; all return it, and rank 0
            prints it.

    Raises:
        TypeError: a ``file`` that is not a stream.
    """
    if file is not None and not hasattr(file, "write"):
        raise TypeError(
            f"`file` must be a stream to write text to, or None; got {type(file).__name__}: {file!r}. For more detail "
            'write `hmp.convert(report="lines")` before the calls, for a file `hmp.report().to_html("report.html")`'
        )
    current = of_all_ranks(counting.current()) if ranks else counting.current()
    if show and not (ranks and own_rank()):
        current.show(file)
    return current


def reset_report() -> None:
    """Resets all counts to zero."""
    counting.reset()
