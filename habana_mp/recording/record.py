"""``hmp.record``: writes what the calls of a block are given and return, to compare two runs."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import platform
from pathlib import Path
from typing import ClassVar, TextIO

import torch

from habana_mp.common import locks
from habana_mp.common.blocks import ProcessBlock
from habana_mp.common.version import __version__
from habana_mp.patches.installation import installation
from habana_mp.recording.recorder import Recorder
from habana_mp.reporting.ranks import own_rank
from habana_mp.scopes.scope import Scope

FORMAT, VERSION = "habana-mp record", 1

#: The number of values of each tensor.
_SAMPLE = 64


class Record(ProcessBlock, Scope):
    """The result of :func:`record`."""

    _name = "record"
    _advice = 'hmp.record(...) alone does nothing: write `with hmp.record("folder"):` around the steps to record'

    #: The record that runs in this process.
    _running: ClassVar[Record | None] = None

    def __init__(self, path: str | os.PathLike[str], sample: int) -> None:
        self._folder, self._sample = Path(path), sample
        self._recorder = Recorder(self._opened, sample)
        self._file_name = ""
        self._is_begun = False

    def settle(self) -> None:
        """Begins the record, or ends it. If it has ended before, it goes on."""
        self._is_used = True
        with locks.installation:
            running = Record._running
            if self.entrances and not self._is_begun:
                if running is not None and running is not self:
                    if running.entrances:
                        raise RuntimeError("another record runs: end it first")
                    running.settle()  # Ctrl-C came twice while it ended
                self._folder.mkdir(parents=True, exist_ok=True)
                Record._running = self
                self._recorder.begin()
                installation.set_observer("record", self._recorder.answer, is_on=True)
                self._is_begun = True
            elif not self.entrances and running is self:
                self._is_begun = False
                installation.set_observer("record", self._recorder.answer, is_on=False)
                self._recorder.end()
                Record._running = None

    def _opened(self) -> TextIO:
        """Opens the file: a new one, or that which this record has begun."""
        goes_on = bool(self._file_name)
        self._file_name = self._file_name or _process()
        path, mode = self._folder / f"{self._file_name}.jsonl", "a" if goes_on else "w"
        file = io.TextIOWrapper(path.open(mode + "b"), "utf-8", line_buffering=True)
        if not goes_on:
            file.write(f"{json.dumps(self._header())}\n")
        return file

    def _header(self) -> dict[str, object]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "sample": self._sample,
            "torch": torch.__version__,
            "habana_mp": __version__,
            "python": platform.python_version(),
            "configuration": installation.described,
        }


def _process() -> str:
    """Returns the name of this process's file: the same in each run of a program."""
    rank = os.environ.get("RANK", own_rank())
    if rank is not None:
        return f"rank-{rank}"
    number = multiprocessing.current_process()._identity
    return "-".join(map(str, ("process", *number))) if number else "main"


def record(path: str | os.PathLike[str], *, sample: int = _SAMPLE) -> Record:
    """Records what each call of torch is given and returns while a block or a function runs, in all threads.

    ::

        with hmp.record("before"):
            loss = criterion(model(inputs), targets)
            loss.backward()
        ...
        print(hmp.compare("before", "after"))

    It changes no value and no decision. Each process writes one file into the folder, as it runs.

    Args:
        path: The folder, a new one for each run. It is made if it is not there.
        sample: The number of values of each tensor, at positions that depend on its size alone.

    Raises:
        ValueError: a ``sample`` below 1.
        OSError: the folder cannot be made.
        RuntimeError: another record runs.
    """
    if not isinstance(sample, int) or isinstance(sample, bool) or sample < 1:
        raise ValueError(f"`sample` must be a whole number of at least 1; got {sample!r}")
    return Record(path, sample)
