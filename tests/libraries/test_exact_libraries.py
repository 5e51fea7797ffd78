"""Code of libraries that is not lowered, without these libraries: packages of their names, made for the test."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from helpers.each import each
from helpers.processes import run_script

ARITHMETIC = """
    import torch
    import torch.nn.functional as F

    def product(x, y):
        return x @ y

    def product_by_functions(x, y):
        return torch.einsum("ij,jk->ik", x, y)

    def of_layer(layer, x):
        return layer(x)

    def called_back(function, x):
        return function(x)

    def mixed(x, y):
        return torch.mm(x, y)

    def of_distribution(mean):
        return torch.distributions.Normal(mean, torch.ones(4, 4)).log_prob(torch.ones(4, 4))

    def rectified(x):
        return torch.relu(x)

    def log_of_softmax(x):
        return torch.log_softmax(x, -1)
"""

USED = """
    import sys
    import torch
    from habana_mp import hmp

    BF16, FP32 = torch.bfloat16, torch.float32
    full, half = torch.eye(4), torch.eye(4).bfloat16()
    fine = full * (1 + 2**-12)
    if "before" in sys.argv:
        from NAME.arithmetic import *
    hmp.convert(within="modules" if "within" in sys.argv else None)
    from NAME.arithmetic import *
"""


def write_module(folder: Path, name: str, source: str) -> None:
    """A module of this dotted name, in packages that hold nothing else."""
    *packages, module = name.split(".")
    for package in packages:
        folder = folder / package
        folder.mkdir()
        (folder / "__init__.py").touch()
    (folder / f"{module}.py").write_text(textwrap.dedent(source), encoding="utf-8")


def run_with(tmp_path: Path, name: str, script: str, *arguments: str) -> None:
    """The script, with a package of this name that does some arithmetic."""
    write_module(tmp_path, f"{name}.arithmetic", ARITHMETIC)
    code = textwrap.dedent(USED).replace("NAME", name) + textwrap.dedent(script)
    result = run_script(code, *arguments, PYTHONPATH=str(tmp_path))
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(("name", "when"), [("botorch", "before"), ("linear_operator", "after")])
def test_a_library_of_exact_arithmetic_is_not_lowered(tmp_path: Path, name: str, when: str) -> None:
    script = """
        assert torch.equal(product(fine, full), fine)
        assert torch.equal(product_by_functions(fine, full), fine)
        assert of_distribution(fine).dtype is FP32
        assert (fine @ full).dtype is BF16
        hmp.restore()
        assert product(fine, full).dtype is FP32
        hmp.convert()
        assert product(fine, full).dtype is FP32
    """
    run_with(tmp_path, name, script, when)


def test_such_a_library_calls_what_is_lowered_obeys_the_float32_list_and_is_named_in_the_report(tmp_path: Path) -> None:
    script = """
        assert of_layer(torch.nn.Linear(4, 4), full).dtype is BF16
        assert called_back(lambda x: x @ x, full).dtype is BF16
        assert mixed(half, fine).dtype is BF16  # rule 4
        assert (half + fine).dtype is FP32
        assert log_of_softmax(half).dtype is FP32
        assert product(half, half).dtype is BF16
        hmp.reset_report()
        rectified(full)
        rows = hmp.report(show=False).as_dicts()
        assert [(row["operation"], row["precision"]) for row in rows] == [("relu", "unchanged")]
    """
    run_with(tmp_path, "gpytorch", script)


def test_such_a_library_is_not_lowered_in_the_forward_of_a_module_either(tmp_path: Path) -> None:
    script = """
        class Model(torch.nn.Module):
            def forward(self, x):
                return x @ x, product(x, x)

        assert [one.dtype for one in Model()(full)] == [BF16, FP32]
    """
    run_with(tmp_path, "torchmetrics", script, "within")


#: By package: its module, and what there is a stand-in for.
WHOLE = {
    "zuko": (
        "utils",
        """
        def odeint(f, x, t0, t1, phi=()):
            return f(t0, x)

        class AdaptiveCheckpointAdjoint:
            @staticmethod
            def backward(*args):
                return args[0](*args[1:])
        """,
        """
        assert module.odeint(lambda t, x: x @ x, full, 0, 1).dtype is FP32
        assert module.odeint(lambda t, x: torch.nn.Linear(4, 4)(x), half, 0, 1).dtype is FP32
        assert module.AdaptiveCheckpointAdjoint.backward(lambda x: x @ x, full).dtype is FP32
        """,
    ),
    "botorch": (
        "optim.optimize",
        """
        def optimize_acqf(acq_function, bounds):
            return acq_function(bounds)
        """,
        """
        assert module.optimize_acqf(lambda x: x @ x, bounds=full).dtype is FP32
        """,
    ),
    "gpytorch": (
        "kernels.kernel",
        """
        class Kernel:
            def __call__(self, x1, x2=None):
                return self.forward(x1, x1 if x2 is None else x2)
        """,
        """
        class Own(module.Kernel):
            def forward(self, x1, x2):
                return x1 @ x2

        assert Own()(full).dtype is FP32
        assert Own()(half, x2=full).dtype is FP32
        """,
    ),
    "opacus": (
        "grad_sample.grad_sample_module",
        """
        class GradSampleModule:
            def rearrange_grad_samples(self, *, module, backprops):
                return module, backprops

            def capture_backprops_hook(self, module, backprops):
                one, other = self.rearrange_grad_samples(module=module, backprops=backprops)
                return one @ other
        """,
        """
        assert module.GradSampleModule().capture_backprops_hook(half, full).dtype is FP32
        """,
    ),
    "torchmetrics": (
        "metric",
        """
        class Metric:
            def __init__(self):
                self.update = self._wrap_update(self.update)
                self.compute = self._wrap_compute(self.compute)

            def _wrap_update(self, update):
                return lambda *args, **kwargs: update(*args, **kwargs)

            def _wrap_compute(self, compute):
                return lambda *args, **kwargs: compute(*args, **kwargs)
        """,
        """
        class Own(module.Metric):
            def update(self, x, y):
                self.result = x @ y

            def compute(self):
                return self.result @ self.result

        metric = Own()
        metric.update(half, y=full)
        assert metric.result.dtype is metric.compute().dtype is FP32
        hmp.restore()
        metric.update(half, y=half)
        assert metric.result.dtype is BF16
        """,
    ),
}


@each("package", WHOLE)
def test_what_such_a_library_calls_in_turn_is_float32_where_it_counts(tmp_path: Path, package: str) -> None:
    name, source, script = WHOLE[package]
    write_module(tmp_path, f"{package}.{name}", source)
    code = f"""
        import torch
        from habana_mp import hmp
        BF16, FP32 = torch.bfloat16, torch.float32
        full, half = torch.eye(4), torch.eye(4).bfloat16()
        hmp.convert()
        import {package}.{name} as module
    """
    in_modules = "hmp.convert(within='modules')\n"
    result = run_script(
        textwrap.dedent(code) + textwrap.dedent(script) + in_modules + textwrap.dedent(script), PYTHONPATH=str(tmp_path)
    )
    assert result.returncode == 0, result.stderr
