"""``habana-mp run``: runs an unmodified script in mixed precision, and reports at its end what ran how."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
import types
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from habana_mp import _core, hmp
from habana_mp.common.devices import ACCELERATORS
from habana_mp.patches.tools import spawned_processes, started_processes
from habana_mp.policy.options import LEVEL_VARIABLE, flags
from habana_mp.reporting import counting, merging
from habana_mp.reporting.ranks import Children, Ranks
from habana_mp.reporting.report import Report
from habana_mp.run import closing
from habana_mp.run.audit import audit_first_steps
from habana_mp.run.options import Conversion, absolute, add_arguments, options_given
from habana_mp.run.script import Script

#: The seconds that a run waits at its end for each rank that its script started.
_PATIENCE_WITH_RANKS = 10.0

#: Options without a value.
_SWITCHES = ("--audit", "--gaudi", "--guard", "--verbose", "--require-lowered", "--help", "-h")

_USAGE = """habana-mp run [OPTION]... [--] SCRIPT [ARGUMENT]...
       habana-mp run [OPTION]... -m MODULE [ARGUMENT]..."""


def main(words: Sequence[str]) -> int:
    """Runs the command after ``habana-mp run``. An error or an exit of the script is passed on."""
    parser = own_parser()
    given, command, is_module = parsed(parser, words, "run")
    script = Script(command, is_module=is_module)
    conversion = _conversion(parser, given, script)
    ranks = Ranks()
    if given.gaudi is not None:
        _switch_gaudi_on(parser, given)
    try:
        warned = conversion.convert()
    except (ValueError, OSError) as error:
        parser.error(str(error))
    except (ImportError, RuntimeError) as error:
        _say(f"nothing can be converted here: {error}")
        return 1
    if ranks.rank == 0:
        for text in warned:
            _say(text)
    if given.audit:  # on all ranks, since a `state_dict()` of FullyShardedDataParallel waits for all
        audit_first_steps(_say if ranks.rank == 0 else lambda _: None)
    children = _follow_children(conversion)
    started = _follow_started(conversion, children.folder, given.gaudi)
    ending = _Ending(given.report_file, ranks, children, started, by_script=conversion.by_script)
    atexit.register(ending.at_exit)  # called after the handlers that the script registers
    misplaced = [] if ranks.rank else _misplaced(parser, command)
    unread = [word for word in misplaced if not script.may_read(word)]
    _point_out(unread, script)
    try:
        script.run()
    except SystemExit as error:
        if error.code in (None, 0) and given.require_lowered and not ending.lowered():
            raise SystemExit(1) from None
        if error.code == 2:
            _point_out([word for word in misplaced if word not in unread], script)
        raise
    except BaseException as error:
        _show_without_ours(error)
        if given.gaudi is None and _is_about_gaudi(error):
            _say("the script is written for Gaudi: `habana-mp run --gaudi` runs it on this machine's devices")
        raise
    return 1 if given.require_lowered and not ending.lowered() else 0


def _is_about_gaudi(error: BaseException) -> bool:
    """True for the errors of a script for Gaudi that runs without its packages, or without the device "hpu"."""
    if isinstance(error, ModuleNotFoundError):
        root = (error.name or "").partition(".")[0]
        return root in ("habana_frameworks", "habana_dataloader") or "torch.hpu" in str(error)
    return isinstance(error, AttributeError) and error.name == "hpu"


# ---- the command line ------------------------------------------------------------------------------------------------


def own_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="habana-mp run",
        usage=_USAGE,
        description="Run an unmodified script in mixed precision, as `hmp.convert()` at its top would.",
        epilog="The exit status is the script's; 2 for wrong usage, 1 for what --require-lowered finds.",
        allow_abbrev=False,
    )
    add_arguments(parser, "run")
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


def parsed(
    parser: argparse.ArgumentParser, words: Sequence[str], verb: str
) -> tuple[argparse.Namespace, list[str], bool]:
    """Returns our options, the script's words, and True if these name a module. Ends the program without a script."""
    own, command, is_module = _split(words)
    given = parser.parse_args(own)
    if not command:
        parser.error("a MODULE must follow -m" if is_module else f"a SCRIPT to {verb} is missing")
    return given, command, is_module


