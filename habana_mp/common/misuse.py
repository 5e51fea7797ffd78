"""Errors that explain the right use of a function after a wrong one, such as ``with hmp.convert():``."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any, NoReturn


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
not_a_block: Any = _NotABlock()


def check_keywords(function: Callable[..., Any], keywords: dict[str, Any]) -> None:
    """Raises TypeError for a keyword that the function does not have, and names the one that may be meant."""
    known = [*inspect.signature(function).parameters]
    for name in keywords:
        if name in known:
            continue
        near = [one for one in known if name.lower() in one.lower() or one.lower() in name.lower()]
        near = near or difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"it has {', '.join(known)}"
        raise TypeError(f"`hmp.{function.__name__}` has no argument `{name}`; {hint}")
