"""``habana-mp run``: runs an unmodified script in mixed precision, and reports at its end what ran how."""

from __future__ import annotations

import argparse
import atexit
import os
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from habana_mp import hmp
from habana_mp.patches.torch.module_holders import all_modules
from habana_mp.patches.torch.stepped_weights import copies
from habana_mp.policy.options import LEVEL_VARIABLE, flags
from habana_mp.run.closing import Ending
from habana_mp.run.options import Conversion, absolute, options_given, parsed, point_out, script_parser
from habana_mp.run.processes import follow
from habana_mp.run.script import say


def main(words: Sequence[str]) -> int:
    """Runs the command after ``habana-mp run``. An error or an exit of the script is passed on."""
    parser = own_parser()
    given, script = parsed(parser, words)
    report = {"report": "modules" if given.report_file else "operations"}
    options = report | options_given(parser, given, "run")
    conversion = Conversion(options, by_script=given.gaudi is not None, record=absolute(given.record))
    if conversion.by_script:
        _switch_gaudi_on(parser, given)
    try:
        warned = conversion.convert()
    except (ValueError, OSError) as error:
        parser.error(str(error))
    except (ImportError, RuntimeError) as error:
        say(f"nothing can be converted here: {error}")
        return 1
    for text in warned:
        say(text)
    if given.audit:  # on all ranks, since a `state_dict()` of FullyShardedDataParallel waits for all
        _audit_first_steps()
    ending = Ending(absolute(given.report_file), *follow(conversion), by_script=conversion.by_script)
    atexit.register(ending.at_exit)  # called after the handlers that the script registers
    try:
        script.run()
    except SystemExit as error:
        if error.code in (None, 0) and given.require_lowered and not ending.lowered():
            raise SystemExit(1) from None
        if error.code == 2:  # wrong usage: one of these may be why
            point_out(parser, script, may_be_its_own=True)
        raise
    except BaseException as error:
        if given.gaudi is None and _is_about_gaudi(error):
            say("the script is written for Gaudi: `habana-mp run --gaudi` runs it on this machine's devices")
        raise
    return 1 if given.require_lowered and not ending.lowered() else 0


def _is_about_gaudi(error: BaseException) -> bool:
    """True for the errors of a script for Gaudi that runs without its packages, or without the device "hpu"."""
    if not isinstance(error, ModuleNotFoundError | AttributeError):
        return False
    root = (error.name or "").partition(".")[0]
    return root in ("habana_frameworks", "habana_dataloader", "hpu") or "torch.hpu" in str(error)


def own_parser() -> argparse.ArgumentParser:
    parser = script_parser(
        "run",
        "Run an unmodified script in mixed precision, as `hmp.convert()` at its top would.",
        "The exit status is the script's; 2 for wrong usage, 1 for what --require-lowered finds.",
    )
    parser.add_argument(
        "--report",
        dest="report_file",
        metavar="FILE",
        help="write the report there, as its ending says: .html or .json",
    )
    parser.add_argument(
        "--record",
        metavar="FOLDER",
        help="write there what each call is given and returns, for `habana-mp diff` with another run",
    )
    parser.add_argument(
        "--gaudi",
        nargs="?",
        const="",
        metavar="DEVICE",
        help='a script for Gaudi: "hpu" leads to this device (--gaudi=cuda), or the best there is; habana_frameworks '
        "can be imported, and the script itself converts",
    )
    parser.add_argument(
        "--audit", action="store_true", help="audit each model before its optimizer's first step, on standard error"
    )
    parser.add_argument("--require-lowered", action="store_true", help="exit 1 where nothing ran in lower precision")
    return parser


def _switch_gaudi_on(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    is_reference = getattr(given, "opt_level", "").upper() == "O0"
    for name, flag in flags("run").items():
        if hasattr(given, name) and name != "report" and not (is_reference and name == "opt_level"):
            parser.error(
                f"{flag.name} does not go with --gaudi: the script's own `hmp.convert` decides; --opt-level O0 alone "
                "does, and runs the script in float32"
            )
    if is_reference:
        os.environ[LEVEL_VARIABLE] = "O0"  # for the processes that the script starts too
    try:
        from habana_mp import gaudi  # it also prepares the processes that the script starts

        gaudi.switch_on(given.gaudi or None)
    except (ImportError, ValueError) as error:
        parser.error(str(error))


# ---- --audit ---------------------------------------------------------------------------------------------------------


def _audit_first_steps() -> None:
    """From now on, audits each optimizer with its models before its first step, and says the results line by line."""
    seen: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if optimizer in seen or optimizer in copies:
            return
        seen.add(optimizer)
        named = type(optimizer).__name__
        try:
            for model in list(_models(optimizer)):
                say(f"audit of {type(model).__name__} before the first step of {named}:")
                for line in filter(None, str(hmp.audit(model, optimizer)).splitlines()):
                    say(line)
        except Exception as error:  # the script runs on
            say(f"the audit of {named} failed: {type(error).__name__}: {error}")

    register_optimizer_step_pre_hook(look)


def _models(optimizer: torch.optim.Optimizer) -> Iterator[torch.nn.Module]:
    """Yields the outermost modules that have a weight of the optimizer."""
    weights = {id(one) for group in optimizer.param_groups for one in group["params"]}
    holders = [one for one in all_modules() if any(id(weight) in weights for weight in one.parameters())]
    inner = {id(part) for one in holders for part in one.modules() if part is not one}
    return (one for one in holders if id(one) not in inner)
