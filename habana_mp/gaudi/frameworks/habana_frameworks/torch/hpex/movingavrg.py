"""``habana_frameworks.torch.hpex.movingavrg``."""

from __future__ import annotations

import copy

import torch

from habana_mp import hmp

__all__ = ["FusedEMA"]


class FusedEMA:
    """A moving average of a model: ``.ema`` is a model that holds the average.

    Args:
        model: The model that is trained.
        decay: The part of the average that each :meth:`update` keeps.
    """

    def __init__(self, model: torch.nn.Module, decay: float = 0.9999) -> None:
        if not 0 <= decay <= 1:
            raise ValueError(f"`decay` must be from 0 to 1; got {decay!r}")
        self.ema = copy.deepcopy(_own(model)).eval()
        for parameter in self.ema.parameters():
            parameter.requires_grad_(False)
        self.decay = decay
        self.updates = 0

    @torch.no_grad()
    def update(self, model: torch.nn.Module) -> None:
        """Moves the average towards the model's weights and buffers. Tensors that are not floating-point are copied."""
        self.updates += 1
        trained = _own(model).state_dict()
        with hmp.disable_casts():
            for name, average in self.ema.state_dict().items():
                value = trained[name].detach()
                if average.is_floating_point() or average.is_complex():
                    average.lerp_(value.to(average), 1 - self.decay)
                else:
                    average.copy_(value)


def _own(model: torch.nn.Module) -> torch.nn.Module:
    """Returns the model itself, without a wrapper for several processes or devices."""
    wrappers = torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel
    return model.module if isinstance(model, wrappers) else model
