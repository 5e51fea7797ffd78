"""Mixed precision for Accelerate."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator, __version__
from accelerate.logging import get_logger

from habana_mp.frameworks.common import convert, require, write_report

require("accelerate", __version__, "1.0")

_logger = get_logger("accelerate.habana_mp")


def prepare(accelerator: Accelerator, *objects: Any, **options: Any) -> Any:
    """Converts, and returns what ``accelerator.prepare(*objects)`` does, without Accelerate's own autocast.

    The results of the models are float32, as under Accelerate's own mixed precision, unless ``results`` is given. With
    ``mixed_precision="fp16"`` the lower precision is float16, where Accelerate has a GradScaler for it: on a GPU.
    ``accelerator.end_training()`` writes the report into ``accelerator.project_dir``. ``hmp.restore()`` ends the casts.

    Args:
        accelerator: The Accelerator.
        objects: What ``accelerator.prepare`` takes: models, optimizers, loaders, schedulers.
        options: Those of :func:`habana_mp.hmp.convert`, by default the recommended lists.
    """
    if accelerator.native_amp and accelerator.mixed_precision == "fp16":
        options = {"dtype": torch.float16, **options}
    convert({"results": "fp32", **options})
    if accelerator.native_amp:
        _logger.warning(
            f"habana_mp: Accelerate's own autocast (mixed_precision={accelerator.mixed_precision!r}) is off in these "
            "models. The lists of habana_mp decide"
        )
    has_autocast, accelerator.native_amp = accelerator.native_amp, False
    try:
        prepared = accelerator.prepare(*objects)
    finally:
        accelerator.native_amp = has_autocast  # gradients in float16 are unscaled if it is on
    if "end_training" not in vars(accelerator):  # in the first call of `prepare`
        end_training = accelerator.end_training

        def report_and_end() -> None:
            trackers = [one for one in accelerator.trackers if one.name == "tensorboard"]
            writer = trackers[0].writer if trackers and accelerator.is_main_process else None
            write_report(accelerator.project_dir, _logger, writer)
            end_training()

        accelerator.end_training = report_and_end
    return prepared
