"""The options of ``convert``. Each is one field, from which functions, commands, child processes and docs take it."""

from __future__ import annotations

import argparse
import difflib
import functools
import inspect
import logging
import os
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, Literal, NoReturn, ParamSpec, TextIO, TypeVar, get_args

import torch

from habana_mp.common.errors import warn
from habana_mp.policy.exact import Given as GivenExact
from habana_mp.policy.lists import is_list_file
from habana_mp.policy.precisions import PRECISIONS, dtype_meant
from habana_mp.policy.presets import AS_COMPUTED, EVERYWHERE, FP32, MODULES, presets

_P = ParamSpec("_P")
_T = TypeVar("_T")

_Path = str | os.PathLike[str]
Detail = Literal["operations", "modules", "lines"]
DETAILS: tuple[Detail, ...] = get_args(Detail)
Guard = bool | float | Literal["raise"]
Within = str | torch.nn.Module | Iterable[torch.nn.Module] | None

#: This variable makes a script its own reference in float32: with the value O0 nothing is cast, whatever it requests.
LEVEL_VARIABLE = "HABANA_MP_OPT_LEVEL"
_VARIABLES = (LEVEL_VARIABLE, *(f"HABANA_MP_{one}" for one in ("BREAK", "GAUDI", "KERNELS", "TRACE")))

_LEVELS = {
    "O0": "nothing is cast",
    "O1": "the two lists decide",
    "O2": "GEMM and convolutions run in bf16, everything else in fp32",
}


def level_of_environment() -> str | None:
    """Returns ``"O0"`` if the environment switches all casts off, else None.

    Raises:
        ValueError: the variable has another value.
    """
    _warn_of_unknown_variables()
    given = os.environ.get(LEVEL_VARIABLE, "")
    if given.upper() not in ("", "O0"):
        raise ValueError(f"{LEVEL_VARIABLE} must be O0, which switches all casts off, or unset; got {given!r}")
    return given.upper() or None


@functools.cache  # once in a process
def _warn_of_unknown_variables() -> None:
    for name in (one for one in sorted(os.environ.keys() - _VARIABLES) if one.startswith("HABANA_MP_")):
        near = difflib.get_close_matches(name, _VARIABLES, n=1, cutoff=0)[0]
        warn(f"habana_mp has no environment variable {name}; the nearest one is {near}")


# ---- checks: each returns the final form of a value, or raises ValueError --------------------------------------------


def _level(name: str, given: Any) -> str:
    level = given.upper() if isinstance(given, str) else ""
    if level not in _LEVELS:
        levels = "; ".join(f'"{one}": {meaning}' for one, meaning in _LEVELS.items())
        raise ValueError(f"`{name}` must be one of {levels}; got {given!r}{_meant_by(given)}")
    return level


def _meant_by(given: object) -> str:
    """Returns a hint for slips: another argument in the place of the level, and a zero for the letter O."""
    if dtype_meant(given) in (torch.bfloat16, torch.float16):
        return f"; for the lower precision write `dtype={given!r}`"
    if is_list_file(given):
        return f"; for list files write `bf16_file_path={given!r}, fp32_file_path=...`"
    if not isinstance(given, str):
        return ""
    if given in presets():
        return f"; for the lists of that name write `preset={given!r}`"
    meant = given.upper().replace("0", "O", 1)
    return f'; write "{meant}" with the letter O' if meant in _LEVELS else ""


def _switch(name: str, given: object) -> bool:
    if not isinstance(given, bool):
        raise ValueError(f"`{name}` must be True or False; got {given!r}")
    return given


def _verbosity(name: str, given: object) -> bool | str:
    if isinstance(given, str) and given == "why":
        return given
    if isinstance(given, bool) or given is None or (type(given) is int and given in (0, 1)):  # as scripts pass it
        return bool(given)
    raise ValueError(f'`{name}` must be True, False or "why"; got {given!r}')


def lower_dtype(name: str, given: object) -> torch.dtype:
    dtype = dtype_meant(given)
    if dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"`{name}` must be torch.bfloat16 or torch.float16; got {given!r}")
    return dtype


def _within(name: str, given: Any) -> Within:
    """Returns None, ``"modules"``, ``"everywhere"`` or a list of modules."""
    if given is None or (isinstance(given, str) and given in (MODULES, EVERYWHERE)):
        return given
    if isinstance(given, torch.nn.Module):
        return [given]
    try:
        modules = [] if isinstance(given, str) else list(given)
    except TypeError:
        modules = []
    wrong = next((one for one in modules if not isinstance(one, torch.nn.Module)), given)
    if not modules or wrong is not given:
        what = f'None, "{MODULES}", "{EVERYWHERE}", a module or a list of modules'
        raise ValueError(f"`{name}` must be {what}; got {type(wrong).__name__}: {wrong!r}")
    return modules