def _split(words: Sequence[str]) -> tuple[list[str], list[str], bool]:
    """Returns our own words, those of the script, and True if these name a module. The script's are not parsed."""
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            rest = list(words[at + 1 :])
            return list(words[:at]), rest[1:] if rest[:1] == ["-m"] else rest, rest[:1] == ["-m"]
        if word.startswith("-m"):
            name = [word[2:]] if word != "-m" else []
            return list(words[:at]), [*name, *words[at + 1 :]], True
        if not word.startswith("-"):
            break
        at += 1 if word in _SWITCHES or "=" in word else 2
    return list(words[:at]), list(words[at:]), False


def _misplaced(parser: argparse.ArgumentParser, command: Sequence[str]) -> list[str]:
    """Returns our options behind the script. The script may have options of the same names."""
    ours = set(re.findall(r"--[a-z0-9-]+", parser.format_help())) - {"--help"}
    return [word for word in command[1:] if word.partition("=")[0] in ours]


def _point_out(misplaced: list[str], script: Script) -> None:
    """Points out options that the script does not read, or that may be why it ended with the status of wrong usage."""
    for word in misplaced:
        _say(
            f"`{word}` stands behind the script, so the script gets it; write options of habana-mp before {script.name}"
        )


def _conversion(parser: argparse.ArgumentParser, given: argparse.Namespace, script: Script) -> Conversion:
    if given.report_file:
        given.report_file = absolute(given.report_file)
        if not given.report_file.endswith(closing.ENDINGS):
            parser.error(f"--report must be a file that ends in .html or .json; got {given.report_file}")
        if not os.path.isdir(os.path.dirname(given.report_file)):
            parser.error(f"--report must be in a folder that is there; got {given.report_file}")
    try:
        script.check()
    except OSError as error:
        if given.gaudi == "" and script.name.partition(":")[0] in ("cpu", *ACCELERATORS):
            parser.error(f"a device stands after a `=`: --gaudi={script.name}")
        parser.error(f"cannot open the script: {error}")
    report = {"report": "modules" if given.report_file else "operations"}
    options = report | options_given(parser, given, "run")
    return Conversion(options, by_script=given.gaudi is not None, record=absolute(given.record))


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
        from habana_mp import gaudi

        gaudi.switch_on(given.gaudi or None)
        gaudi.prepare_children()
    except (ImportError, ValueError) as error:
        parser.error(str(error))


def _say(text: str) -> None:
    """Prints a line of habana_mp, even if the script redirects its own output."""
    if sys.__stderr__ is not None and not sys.__stderr__.closed:
        with contextlib.suppress(OSError, ValueError):  # a full disk, or a closed pipe: the script runs on
            print(f"habana-mp: {_core.printable(text)}", file=sys.__stderr__, flush=True)


# ---- the end ---------------------------------------------------------------------------------------------------------


class _Ending:
    """Reports what ran when the script has ended."""

    def __init__(
        self,
        path: str | None,
        ranks: Ranks,
        children: Children,
        started: list[subprocess.Popen[Any]],
        *,
        by_script: bool,
    ) -> None:
        self._path = path
        self._by_script = by_script
        self._ranks = ranks
        self._children = children
        self._started = started
        self._of_children: list[Report] = []
        self._process = os.getpid()
        self._found_nothing = False

    def lowered(self) -> bool:
        """True if anything ran in a lower precision. The first of several ranks decides for all: others return True."""
        if os.getpid() != self._process or self._ranks.rank or closing.ran_lower(counting.current()):
            return True
        self._found_nothing = not closing.ran_lower(self._whole())
        return not self._found_nothing

    def at_exit(self) -> None:
        """Writes the report and its first lines. All ranks but the first only leave their reports for it."""
        if os.getpid() != self._process:
            return  # a fork that ends like a script
        if self._ranks.rank:
            self._ranks.leave(self._of_this_rank())
            return
        report = self._whole()
        if missing := self._ranks.missing():
            _say(f"warning: the report is without rank {', '.join(map(str, missing))}, which left none in time")
        counted, wanted = max(self._ranks.count, 1 + len(self._of_children)), os.environ.get("WORLD_SIZE", "")
        if wanted.isdecimal() and counted < int(wanted):
            _say(
                f"warning: the report is of {counted} of {wanted} processes (WORLD_SIZE). The others are not "
                "converted, unless they convert themselves: start the script by torchrun"
            )
        where = ""
        if self._path is not None:
            try:
                closing.write(report, self._path)
                where = f"; the report is in {self._path}"
            except OSError as error:
                _say(f"the report could not be written: {error}")
        _say(f"{closing.line(report, by_script=self._by_script)}{where}")
        if self._found_nothing:
            _say(f"--require-lowered: {report.words[0][:1].lower()}{report.words[0][1:]}")
        shown = 1 if closing.ran_lower(report) or self._found_nothing else 0  # already said by the lines above
        for text in report.words[shown:] if report.rows else ():
            _say(text)

    def _of_this_rank(self) -> Report:
        for child in multiprocessing.active_children():
            if not child.daemon:
                child.join()  # as Python would do a little later
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE_WITH_RANKS)
        self._of_children += self._children.take()
        return merging.merged([counting.current(), *self._of_children], ranks=1)

    def _whole(self) -> Report:
        own = self._of_this_rank()
        return merging.merged([own, *self._ranks.others()], ranks=self._ranks.count)


