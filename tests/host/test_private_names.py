"""Where things may stand: private names of torch, of Python and of libraries, and includes between folders of the core.

Private names stand in ``habana_mp/patches/`` only, where they are checked.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import habana_mp

PACKAGE = Path(habana_mp.__file__).parent

#: Where they may stand besides: what finds torch's builtins.
FINDERS = {"ops.py", "ops/find.py"}

_PATH = re.compile(r"torch(\.\w+)+")


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def has_private_part(path: str) -> bool:
    return any(map(is_private, path.split(".")))


def is_ours(module: str | None, level: int = 0) -> bool:
    return level > 0 or (module or "").partition(".")[0] in ("habana_mp", "__future__")


def names_of_others(tree: ast.AST) -> set[str]:
    """The names in this module that stand for something of another package."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(one.asname or one.name).partition(".")[0] for one in node.names if not is_ours(one.name)}
        elif isinstance(node, ast.ImportFrom) and not is_ours(node.module, node.level):
            found |= {one.asname or one.name for one in node.names}
    return found


def root_of(node: ast.AST) -> str | None:
    """The name that a chain of attributes begins with."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def private_names(source: str) -> Iterator[str]:
    """What a module knows of the private insides of others, with the line."""
    tree = ast.parse(source)
    others = names_of_others(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [one.name for one in node.names if has_private_part(one.name) and not is_ours(one.name)]
        elif isinstance(node, ast.ImportFrom) and not is_ours(node.module, node.level):
            paths = [f"{node.module}.{one.name}" for one in node.names]
            found = [path for path in paths if has_private_part(path)]
        elif isinstance(node, ast.Attribute) and is_private(node.attr) and root_of(node) in others:
            found = [ast.unparse(node)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _PATH.fullmatch(node.value):
            found = [repr(node.value)] if has_private_part(node.value) else []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("attr"):
            name = node.args[1] if len(node.args) > 1 else None
            is_one = isinstance(name, ast.Constant) and isinstance(name.value, str) and is_private(name.value)
            found = [ast.unparse(node)] if is_one and root_of(node.args[0]) in others else []
        else:
            found = []
        yield from (f"{getattr(node, 'lineno', 0)}: {one}" for one in found)


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(("patches/", "gaudi/patches/")) and name not in FINDERS:
            yield name, path


def test_private_names_of_others_stand_in_the_patches_only() -> None:
    found = [f"{name}:{one}" for name, path in modules() for one in private_names(path.read_text(encoding="utf-8"))]
    assert not found, "move what needs these into habana_mp/patches/, with an entry in the ledger:\n" + "\n".join(found)


#: The folders of the core from the ground up. Each includes only those before it, and files of ``src/`` itself.
LAYERS = ("rules", "kernels", "host", "tensor", "weights", "log", "watch", "engine")


def includes_that_run_up(sources: Path) -> Iterator[str]:
    for path in sorted(sources.rglob("*.?pp")):
        folder = path.relative_to(sources).parts[0]
        if folder not in LAYERS:
            continue
        for included in re.findall(r'#include "(\w+)/', path.read_text("utf-8")):
            if LAYERS.index(included) > LAYERS.index(folder):
                yield f"{path.relative_to(sources)} includes {included}/"


def test_no_folder_of_the_core_includes_one_above_it() -> None:
    assert not list(includes_that_run_up(PACKAGE.parent / "src"))
