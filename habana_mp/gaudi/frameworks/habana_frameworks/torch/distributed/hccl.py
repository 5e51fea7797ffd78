"""``habana_frameworks.torch.distributed.hccl``: its import makes ``"hccl"`` a backend of torch.distributed."""

from __future__ import annotations

import os

from habana_mp.gaudi import devices

__all__ = ["initialize_distributed_hpu"]

#: The names of Open MPI for torchrun's names.
_NAMES = {
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "RANK": "OMPI_COMM_WORLD_RANK",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
}


def initialize_distributed_hpu(
    world_size: int | None = None, rank: int | None = None, local_rank: int | None = None
) -> tuple[int, int, int]:
    """Finds the number of processes and the number of this one, and chooses this process's device.

    Returns:
        The number of processes, this process's number, and its number on this machine; ``(1, -1, -1)`` if it was
        started alone.
    """
    found = {}
    for (name, by_mpi), given in zip(_NAMES.items(), (world_size, rank, local_rank), strict=True):
        value = given if given is not None else os.environ.get(name) or os.environ.get(by_mpi)
        found[name] = None if value is None else int(value)
    size, number, local = found["WORLD_SIZE"], found["RANK"], found["LOCAL_RANK"]
    if size is None or number is None:
        return 1, -1, -1
    local = number if local is None else local
    os.environ.update(WORLD_SIZE=str(size), RANK=str(number), LOCAL_RANK=str(local))
    here = devices()
    if here.real.type != "cpu" and here.real.index is None and (count := here.module.device_count()):
        here.module.set_device(local % count)
    return size, number, local