def _show_without_ours(error: BaseException) -> None:
    """Makes Python show the traceback as if the script had been started by itself."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] == "habana_mp":
        trace = trace.tb_next
    hook = getattr(sys, "excepthook", sys.__excepthook__)

    def show(kind: type[BaseException], value: BaseException, whole: types.TracebackType | None) -> None:
        if value is error:
            error.__traceback__ = whole = trace
        hook(kind, value, whole)

    sys.excepthook = show


# ---- other processes -------------------------------------------------------------------------------------------------


class _ForChild:
    """Sent to a process that multiprocessing spawns. Unpickling it converts the process, before the script is imported
    there."""

    def __init__(self, conversion: Conversion, folder: str) -> None:
        self._conversion, self._folder = conversion, folder

    def __reduce__(self) -> tuple[Any, ...]:
        return _convert_child, (self._conversion, self._folder)


def _convert_child(conversion: Conversion, folder: str) -> None:
    # The log is the file of the process that began: to open it again would empty it.
    conversion = replace(conversion, options={**conversion.options, "log": None})
    conversion.convert()
    _follow_children(conversion, folder)


def begin_child(conversion: Conversion, folder: str, gaudi_device: str | None) -> None:
    """Converts a process that the script started. It leaves its report in the folder."""
    if gaudi_device is not None:
        from habana_mp import gaudi

        gaudi.switch_on(gaudi_device or None)
        gaudi.prepare_children()
    _convert_child(conversion, folder)
    _follow_started(conversion, folder, gaudi_device)


def run_as_its_own(script: Script) -> None:
    """Runs a script. A traceback is as if it had been started by itself."""
    try:
        script.run()
    except BaseException as error:
        _show_without_ours(error)
        raise


def _follow_started(conversion: Conversion, folder: str, gaudi_device: str | None) -> list[subprocess.Popen[Any]]:
    """From now on, scripts that `subprocess` starts are converted, and leave their reports. Returns the ranks."""
    how = json.dumps({"conversion": asdict(conversion), "folder": folder, "gaudi": gaudi_device})
    return started_processes.run_by(["-m", "habana_mp.run.started", how])


class _Followed:
    """Lives as long as the process: multiprocessing forgets callbacks whose owner is gone."""

    def __init__(self) -> None:
        self.process = os.getpid()


_followed: list[_Followed] = []


def _follow_children(conversion: Conversion, folder: str | None = None) -> Children:
    """From now on, processes of multiprocessing are converted, and leave their reports."""
    children = Children(folder)
    _followed.append(_Followed())

    def begin(followed: _Followed) -> None:
        if followed.process != os.getpid():  # a fork, which has inherited the counts of its parent
            hmp.reset_report()

    spawned_processes.send_to_children(
        "habana_mp.run",
        lambda: _ForChild(conversion, children.folder) if conversion.by_script or hmp.is_converted() else None,
    )
    spawned_processes.in_children(
        _followed[-1], begin, lambda: children.leave(counting.current()), is_child=folder is not None
    )
    return children
