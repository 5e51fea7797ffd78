"""Writes lines to the log, and reads what arrived."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from habana_mp import _core
from habana_mp.reporting.records import PRECISIONS, REASONS

MUL = "<method '__mul__' of 'torch._C.TensorBase' objects>"


def emit(
    representation: str = MUL, operation: str = "mul", precision: str = "bf16", reason: str = "list", casts: int = 2
) -> None:
    _core._log_operation(representation, operation, PRECISIONS.index(precision), list(REASONS).index(reason), casts)


def line_of(representation: str, precision: str = "bf16") -> str:
    return f"casting  {representation}  to  to_{precision}"


def read(path: Path) -> str:
    _core.log_flush()
    return path.read_text(encoding="utf-8")


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in read(path).split("\n")[:-1]]


class Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.during: Callable[[], object] = lambda: None

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.during()

    @property
    def lines(self) -> list[str]:
        return [record.getMessage() for record in self.records]


# Loads the core without the package: importing the package imports torch, which takes a second or two in each script.
LOAD_CORE = f"""
import importlib.util
_spec = importlib.util.spec_from_file_location("_core", {_core.__file__!r})
_core = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_core)
"""


def script(source: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LOAD_CORE + source, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
