"""Changes of a weight by distributed training are seen."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import distributed as dist
from torch.distributed import fsdp
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from habana_mp import hmp
from helpers.comparing import assert_same
from helpers.seeing_changes import MODES, X, as_by_hand_marks, assert_seen, backward
from helpers.weight_changes.basics import SIZE, layer, noise, write
from helpers.weight_changes.optimizers import steps

pytestmark = as_by_hand_marks


@pytest.mark.usefixtures("alone_in_a_group")
def test_a_change_in_data_parallel_training_is_seen() -> None:
    hmp.convert()
    of = layer()
    wrapped = DistributedDataParallel(of)
    changes = [
        steps(lambda parameters: torch.optim.AdamW(parameters, lr=0.1), of),
        lambda n: wrapped.load_state_dict({"module.weight": noise(), "module.bias": noise(SIZE)}),
        lambda n: dist.broadcast(of.weight.data.add_(n), 0),
        lambda n: dist.all_reduce(of.weight.detach().mul_(n + 1)),
    ]
    for mode, change in itertools.product(MODES, changes):
        assert_seen(of, change, mode, use=lambda x, w, b: wrapped(x), hand=F.linear)


@pytest.mark.usefixtures("alone_in_a_group")
def test_a_change_of_a_sharded_weight_is_seen() -> None:
    hmp.convert()
    of = fsdp.fully_shard(layer(), mesh=init_device_mesh("cpu", (1,)))
    optimizer = torch.optim.SGD(of.parameters(), lr=0.5)
    changes: list[Callable[[], Any]] = [
        optimizer.step,
        lambda: write(of.weight.to_local(), 2),
        lambda: of.weight.to_local().detach().numpy().__iadd__(1),
        lambda: of.load_state_dict({name: value * 2 for name, value in of.state_dict().items()}),
    ]
    before = torch.zeros(())
    for change in changes * 2:
        for mode, entered in MODES.items():
            of.zero_grad()
            with entered():
                result = of(X)
            if mode == "grad":
                backward(result)
            of.reshard()
            weight, bias = (one.full_tensor().detach().clone().requires_grad_() for one in (of.weight, of.bias))
            with hmp.disable_casts():
                wanted = F.linear(X.bfloat16(), weight.bfloat16(), bias.bfloat16())
            assert_same(result, wanted)
            if mode == "grad":
                backward(wanted)
                assert_same(of.weight.grad.full_tensor(), weight.grad)
                gradient = of.weight.grad
        assert not torch.equal(result, before)
        before = result
        of.weight.grad = gradient
        change()
