"""``habana_frameworks.torch.distributed.hccl``: its import makes ``"hccl"`` a backend of torch.distributed."""

from __future__ import annotations

import os

from habana_mp.gaudi import devices

__all__ = ["initialize_distributed_hpu"]

#: The environment variables of torchrun, and those of Open MPI for the same values.
_NAMES = {
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "RANK": "OMPI_COMM_WORLD_RANK",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
}


def initialize_distributed_hpu(
    world_size: int | None = None, rank: int | None = None, local_rank: int | None = None
) -> tuple[int, int, int]:
    """Finds the world size and the ranks of this process, writes them to the environment, and selects its device.

    Arguments that are None are read from the environment.

    Returns:
        The world size, the rank, and the local rank, which is the rank if nothing sets it. ``(1, -1, -1)``, and nothing
        is changed, if the world size or the rank is unknown.
    """
    found = {}
    for (name, mpi_name), given in zip(_NAMES.items(), (world_size, rank, local_rank), strict=True):
        value = given if given is not None else os.environ.get(name) or os.environ.get(mpi_name)
        found[name] = None if value is None else int(value)
    size, number, local = found["WORLD_SIZE"], found["RANK"], found["LOCAL_RANK"]
    if size is None or number is None:
        return 1, -1, -1
    local = number if local is None else local
    os.environ.update(WORLD_SIZE=str(size), RANK=str(number), LOCAL_RANK=str(local))
    hpu = devices()
    if hpu.real.type != "cpu" and hpu.real.index is None and (count := hpu.module.device_count()):
        hpu.module.set_device(local % count)
    return size, number, local
