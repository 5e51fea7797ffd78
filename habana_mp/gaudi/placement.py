"""Logs where an operation ran, if Gaudi's environment variables request it.

``PT_HPU_LOG_MOD_MASK=0x80 PT_HPU_LOG_TYPE_MASK=0x8`` requests the CPU fallback logs. If ``"hpu"`` leads to the CPU,
every operation falls back to it; on any other device none does.
"""

from __future__ import annotations

import os

import torch

from habana_mp.gaudi.devices import logger
from habana_mp.gaudi.patches.seen_operations import Seen
from habana_mp.gaudi.switch import devices

_CPU_FALLBACK, _DEBUG = 0x80, 0x8

_logged: set[tuple[str, str, torch.dtype]] = set()
_modes: list[Seen] = []


def _mask(variable: str, default: int) -> int:
    given = os.environ.get(variable, "")
    try:
        return int(given, 16) if given else default
    except ValueError as error:
        raise ValueError(f"{variable} must be a mask in hexadecimal, such as 0x80; got {given!r}") from error


def log_placement_if_asked() -> None:
    """From now on, in this thread, each operation is logged once for each dtype."""
    asked = _mask("PT_HPU_LOG_MOD_MASK", 0) & _CPU_FALLBACK and _mask("PT_HPU_LOG_TYPE_MASK", _DEBUG) & _DEBUG
    if asked and not _modes and devices().real.type == "cpu":
        _modes.append(Seen(_log_once))
        _modes[0].__enter__()


def _log_once(operation: str, argument: str, tensor: torch.Tensor) -> None:
    key = operation, argument, tensor.dtype
    if key not in _logged and tensor.device.type == "cpu":
        _logged.add(key)
        kind = tensor.type().rpartition(".")[2].removesuffix("Tensor")  # such as torch.FloatTensor
        logger.info("CPU fallback %s : %s=HABANA%sType", operation, argument, kind)
