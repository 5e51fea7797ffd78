"""The reports of a run's other processes: torchrun's ranks, and processes that multiprocessing starts."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import tempfile
import time
import zlib
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import distributed

from habana_mp.reporting.merging import merged
from habana_mp.reporting.report import Report

#: The seconds that rank 0, when it has ended, waits for the reports of the others, and that each rank waits for the
#: store.
PATIENCE, TO_CONNECT = 60.0, 10.0


def own_rank() -> int | None:
    """Returns the rank of this process, or None if torch.distributed is not initialised."""
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else None


def of_all_ranks(report: Report) -> Report:
    """Returns the report of all ranks, the same in each. All must call it. Without other ranks it is this report."""
    return report if own_rank() is None else merged(gathered(report))


def gathered(value: Any) -> list[Any]:
    """Returns the values of all ranks, in their order. All must call it."""
    values = [value] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values


class Ranks:
    """The ranks of a process that torchrun started. They leave their reports in torchrun's store, which exists to the
    end, on all nodes, with or without a process group. Only the first rank waits."""

    def __init__(self) -> None:
        under_torchrun = "TORCHELASTIC_RUN_ID" in os.environ and distributed.is_available()
        self.rank = int(os.environ["RANK"]) if under_torchrun else 0
        self.count = int(os.environ["WORLD_SIZE"]) if under_torchrun else 1
        self._reports: dict[int, Report] = {}

    def leave(self, report: Report) -> None:
        """Leaves the report of this rank for the first one."""
        with suppress(RuntimeError):  # the store is gone: the first rank says that this report is missing
            self._store().set(self._key(self.rank), zlib.compress(json.dumps(report.to_dict()).encode()))

    def others(self) -> list[Report]:
        """Waits for the reports of the other ranks, and returns those that were left."""
        if not self.missing():
            return list(self._reports.values())
        deadline = time.monotonic() + PATIENCE
        with suppress(RuntimeError):  # no store, or a report that is late
            store = self._store()
            for rank in self.missing():
                store.set_timeout(timedelta(seconds=max(0.1, deadline - time.monotonic())))
                content = json.loads(zlib.decompress(store.get(self._key(rank))))
                self._reports[rank] = Report.from_dict(content)
        return list(self._reports.values())

    def missing(self) -> list[int]:
        """Returns the ranks that left no report."""
        return [rank for rank in range(1, self.count) if rank not in self._reports]

    def _store(self) -> Any:
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            raise RuntimeError("torchrun keeps no store for its ranks")
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        timeout = timedelta(seconds=TO_CONNECT)
        make: Any = vars(distributed)["TCPStore"]  # torch's annotations do not name it
        return make(host, port, is_master=False, timeout=timeout, wait_for_workers=False)

    @staticmethod
    def _key(rank: int) -> str:
        run, restart = os.environ["TORCHELASTIC_RUN_ID"], os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return f"habana_mp/{run}/{restart}/{rank}"


class Children:
    """Processes of multiprocessing. They leave their reports in a folder that their parent names."""

    def __init__(self, folder: str | None = None) -> None:
        #: Created when the first report is left there.
        self.folder = folder or str(Path(tempfile.gettempdir()) / f"habana-mp-{secrets.token_hex(8)}")

    def leave(self, report: Report) -> None:
        """Leaves the report of a child, as it ends."""
        if report.rows and not is_loader_worker():
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            unfinished = Path(self.folder) / f"{secrets.token_hex(8)}.part"
            report.to_json(unfinished)
            unfinished.rename(unfinished.with_suffix(".json"))

    def take(self) -> list[Report]:
        """Removes the reports that the children left, and returns them."""
        found = [Report.from_json(path) for path in sorted(Path(self.folder).glob("*.json"))]
        shutil.rmtree(self.folder, ignore_errors=True)
        return found


def is_loader_worker() -> bool:
    """True in a worker of a data loader. Nothing is lowered there, and without it the report is about the script."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None
