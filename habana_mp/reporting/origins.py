"""Where a call comes from: its line, and the modules whose forward runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from habana_mp.common.places import frames, is_passed_over
from habana_mp.patches.tools.tapped_calls import CODE_OF_CALLS
from habana_mp.patches.torch.module_paths import module_name
from habana_mp.patches.torch.watched_calls import compiler_files
from habana_mp.reporting.records import short_place


@dataclass(frozen=True)
class Origin:
    """The innermost line of code that belongs neither to torch nor to Python, and the running modules, the innermost
    first."""

    file: str
    line: int
    modules: tuple[Any, ...] = ()
    #: True inside of a function that is compiled otherwise.
    is_compiled: bool = False

    @property
    def module(self) -> str:
        """The path of the module, as the report shows it; empty outside of modules."""
        names: list[str] = []
        around = list(self.modules)
        while around:
            module = around.pop(0)
            steps, name, _ = module_name(module, around)
            if name:
                names.append(name)
            around = around[steps:] if steps >= 0 else []
        return ".".join(reversed(names))

    def __str__(self) -> str:
        module = self.module
        compiled = " (compiled code, which was run as it is written to see its operations)" if self.is_compiled else ""
        return (f"in {module}, " if module else "") + f"at {short_place(self.file, self.line)}{compiled}"


def here() -> Origin:
    """Returns the origin of the call that runs."""
    compilers = compiler_files()
    place: tuple[str, int] | None = None
    modules: list[torch.nn.Module] = []
    is_compiled = False
    for frame in frames():
        code = frame.f_code
        if code is CODE_OF_CALLS:
            module = frame.f_locals.get("self")
            if isinstance(module, torch.nn.Module):
                modules.append(module)
        elif place is None and not is_passed_over(code.co_filename):
            place = code.co_filename, frame.f_lineno
        elif not is_compiled and code.co_filename.startswith(compilers):
            is_compiled = True
    return Origin(*(place or ("<unknown>", 0)), tuple(modules), is_compiled)
