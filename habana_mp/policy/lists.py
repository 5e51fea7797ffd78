"""Reads operation lists: one name per line, in all forms that users wrote over the years."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import defaultdict
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from habana_mp.common.errors import ListError, warn
from habana_mp.common.paths import PACKAGE
from habana_mp.policy.patterns import problem_of_pattern
from habana_mp.policy.precisions import FLOAT32_RESULT

#: The folder of the shipped lists: inside the installed package, or beside the package in a checkout.
DIRECTORY = next(
    (folder for folder in (PACKAGE / "lists", PACKAGE.parent / "lists") if folder.is_dir()),
    PACKAGE / "lists",
)


#: Stands between the operation and the modules in which it is meant: `softmax @ encoder.layer.*`.
IN_MODULES = "@"
#: Stands before the precision of the result: `linear @ lm_head -> fp32`.
RESULT = "->"
#: In place of an operation: every operation that computes.
EVERY = "*"
#: Other arrows: a line with one of these is an error.
_OTHER_ARROWS = re.compile(r"=>|-\s+>|→|⇒|--+>")


#: The numbers of all lines that were in force, by what a report says of them: the place, and True for a shipped list.
_numbers: defaultdict[tuple[str, bool], int] = defaultdict(count(1).__next__)


def line_numbered(number: int) -> tuple[str | None, bool]:
    """Returns the place of the line with this number, and True if the user wrote it. 0 stands for no line."""
    where, shipped = list(_numbers)[number - 1] if number else (None, True)
    return where, not shipped


@dataclass(frozen=True)
class Listed:
    """A name in a list, and its position."""

    name: str
    source: str
    line: int
    shipped: bool = False
    #: True if only the matrix products of its calls are meant, see :mod:`habana_mp.ops.products`.
    products_only: bool = False
    #: The error in the line itself, whatever the name means.
    problem: str = ""
    #: The modules in which it holds, see :mod:`habana_mp.policy.patterns`. Empty: everywhere.
    pattern: str = ""
    #: True if the result of the product is in float32.
    float32_result: bool = False

    @property
    def line_text(self) -> str:
        """The line as written."""
        named = f"{self.name} {IN_MODULES} {self.pattern}" if self.pattern else self.name
        return named + FLOAT32_RESULT if self.float32_result else named

    @property
    def number(self) -> int:
        """The number by which the rules of the core name the line."""
        return _numbers[self.where, self.shipped]

    def precision(self, of_list: str) -> str:
        """Returns the precision that the line gives in the list of this precision."""
        return of_list + FLOAT32_RESULT if self.float32_result else of_list

    @property
    def where(self) -> str:
        """File and line, as in errors."""
        return f"{self.source}:{self.line}" if self.line else self.source


def read_list(path: str | os.PathLike[str], *, source: str | None = None) -> tuple[Listed, ...]:
    """Reads a list file.

    Blank lines, ``#`` comments, surrounding spaces, CRLF, a byte order mark and a missing final newline are all fine,
    and so is an empty file. ``source`` is the name of the file in errors, by default its path. A line that does not
    hold exactly one name gets a ``problem``, so that the caller can report all problems together.

    Raises:
        OSError: the file is missing, a directory, or may not be read; the message says which and names the path.
        ListError: the content is not text; the message names the line.
    """
    path = os.fsdecode(path)
    source = path if source is None else source
    return parse_list(_read(path, source), source)


def is_list_file(given: object) -> bool:
    """True for the path of a file, and for one that ends as list files do."""
    return isinstance(given, (str, os.PathLike)) and (os.fsdecode(given).endswith(".txt") or os.path.isfile(given))


def given_list(argument: str, path: str | os.PathLike[str] | None) -> tuple[Listed, ...] | None:
    """Returns the list in a file, or None for None or an empty path. ``argument`` is its name in errors."""
    if path is None or path == "":
        return None
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise ListError(f"`{argument}` must be the path of a list file; got {type(path).__name__}: {path!r}")
    listed = read_list(path)
    if not listed and not Path(os.fsdecode(path)).read_bytes().strip():
        warn(
            f"{os.fsdecode(path)}: the list is empty: write one operation on each line, or leave `{argument}` out for "
            "the preset's list. A comment (`# ...`) in the file tells that it is meant so"
        )
    if listed and all(one.pattern for one in listed):
        warn(
            f"{os.fsdecode(path)}: every line holds in some modules only (`{IN_MODULES}`), so in all others this list "
            "is empty; pass the lines as `rules=` to keep the preset's list"
        )
    return listed


def parse_list(text: str, source: str) -> tuple[Listed, ...]:
    """Returns the names in the text of a list, as :func:`read_list` does."""
    listed = []
    # Not splitlines(): it also breaks at form feeds and other characters that editors do not count as lines.
    for number, line in enumerate(re.split(r"\r\n|\n|\r", text), start=1):
        name = line.partition("#")[0].strip()
        if not name:
            continue
        listed.append(parse_line(name, source, number))
    return tuple(listed)


def parse_line(text: str, source: str, line: int, *, shipped: bool = False) -> Listed:
    """Returns the name in one line of a list, with the pattern of modules and the precision of the result that may
    follow it."""
    named, arrow, result = (part.strip() for part in text.partition(RESULT))
    name, at, pattern = (part.strip() for part in named.partition(IN_MODULES))
    problem = ""
    if _OTHER_ARROWS.search(text):
        problem = f"the arrow before the precision of a result is `{RESULT}`; got `{_shorten(text)}`"
    elif name.replace(",", " ").split() != [name]:
        problem = f"a line must hold one operation name; got `{_shorten(text)}`"
    elif at:
        problem = problem_of_pattern(pattern)
    if arrow and not problem:
        problem = _problem_of_result(name, named, result)
    is_result = bool(arrow) and not problem
    return Listed(name, source, line, shipped, problem=problem, pattern=pattern if at else "", float32_result=is_result)


def _problem_of_result(name: str, named: str, result: str) -> str:
    if IN_MODULES in result:
        _, _, pattern = (part.strip() for part in result.partition(IN_MODULES))
        return f"the modules stand before the arrow: write `{named} {IN_MODULES} {pattern}{FLOAT32_RESULT}`"
    if result != "fp32":
        got = f"`{_shorten(result)}`" if result else f"nothing after `{RESULT}`"
        return f"the result of a product can be in fp32 only: write `{named}{FLOAT32_RESULT}`; got {got}"
    if name == EVERY:
        return (
            f"`{EVERY}` means every operation, and only a product can have a float32 result: name it, as "
            f"`{named.replace(EVERY, 'linear', 1)}{FLOAT32_RESULT}`"
        )
    return ""


def _read(path: str, source: str) -> str:
    if not path:
        raise ListError("a list file's path must not be empty")
    called = f"the operation list of {source.removesuffix(f': {path}')}" if source != path else "the operation list"
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError as error:
        raise FileNotFoundError(
            error.errno, f"{called} does not exist (looked in the working directory {os.getcwd()})", path
        ) from None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, f"{called} must be a file, not a directory", path)
    content = Path(path).read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ListError(
            f"{source}:{line}: an operation list must be UTF-8 text; byte {content[error.start]:#04x} is not"
        ) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ListError(f"{source}:{line}: an operation list must be text; this file holds zero bytes")
    return text


def _shorten(text: str, width: int = 60) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
