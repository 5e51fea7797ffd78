"""The examples of the pages that document AMP on XPU and autocast on HPU, with the device's name exchanged."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from typing import Any

import torch

from habana_mp import hmp

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

SIMPLE_NET = """
class SimpleNet(torch.nn.Module):
    def __init__(self):
        super(SimpleNet, self).__init__()
        self.conv = torch.nn.Conv2d(64, 128, (3, 3), stride=(2, 2), padding=(1, 1), bias=False)
    def forward(self, x):
        return self.conv(x)
"""

DEFAULT_PRECISION = """
model = SimpleNet().to("xpu")
x = torch.rand(64, 64, 224, 224).to("xpu")
y = model(x)
"""

IMPERATIVE = """
model = SimpleNet().to("xpu").eval()
x = torch.rand(64, 64, 224, 224).to("xpu")
with torch.xpu.amp.autocast(dtype=torch.float16):
    y = model(x)
"""


TRAINING = """
model = SimpleNet().to("xpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for images, label in train_loader():
    with torch.xpu.amp.autocast():
        loss = criterion(model(images.to("xpu")), label.to("xpu"))
    loss.backward()
    optimizer.step()
"""


def on_cpu(code: str) -> str:
    """The example as it runs here: another device, the region by its new name, and smaller pictures."""
    code = code.replace("torch.xpu.amp.autocast()", "hmp.autocast('cpu', preset='xpu')")
    code = code.replace("torch.xpu.amp.autocast(", "hmp.autocast('cpu', preset='xpu', ")
    return code.replace('"xpu"', '"cpu"').replace("64, 64, 224, 224", "2, 64, 16, 16")


def ran(*codes: str, **names: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    found: dict[str, Any] = {"torch": torch, "hmp": hmp, **names}
    with redirect_stdout(io.StringIO()):
        exec("\n".join(map(on_cpu, codes)), found)
    return found


def test_without_amp_everything_runs_with_default_precision() -> None:
    assert ran(SIMPLE_NET, DEFAULT_PRECISION)["y"].dtype is FP32


def test_inference_runs_in_float16() -> None:
    found = ran(SIMPLE_NET, IMPERATIVE)
    assert found["y"].dtype is FP16
    torch.testing.assert_close(found["y"], found["model"].half()(found["x"].half()))


def test_training_runs_in_bfloat16_and_its_weights_are_torch_autocasts() -> None:
    seen: list[torch.dtype] = []

    def train_loader() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            yield torch.rand(2, 64, 16, 16, generator=generator), torch.rand(2, 128, 8, 8, generator=generator)

    def criterion(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        seen.append(output.dtype)
        return torch.nn.functional.mse_loss(output, label)

    names = {"train_loader": train_loader, "criterion": criterion}
    found = ran(SIMPLE_NET, TRAINING, **names)
    assert seen == [BF16] * 3
    theirs = TRAINING.replace("torch.xpu.amp.autocast()", 'torch.autocast("cpu", torch.bfloat16)')
    expected = ran(SIMPLE_NET, theirs, **names)
    assert torch.equal(found["model"].conv.weight, expected["model"].conv.weight)


HPU_BLOCK = """
with torch.autocast(device_type="hpu", dtype=torch.bfloat16):
   output = model(input)
   loss = loss_fn(output, target)
"""


def test_the_block_on_the_hpu_page_runs_in_the_precisions_of_its_lists() -> None:
    code = HPU_BLOCK.replace('torch.autocast(device_type="hpu"', 'hmp.autocast(device_type="cpu", preset="hpu"')
    input, target = torch.randn(4, 8), torch.randint(0, 2, (4,))
    model = torch.nn.Sequential(torch.nn.Linear(8, 2), torch.nn.LeakyReLU())
    found = ran(code, model=model, input=input, target=target, loss_fn=torch.nn.functional.cross_entropy)
    assert (found["output"].dtype, found["loss"].dtype) == (BF16, FP32)
