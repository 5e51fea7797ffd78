"""``habana-mp explain``: what would happen to an operation in a module, and which line or rule decides it."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any

import torch

from habana_mp import hmp
from habana_mp.reporting.explanation import module_at
from habana_mp.run.options import add_arguments, options_given


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Adds the command to ``commands``, those of `argparse`, and returns its parser."""
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
    return parser


def show(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Runs the command. Returns the exit status."""
    if given.operation is None and given.module is None:
        parser.error("an OPERATION or --module is needed")
    options = options_given(parser, given, "explain")
    model = None if given.module is None else _model(given.module, parser)
    try:
        hmp.convert(**options)
        if given.operation is None:
            print(hmp.explain(model))
        elif model is not None and given.path and module_at(given.path, model) is None:
            parser.error(
                f"no module of {type(model).__name__} is at `{given.path}`; --module without OPERATION shows all"
            )
        else:
            print(hmp.explain(given.operation, given.path))
    except (ValueError, OSError) as error:
        parser.error(str(error))
    finally:
        hmp.restore()
    return 0


def _model(name: str, parser: argparse.ArgumentParser) -> torch.nn.Module:
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        parser.error(f"--module must be PACKAGE.MODULE:FUNCTION; got {name}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        build = getattr(importlib.import_module(module), function)
    except (Exception, SystemExit) as error:  # a user's module may raise anything when it is imported
        parser.error(f"cannot import `{name}`: {type(error).__name__}: {error}")
    model = build() if callable(build) and not isinstance(build, torch.nn.Module) else build
    if not isinstance(model, torch.nn.Module):
        parser.error(f"`{name}` returns no torch.nn.Module, and is none; it gave {type(model).__name__}")
    return model
