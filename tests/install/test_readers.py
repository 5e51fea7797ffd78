"""The ways to read a tensor from C++: all give the same, and one that is unknown is refused."""

from __future__ import annotations

from helpers.processes import run_script

BATTERY = """
import pathlib, tempfile, torch, torch.nn.functional as F
from habana_mp import hmp, _core
class Mine(torch.Tensor): pass
m, n = torch.linspace(0.1, 0.9, 16).reshape(4, 4), torch.linspace(0.9, 0.1, 16).reshape(4, 4)
module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU())
for p in module.parameters(): torch.nn.init.constant_(p, 0.125)
hmp.convert(weight_cache=False)  # which one of the readers alone allows
results = [torch.mm(m, n), m @ n, m * n.bfloat16(), torch.cat([m, n.bfloat16()]), m.double() * m, torch.t(m), m.t(),
           F.softmax(m.bfloat16(), -1), torch.fft.fft(m.bfloat16()), module(m), m.as_subclass(Mine) @ n,
           m.to_sparse() @ n,
           m.bfloat16().masked_fill(m > 0.5, -3.4e38), m.clone().add_(n.bfloat16()), torch.arange(3) * 2,
           torch.func.vmap(lambda row: torch.mm(row[None], n))(m), torch.mm(m[:, :2], n[:2]), torch.mm(m.t(), n.t()),
           torch.mm(m[:0], n), m.to("meta") @ n.to("meta"), torch.nested.nested_tensor([m, n]).to_padded_tensor(0.0)]
with torch.no_grad(): results.append(module(m))
module(m).sum().backward()
results.append(module[0].weight.grad)
for one in results:
    number = one.device.type != "meta" and not one.is_complex()
    print(type(one).__name__, one.dtype, one.float().sum().item() if number else "")
print([(row.operation, row.precision, row.calls, row.casts, row.bytes) for row in hmp.report(show=False)])
states = {name: state for name, *_, state in _core.assumptions()}
print(_core.reader(), states["torch.flags-in-place"] == "holds")
"""


def test_both_readers_give_the_same_results() -> None:
    found = {}
    for reader, broken in (("layout", ""), ("attribute", "torch.tensor-layout")):
        done = run_script(BATTERY, HABANA_MP_BREAK=broken)
        assert done.returncode == 0, done.stderr
        found[reader], _, way = done.stdout.strip().rpartition("\n")
        assert way == f"{reader} {reader == 'layout'}"
    assert found["attribute"] == found["layout"]
    assert "bfloat16" in found["layout"]


def test_the_default_device_when_torch_is_bound_does_not_matter() -> None:
    done = run_script(
        "import torch\n"
        "import torch.nn.functional as F\n"
        "from habana_mp import hmp\n"
        "torch.set_default_device('meta')\n"
        "hmp.convert()\n"
        "torch.set_default_device('cpu')\n"
        "for device in ('meta', 'cpu'):\n"
        "    x = torch.ones(4, 4, device=device)\n"
        "    weight = torch.nn.Parameter(torch.ones(4, 4, device=device))\n"
        "    result = F.linear(x, weight)\n"
        "    print((x @ x).dtype, torch.mm(x, x).dtype, F.linear(x, x).dtype, result.dtype)\n"
        "    result.sum().backward()\n"
        "    print(weight.grad.dtype)\n"
    )
    assert done.stdout.split() == [*["torch.bfloat16"] * 4, "torch.float32"] * 2, done.stderr
