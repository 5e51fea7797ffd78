"""Runs a script up to the end of one step, for ``habana-mp diagnose``, and writes what the step gave.

python -m habana_mp.run.diagnosed_script JOB RESULT
"""

from __future__ import annotations

import pickle
import random
import sys
from contextlib import suppress
from pathlib import Path

import torch

from habana_mp import hmp
from habana_mp.diagnosis.diagnosis import diagnosed_process
from habana_mp.diagnosis.observing import observer_of
from habana_mp.diagnosis.replays import Replays
from habana_mp.diagnosis.sites import Locator
from habana_mp.run.diagnose import Job
from habana_mp.run.script import Script


def main(job_path: str, result_path: str) -> None:
    job: Job = pickle.loads(Path(job_path).read_bytes())
    _seed()
    job.conversion.convert()
    script = Script(job.words, is_module=job.is_module)

    def step() -> None:
        with suppress(SystemExit):
            script.run()

    replays = Replays(step, skipped=job.skipped, compares_outputs=True)
    observer = observer_of(job.mode, Locator())
    with diagnosed_process(), replays.from_same_state():
        run = replays.run(observer)
    if replays.has_looked:
        Path(result_path).write_bytes(pickle.dumps(run))
    hmp.restore()


def _seed() -> None:
    torch.manual_seed(0)
    random.seed(0)
    with suppress(ImportError):
        import numpy as np

        np.random.seed(0)


if __name__ == "__main__":
    main(*sys.argv[1:3])