def _results(name: str, given: object) -> str | None:
    if given is None or (isinstance(given, str) and given in (FP32, AS_COMPUTED)):
        return given
    raise ValueError(f'`{name}` must be None, "{FP32}" or "{AS_COMPUTED}"; got {given!r}')


def checked_detail(name: str, given: object) -> Detail:
    for known in DETAILS:
        if given == known:
            return known
    raise ValueError(f"`{name}` must be one of {', '.join(map(repr, DETAILS))}; got {given!r}")


def _guard(name: str, given: Any) -> Guard:
    if given is True or given is False or (isinstance(given, str) and given == "raise"):
        return given  # type: ignore[return-value]  # one of the three
    if isinstance(given, float) and 0 < given <= 1:
        return given
    raise ValueError(
        f'`{name}` must be True (1 % of the calls), False, "raise", or a share of the calls: a float above 0 and at '
        f"most 1.0, which is all calls; got {given!r}"
    )


def _limit(name: str, given: Any) -> int | None:
    if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 0):
        raise ValueError(f"`{name}` must be None or a number of bytes, 0 or more; got {given!r}")
    return given


# ---- the command line ------------------------------------------------------------------------------------------------


class Flag:
    """An option on the command line: its name, the commands that have it, and the arguments for `argparse`."""

    def __init__(self, name: str, *commands: str, **arguments: Any) -> None:
        self.name, self.commands, self.arguments = name, commands, arguments


def _guard_of_word(word: str) -> Guard:
    try:
        return _guard("--guard", word if word == "raise" else float(word))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f'it must be "raise" or a share of the calls, above 0 and at most 1.0; got {word}'
        ) from None


def _rule_of_word(word: str) -> tuple[str, str]:
    line, is_there, precision = word.rpartition("=")
    if not is_there:
        raise argparse.ArgumentTypeError(f'it must be LINE=PRECISION, as "softmax @ encoder.**=fp32"; got {word!r}')
    return line.strip(), precision.strip()


# ---- the table -------------------------------------------------------------------------------------------------------


def _option(
    default: Any,
    text: str,
    check: Callable[[str, Any], Any] | None = None,
    *,
    more: str = "",
    flag: Flag | None = None,
) -> Any:
    """Returns a field. ``text`` says what it is for, ``check`` checks it, ``more`` is its page in docs, ``flag`` is the
    option of commands."""
    return field(default=default, metadata={"text": text, "check": check, "more": more, "flag": flag})


_EACH = ("run", "diagnose", "explain")


