"""Mixed precision for PyTorch-Ignite."""

from __future__ import annotations

import os
from typing import Any

from ignite import __version__
from ignite.engine import Engine, Events

from habana_mp.frameworks.common import convert, require, write_report

require("pytorch-ignite", __version__, "0.5")


def attach(trainer: Engine, folder: str | os.PathLike[str] = ".", writer: Any = None, **options: Any) -> None:
    """Converts, and writes the report into a folder when the trainer's run is completed.

    Casts stay on after it, for evaluators; ``hmp.restore()`` ends them. Make the trainer without ``amp_mode``.

    Args:
        trainer: The engine of the training.
        folder: The folder for ``habana_mp.html``.
        writer: A ``SummaryWriter`` for TensorBoard, such as ``TensorboardLogger(...).writer``.
        options: Those of :func:`habana_mp.hmp.convert`, by default the recommended lists.
    """
    convert(options)
    trainer.add_event_handler(Events.COMPLETED, lambda engine: write_report(folder, engine.logger, writer))
