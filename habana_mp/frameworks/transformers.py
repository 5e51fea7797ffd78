"""Mixed precision for the Trainer of transformers, and for trainers that derive from it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainingArguments, __version__
from transformers.utils import logging

from habana_mp.frameworks.common import convert, require, write_report

require("transformers", __version__, "4.50")

_logger = logging.get_logger("transformers.habana_mp")  # below transformers' own, so that its verbosity applies


@dataclass
class MixedPrecisionArguments:
    """Options of ``convert`` on a command line: ``HfArgumentParser((TrainingArguments, MixedPrecisionArguments))``."""

    hmp_preset: str | None = field(default=None, metadata={"help": "the lists; `habana-mp lists` shows their names"})
    hmp_bf16_file_path: str | None = field(default=None, metadata={"help": "a list file: what runs in bfloat16"})
    hmp_fp32_file_path: str | None = field(default=None, metadata={"help": "a list file: what runs in float32"})
    hmp_rules: list[str] = field(default_factory=list, metadata={"help": 'lines: "softmax @ encoder.**=fp32"'})
    hmp_guard: bool = field(default=False, metadata={"help": "name the operation that makes a NaN"})
    hmp_report: str | None = field(default=None, metadata={"help": "the detail: operations, modules or lines"})

    def options(self) -> dict[str, Any]:
        """Returns the arguments of ``convert``, without those that were not given."""
        given = {name.removeprefix("hmp_"): value for name, value in vars(self).items() if value}
        if self.hmp_rules:
            lines = [one.rpartition("=") for one in self.hmp_rules]
            given["rules"] = {line.strip(): precision.strip() for line, _, precision in lines}
        return given


class MixedPrecisionCallback(TrainerCallback):
    """Converts when the Trainer is made, and writes the report into its folder when the training ends.

    ``Trainer(..., args=args, callbacks=[MixedPrecisionCallback(args)])`` is all: Trainer's own autocast (``bf16=True``,
    ``fp16=True``) is off then. Casts stay on after the training, for evaluation; ``hmp.restore()`` ends them.

    Args:
        args: The arguments of the Trainer. The callback must be made before the Trainer, which reads them.
        options: Those of :func:`habana_mp.hmp.convert`, by default the recommended lists.
    """

    def __init__(self, args: TrainingArguments, **options: Any) -> None:
        self._options = options
        self._has_begun = False
        own = "fp16" if args.fp16 else "bf16" if args.bf16 else os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
        if own != "no":
            _logger.warning(f"habana_mp: Trainer's own autocast ({own}) is switched off. The lists of habana_mp decide")
        args.bf16 = args.fp16 = False
        # Trainer's Accelerator reads the first since transformers 5, and the second before.
        args.mixed_precision = os.environ["ACCELERATE_MIXED_PRECISION"] = "no"

    def on_init_end(self, *_: Any, **__: Any) -> None:
        convert(self._options)
        self._has_begun = True

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        if not self._has_begun:
            raise RuntimeError(
                "MixedPrecisionCallback must be in `callbacks=` of the Trainer; it was added after the Trainer was made"
            )

    def on_train_end(self, args: TrainingArguments, *_: Any, **__: Any) -> None:
        writer = _writer_beside(args) if args.should_save else None
        write_report(args.output_dir, _logger, writer)
        if writer is not None:
            writer.close()


def _writer_beside(args: TrainingArguments) -> Any:
    """Returns a writer into the folder of TensorBoard's latest file, or None. Trainer's own writer is closed."""
    folder = getattr(args, "logging_dir", None)  # before transformers 5
    folder = folder or os.environ.get("TENSORBOARD_LOGGING_DIR", args.output_dir)
    events = [] if "tensorboard" not in args.report_to else list(Path(folder).rglob("events.out.tfevents.*"))
    if not events:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(max(events, key=lambda one: one.stat().st_mtime).parent)