@dataclass(frozen=True)
class Options:
    """The checked options of a conversion."""

    opt_level: str = _option(
        "O1",
        '``"O1"``: the two lists decide. ``"O2"``: GEMM and convolutions run in the lower precision, every other '
        'operation that computes runs in float32. ``"O0"``: nothing is cast. Lower-case letters are accepted.',
        _level,
        more="lists.md#levels",
        flag=Flag("--opt-level", *_EACH, metavar="LEVEL", help="O1 (the lists decide; the default), O2 or O0"),
    )
    bf16_file_path: _Path | None = _option(
        "",
        'A file with the operations for the lower precision, one name per line. ``""`` or None: the preset\'s list. '
        "The file is read during the call.",
        more="lists.md",
        flag=Flag("--bf16", *_EACH, metavar="FILE", help="a list file: what runs in the lower precision"),
    )
    fp32_file_path: _Path | None = _option(
        "",
        "The same for float32.",
        flag=Flag("--fp32", *_EACH, metavar="FILE", help="a list file: what runs in float32"),
    )
    isVerbose: bool | int | Literal["why"] | None = _option(  # noqa: N815  the name that scripts use
        False,
        'Logs each call of a covered operation and the decision about it. ``"why"``: also logs the reason and the line '
        "of the caller. 0 and None mean False, 1 means True. A ``log`` turns the log on too.",
        _verbosity,
        more="log.md",
        flag=Flag("--verbose", "run", action="store_true", help="log each call and what was decided"),
    )
    _: KW_ONLY
    preset: str | None = _option(
        None,
        'The lists to start from; ``habana-mp lists`` shows their names. The default is ``"hmp-default"``.',
        more="lists.md",
        flag=Flag(
            "--preset",
            *_EACH,
            "tune",
            help="the lists to start from; `habana-mp lists` shows all. The default is recommended; with lists or a "
            "level, and for `tune`, it is hmp-default",
        ),
    )
    dtype: torch.dtype | str = _option(
        torch.bfloat16,
        'The lower precision: ``torch.bfloat16`` or ``torch.float16``, or its name (``"bf16"``, ``"half"``).',
        lower_dtype,
        flag=Flag("--dtype", *_EACH, "tune", choices=["bf16", "fp16"], help="the lower precision; bf16 is the default"),
    )
    within: Within = _option(
        None,
        'The code in which operations are lowered. ``"modules"``: only while the forward of an ``nn.Module`` runs. A '
        "module or a list of modules: only while the forward of one of them runs. Elsewhere nothing is lowered, but "
        "tensors that are already in lower precision still follow the float32 list and rules 2 to 4. "
        '``"everywhere"``: wherever Python code calls torch. None: the preset decides; ``"recommended"`` lowers in '
        "modules, all others everywhere.",
        _within,
        more="rules.md#where-the-lists-lower-within",
        flag=Flag(
            "--within",
            "run",
            "diagnose",
            choices=[MODULES, EVERYWHERE],
            help="lower only while the forward of some module runs, or everywhere; the preset decides by default",
        ),
    )
    results: str | None = _option(
        None,
        'The precision of what leaves a model. ``"fp32"``: when the outermost module returns, its tensors in lower '
        "precision become float32, unless an argument or a Parameter that was used is in lower precision. "
        '``"as computed"``: they stay as they are. None: the preset decides; ``"recommended"`` gives float32, all '
        "others as computed.",
        _results,
        more="rules.md#what-leaves-a-model-results",
        flag=Flag(
            "--results",
            "run",
            "diagnose",
            choices=[FP32, AS_COMPUTED],
            help="the precision of what leaves a model; the preset decides by default",
        ),
    )
    rules: Mapping[str, str | torch.dtype] | None = _option(
        None,
        'Lines of lists, with ``"fp32"``, ``"bf16"``, ``"fp16"`` or ``"lower"`` (``dtype``) for each: '
        '``{"softmax @ encoder.**": "fp32", "* @ lm_head": "fp32"}``. They take precedence over equal lines of files '
        "and presets. What may follow ``@`` is in docs/patterns.md. ``O2`` obeys them too.",
        more="patterns.md",
        flag=Flag(
            "--rule",
            *_EACH,
            action="append",
            type=_rule_of_word,
            metavar="LINE=PRECISION",
            help='a line and its precision, as in `rules=` of convert: --rule "softmax @ encoder.**=fp32"',
        ),
    )
    strict: bool = _option(
        False,
        "True: a pattern of ``rules`` or of your list files that matches no module is a ValueError at the end of the "
        "first call of a model, not a warning. Lines without a pattern, and those of presets, are not judged.",
        _switch,
        more="patterns.md#patterns-that-match-nothing",
        flag=Flag("--strict", "run", action="store_true", help="a pattern that matches no module is an error"),
    )
    exact: Iterable[GivenExact] | None = _option(
        None,
        'Code in which no list lowers an operation: a list of names of packages and modules (``"package.module"``), '
        "which may be imported later, of modules, functions and classes. What such code calls is lowered as elsewhere. "
        "They are added to the libraries that ``exact_packages`` names.",
        more="rules.md#code-of-your-own-exact",
    )
    report: Detail = _option(
        "operations",
        'The detail of the report: by ``"operations"``, which are always counted, by ``"modules"``, or by ``"lines"`` '
        "of the calling code.",
        checked_detail,
        more="report.md#three-details",
        flag=Flag("--detail", "run", choices=DETAILS, help="what the report has a row for; `modules` with --report"),
    )
    guard: Guard = _option(
        False,
        "Looks for values that are not finite, and warns once with the operation that made the first one of finite "
        "inputs, its module, file and line. True: checks 1 % of the calls; a float above 0 and at most 1.0: this "
        'share; ``"raise"``: 1 %, and raises FloatingPointError. After such a value was seen, all calls are checked '
        "until the operation is named. Infinities that the code writes, as into a mask, do not count.",
        _guard,
        more="guard.md",
        flag=Flag(
            "--guard",
            "run",
            nargs="?",
            const=True,
            type=_guard_of_word,
            metavar="SHARE",
            help="warn of the operation that makes a value that is not finite; checks 1 %% of the calls, or this share "
            "(--guard 0.1; --guard 1.0: all calls), or --guard raise",
        ),
    )
    log: _Path | TextIO | logging.Logger | None = _option(
        None,
        "The destination of the log: None for the console, a path for a file (``.jsonl`` for JSON lines), or a "
        "``logging.Logger``. A destination turns the log on, whatever ``isVerbose`` is.",
        more="log.md",
        flag=Flag(
            "--log", "run", metavar="FILE", help="log each call of this process to a file (.jsonl for JSON lines)"
        ),
    )
    weight_cache: bool = _option(
        True,
        "Caches the casts of weights between calls. A weight that changed is cast again.",
        _switch,
        more="weights.md",
    )
    weight_cache_limit: int | None = _option(
        None,
        "The most bytes that cached casts may take. None: half of the free memory. The casts of all weights together "
        "take half of the weights' size.",
        _limit,
        more="weights.md#memory",
    )
    reuse_memory: bool = _option(
        True,
        "On the CPU, keeps up to 512 MB of freed memory for the next large casts, and as much in the C library's heap, "
        "instead of returning it to the system in every step.",
        _switch,
        more="performance.md",
    )

    def __post_init__(self) -> None:
        for one in fields(self):
            if one.metadata["check"] is not None:
                object.__setattr__(self, one.name, one.metadata["check"](one.name, getattr(self, one.name)))

    @property
    def lower(self) -> str:
        """The name of the lower precision."""
        return PRECISIONS[self.lower_dtype]

    @property
    def lower_dtype(self) -> torch.dtype:
        """The lower precision."""
        return lower_dtype("dtype", self.dtype)

    @property
    def results_in_float32(self) -> bool:
        """True if what leaves a model becomes float32."""
        return self.results == FP32

    @property
    def lowers_everywhere(self) -> bool:
        """True if the lists lower wherever Python code calls torch."""
        return self.within is None or self.within == EVERYWHERE

    @property
    def within_in_words(self) -> str | None:
        """The configuration's word for ``within``: None if the lists lower everywhere."""
        if self.lowers_everywhere:
            return None
        return MODULES if self.modules is None else "modules given"

    @property
    def modules(self) -> list[torch.nn.Module] | None:
        """The modules that ``within`` names; None if it names none."""
        return self.within if isinstance(self.within, list) else None


