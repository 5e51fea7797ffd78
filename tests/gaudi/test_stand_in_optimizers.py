"""The steps of the stand-in's optimizers; test_stand_in_formulas.py compares them with their formulas."""

from __future__ import annotations

import textwrap

from helpers.gaudi import gaudi

STEPS = """
from habana_frameworks.torch.hpex.optimizers import FusedAdamW, FusedLamb, FusedLars


def stepped(make, layout=lambda tensor: tensor):
    \"\"\"Returns two weights after three steps. The first one has this layout, and its gradients do not.\"\"\"
    generator = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(layout(torch.randn(64, 48, generator=generator))), torch.nn.Parameter(torch.zeros(3))]
    optimizer = make(params)
    for _ in range(3):
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator)
        optimizer.step()
    return params
"""


def test_adamw_steps_weights_of_any_strides_alike_and_lets_only_a_late_backward_raise() -> None:
    code = """
        def apart(tensor):
            \"\"\"Its elements lie two apart.\"\"\"
            return torch.stack([tensor, tensor], -1)[..., 0]

        make = lambda params: FusedAdamW(params, lr=0.01, weight_decay=0.1)
        for layout in (apart, lambda tensor: tensor.t().contiguous().t()):
            for one, other in zip(stepped(make), stepped(make, layout)):
                torch.testing.assert_close(one, other)
        made = torch.ones(3), torch.ones(3), torch.ones(3, 3).t()
        weight, unused, strided = map(torch.nn.Parameter, made)
        x = torch.ones(3, requires_grad=True)
        result, of_unused = (weight * x).sum(), (unused * x).sum()
        weight.grad = torch.ones(3)
        optimizer = make([{"params": [weight, unused]}, {"params": [strided]}])
        optimizer.step()
        print(*[group["fused"] for group in optimizer.param_groups])  # with None, torch chooses
        of_unused.backward()  # its version is the same, since it has no gradient
        try:
            result.backward()
        except RuntimeError as error:
            print("modified by an inplace operation" in str(error))
        """
    assert gaudi(STEPS + textwrap.dedent(code)) == ["True None", "True"]


def test_averages_in_bfloat16_move_weights_as_those_in_float32_do() -> None:
    code = """
        for dtype in (torch.float32, torch.bfloat16):
            param = torch.nn.Parameter(torch.ones(40))
            optimizer = FusedLamb([param], lr=0.01, dtype=dtype)
            for _ in range(10):
                param.grad = torch.linspace(-1, 1, 40)
                optimizer.step()
            assert optimizer.state[param]["exp_avg"].dtype is dtype
            print(round(float(param.std()), 2))
        """
    one, other = gaudi(STEPS + textwrap.dedent(code))
    assert one == other != "0.0"


def test_a_scaler_unscales_gradients_before_lars_asks_for_their_norms() -> None:
    code = """
        results = []
        for scale in (None, 1024.0):
            param = torch.nn.Parameter(torch.ones(8))
            optimizer = FusedLars(torch.optim.SGD([param], lr=1.0, weight_decay=0.1, fused=True), [1], eps=0.5)
            scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
            for _ in range(3):
                optimizer.zero_grad()
                scaler.scale((param * torch.arange(8)).sum()).backward()
                scaler.step(optimizer)
                scaler.update()
            results.append(param.detach())
        torch.testing.assert_close(*results)
        print(float(results[0][7]) < 1)
        """
    assert gaudi(STEPS + textwrap.dedent(code)) == ["True"]


def test_options_are_refused_in_derived_classes_and_hold_in_single_groups() -> None:
    code = """
        from habana_frameworks.torch.hpex.optimizers import FusedAdagrad, FusedSGD

        one, other = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
        one.grad = torch.ones(1)
        try:
            type("Derived", (FusedAdamW,), {})([one], lr=0.1, bias_correction=False)
        except ValueError as error:
            print(error)
        for kind in (FusedSGD, FusedAdagrad):
            one.grad, other.grad = torch.ones(1).to_sparse(), torch.ones(1).to_sparse()
            kind([{"params": [one]}, {"params": [other], "weight_decay": 0.1}]).step()
            print(one.grad.is_sparse, other.grad.is_sparse)
        """
    assert gaudi(STEPS + textwrap.dedent(code)) == [
        "`bias_correction` must be True in Derived: its step is torch's",
        "True False",
        "True False",
    ]
