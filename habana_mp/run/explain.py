"""``habana-mp explain``: what would happen to an operation in a module, and which line or rule decides it."""

from __future__ import annotations

import argparse
import re
from typing import Any

import torch

from habana_mp import hmp
from habana_mp.reporting.explanation import module_at
from habana_mp.run.options import add_arguments, imported, options_given


def add_parser(commands: Any) -> None:
    """Adds the command to ``commands``, those of `argparse`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "explain",
        help="what would happen to an operation in a module, and which line or rule decides it",
        usage="habana-mp explain OPERATION [MODULE] [OPTION]...\n"
        "       habana-mp explain --module PACKAGE.MODULE:FUNCTION [OPTION]...",
        epilog="Exit status: 0, or 2 for wrong usage.",
    )
    parser.add_argument("operation", nargs="?", metavar="OPERATION", help="a name as in a list: softmax")
    parser.add_argument("path", nargs="?", default="", metavar="MODULE", help="the path of a module: encoder.layer.0")
    parser.add_argument(
        "--module",
        metavar="PACKAGE.MODULE:FUNCTION",
        help="a function that returns the model; without an OPERATION all its modules are shown",
    )
    add_arguments(parser, "explain")
    parser.set_defaults(run=lambda given: _show(given, parser))


def _show(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    if given.operation is None and given.module is None:
        parser.error("an OPERATION or --module is needed")
    options = options_given(parser, given, "explain")
    model = None if given.module is None else _model(given.module)
    try:
        hmp.convert(**options)
        if given.operation is None:
            print(hmp.explain(model))
        elif model is not None and given.path and module_at(given.path, model) is None:
            raise ValueError(
                f"no module of {type(model).__name__} is at `{given.path}`; --module without OPERATION shows all"
            )
        else:
            print(hmp.explain(given.operation, given.path))
    finally:
        hmp.restore()
    return 0


def _model(name: str) -> torch.nn.Module:
    if not re.fullmatch("[^:]+:[^:]+", name):
        raise ValueError(f"--module must be PACKAGE.MODULE:FUNCTION; got {name}")
    build = imported(name)
    model = build() if callable(build) and not isinstance(build, torch.nn.Module) else build
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"`{name}` returns no torch.nn.Module, and is none; it gave {type(model).__name__}")
    return model