# ---- wrong uses ------------------------------------------------------------------------------------------------------


class _NotABlock:
    """The result of ``convert``. Used as a block or as a model, it raises an error that says what to write."""

    def __enter__(self) -> NoReturn:
        raise TypeError(
            "`hmp.convert()` is no block: it holds from here on, until `hmp.restore()`. For a block write `with "
            'hmp.autocast("cpu"):`, which takes `preset=` and list files too'
        )

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(
            "`hmp.convert()` returns no model: it changes torch itself. Write `hmp.convert()` on a line of its own "
            "and call your model as before"
        )

    def __repr__(self) -> str:
        return "converted; hmp.report() tells what ran in which precision, hmp.restore() takes it back"


#: The result of ``convert``.
_not_a_block: Any = _NotABlock()


def _check_keywords(function: Callable[..., Any], keywords: dict[str, Any]) -> None:
    """Raises TypeError for a keyword that the function does not have, and names the one that may be meant."""
    known = [*inspect.signature(function).parameters]
    for name in keywords:
        if name in known:
            continue
        near = [one for one in known if name.lower() in one.lower() or one.lower() in name.lower()]
        near = near or difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"it has {', '.join(known)}"
        raise TypeError(f"`hmp.{function.__name__}` has no argument `{name}`; {hint}")


def _reject_models(values: Iterable[object]) -> None:
    """Raises TypeError for a model or an optimizer, which ``apex.amp.initialize`` takes."""
    kinds = (torch.nn.Module, torch.optim.Optimizer)
    each = [one for value in values for one in (value if isinstance(value, (list, tuple)) else [value])]
    found = [type(one).__name__ for one in each if isinstance(one, kinds)]
    if found:
        raise TypeError(
            "`hmp.convert` takes no model and no optimizer: it works on all of torch, whatever the model, and "
            "returns nothing. Write `hmp.convert()`, or `hmp.convert(within=model)` to lower only while the "
            f"model's forward runs; got {', '.join(found)}"
        )


def flags(command: str) -> dict[str, Flag]:
    """Returns what a command has on its command line, by the name of the option."""
    found = {one.name: one.metadata["flag"] for one in fields(Options)}
    return {name: flag for name, flag in found.items() if flag is not None and command in flag.commands}


def takes_options(options: Callable[_P, _T]) -> Callable[[Callable[[_T], None]], Callable[_P, None]]:
    """Gives a function the parameters of :class:`Options`, and their description in its docstring. In a ``with``
    statement its result raises, and says why."""

    def decorate(function: Callable[[_T], None]) -> Callable[_P, None]:
        @functools.wraps(function)
        def taking(*args: _P.args, **kwargs: _P.kwargs) -> Any:
            _reject_models([*args, *(value for name, value in kwargs.items() if name not in ("within", "exact"))])
            _check_keywords(taking, kwargs)
            function(options(*args, **kwargs))
            return _not_a_block

        taking.__signature__ = inspect.signature(options)  # type: ignore[attr-defined]  # inspect asks for it
        taking.__doc__ = (function.__doc__ or "").replace("{options}", _described())
        return taking

    return decorate


def _described() -> str:
    """Returns the lines about the options for a docstring."""
    lines = [f"{one.name}: {one.metadata['text']}" for one in fields(Options)]
    return "\n".join(
        textwrap.fill(line, 120, initial_indent=8 * " ", subsequent_indent=12 * " ", break_on_hyphens=False)
        for line in lines
    ).lstrip()
