"""The first line of a report in which nothing ran lower, and the names of functions that run without casts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from habana_mp import hmp

X = torch.linspace(-1, 1, 32).reshape(4, 8)

pytestmark = pytest.mark.usefixtures("counted")


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).eval()


def disabled() -> None:
    with hmp.disable_casts():
        model()(X)


def quantized() -> object:
    made = torch.ao.quantization.quantize_dynamic(model(), {nn.Linear}, dtype=torch.qint8)
    hmp.reset_report()
    return made(X), made


def scripted() -> object:
    made = torch.jit.script(model())
    return made(X), made


def in_autocast() -> None:
    with torch.autocast("cpu", enabled=False):
        model()(X)


IN_BLOCKS = 'Calls in 1 block of hmp.disable_casts() count with report="modules" and "lines" only'
NO_CALL = "no call that a list or a rule decides was counted in this process since hmp.convert()"


@pytest.mark.parametrize(
    ("run", "by_operations", "by_modules"),
    [
        (lambda: None, NO_CALL, "no module ran, and the lists lower only in one"),
        (disabled, IN_BLOCKS, "2 calls left alone ... (under disable_casts)"),
        (quantized, "Those of quantized modules", "4 modules ran, without a call that a list or a rule decides"),
        (scripted, "TorchScript are not counted", "1 module ran, without a call"),
        (in_autocast, "2 calls left alone (inside of torch.autocast(enabled=False)", "(inside of torch.autocast"),
        (
            lambda: nn.Linear(8, 2).double()(X.double()),
            "1 call left alone (an input is float64",
            "(an input is float64",
        ),
        (
            lambda: torch.mm(X, X.t()),
            "all counted calls were outside of modules, and the lists lower only in a module",
            "no module ran, and the lists lower only in one",
        ),
    ],
)
def test_the_first_line_has_the_reason(run: Callable[[], object], by_operations: str, by_modules: str) -> None:
    for detail, expected in (("operations", by_operations), ("modules", by_modules), ("lines", by_modules)):
        hmp.convert(preset="recommended", report=detail)  # type: ignore[arg-type]
        hmp.reset_report()
        kept = run()
        first = hmp.report(show=False).words[0]
        assert first.startswith("Nothing ran in lower precision: ")
        assert all(part in first for part in expected.split(" ... ")), (detail, first)
        hmp.restore()
        del kept


def gradients() -> None:
    parameter = X.clone().requires_grad_()
    parameter.sum().backward()
    nn.utils.clip_grad_norm_([parameter], 1.0, foreach=False)


def window() -> None:
    torch.signal.windows.hann(16)


@pytest.mark.parametrize(("run", "name"), [(gradients, "clip_grad_norm_"), (window, "hann")])
def test_a_function_of_torch_that_runs_without_casts_is_named(run: Callable[[], None], name: str) -> None:
    hmp.convert(preset="recommended", report="modules")
    run()
    report = hmp.report(show=False)
    why = f"inside torch's {name}, which computes in float32"
    assert why in {row.why for row in report}
    assert any(line.startswith("Casts were off in ") and why in line for line in report.words[:3])
    assert not any("disable_casts" in line for line in report.words)
    hmp.reset_report()
    with hmp.disable_casts():
        run()
    assert {row.why for row in hmp.report(show=False)} == {"under disable_casts"}
