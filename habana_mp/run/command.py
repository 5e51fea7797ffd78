"""``habana-mp run``: runs an unmodified script in mixed precision, and reports at its end what ran how."""

from __future__ import annotations

import argparse
import atexit
import os
from collections.abc import Sequence

from habana_mp.policy.options import LEVEL_VARIABLE, flags
from habana_mp.run.audit import audit_first_steps
from habana_mp.run.closing import Ending
from habana_mp.run.options import Conversion, absolute, options_given, parsed, script_parser
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
        audit_first_steps()
    ending = Ending(absolute(given.report_file), *follow(conversion), by_script=conversion.by_script)
    atexit.register(ending.at_exit)  # called after the handlers that the script registers
    try:
        script.run()
    except SystemExit as error:
        if error.code in (None, 0) and given.require_lowered and not ending.lowered():
            raise SystemExit(1) from None
        raise
    except BaseException as error:
        if given.gaudi is None and _is_about_gaudi(error):
            say("the script is written for Gaudi: `habana-mp run --gaudi` runs it on this machine's devices")
        raise
    return 1 if given.require_lowered and not ending.lowered() else 0


def _is_about_gaudi(error: BaseException) -> bool:
    """True for the errors of a script for Gaudi that runs without its packages, or without the device "hpu"."""
    if isinstance(error, ModuleNotFoundError):
        root = (error.name or "").partition(".")[0]
        return root in ("habana_frameworks", "habana_dataloader") or "torch.hpu" in str(error)
    return isinstance(error, AttributeError) and error.name == "hpu"


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
