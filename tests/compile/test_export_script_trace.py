"""torch.export, scripts, traces and make_fx: programs keep the casts that they were made with."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from helpers.comparing import assert_same
from helpers.compiled_functions import M, N
from helpers.processes import run_script

BF16 = torch.bfloat16
pytestmark = pytest.mark.usefixtures("compiled_anew", "one_thread")


class Exported(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.dense, self.out = nn.Linear(4, 4), nn.Linear(4, 3)
        self.register_buffer("n", N)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.dense(x))
        with hmp.disable_casts():
            hidden = torch.mm(hidden.float(), self.n)
        with torch.autocast("cpu", enabled=False):
            hidden = torch.mm(hidden, self.n)
        return torch.softmax(self.out(F.normalize(hidden)), -1)


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_keeps_its_casts_and_its_regions(strict: bool) -> None:
    model = Exported()
    shapes = ({0: torch.export.Dim("batch", min=2, max=64)},)
    hmp.convert()
    expected = model(N)
    program = torch.export.export(model, (M,), dynamic_shapes=shapes, strict=strict)
    more = model(torch.cat([M, N]))
    assert_same(program.module()(N), expected)
    hmp.restore()
    assert_same(program.module()(N), expected)
    assert_same(program.run_decompositions().module()(N), expected)
    assert_same(program.module()(torch.cat([M, N])), more)


def test_an_export_that_fails_inside_of_a_region_leaves_it() -> None:
    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with hmp.disable_casts():
                return torch.mm(x, x).reshape(3, 5)

    hmp.convert()
    for strict in (True, False):
        with pytest.raises(Exception):  # noqa: B017, PT011  whatever torch raises of it
            torch.export.export(Failing(), (M,), strict=strict)
        assert torch.mm(M, N).dtype is BF16


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_script_is_not_covered_and_gives_the_same_before_and_after() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.mm(x, y)).softmax(-1)

    scripted = torch.jit.script(function)
    expected = scripted(M, N)
    hmp.convert()
    assert_same(scripted(M, N), expected)
    assert_same(torch.jit.script(function)(M, N), expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("how", ["convert", "region"])
def test_what_a_trace_cannot_hold_raises_as_in_torch(how: str) -> None:
    # It would crash at the next operation after one that raised.
    script = (
        "import torch, contextlib\n"
        "from habana_mp import hmp\n"
        "layer = torch.nn.Linear(4, 4)\n"
        f"converted = {how == 'convert'}\n"
        "if converted: hmp.convert()\n"
        "for function in (lambda x: layer(x), lambda x: x @ layer.weight):\n"
        "    with contextlib.nullcontext() if converted else hmp.autocast('cpu'):\n"
        "        try: torch.jit.trace(function, (torch.ones(2, 4),))\n"
        "        except RuntimeError as error: print(str(error)[:22])\n"
    )
    done = run_script(script)
    assert done.stdout.splitlines() == ["Cannot insert a Tensor"] * 2, done.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("disabled", [True, False])
def test_a_trace_keeps_the_state_it_was_made_in(disabled: bool) -> None:
    model = Exported()
    hmp.convert()
    with hmp.disable_casts() if disabled else torch.enable_grad():
        expected = model(N)
        traced = torch.jit.trace(model, M)
    hmp.restore()
    assert_same(traced(N), expected)
