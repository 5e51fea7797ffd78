"""Code that `convert(exact=...)` names is not lowered; what it calls is."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from habana_mp import hmp
from helpers.each import each
from helpers.models import Calls
from helpers.own_packages import own_package
from helpers.processes import in_threads

BF16, FP32 = torch.bfloat16, torch.float32
FULL = torch.eye(4)
FINE = FULL * (1 + 2**-12)

Import = Callable[[str], Any]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Import]:
    with own_package(tmp_path, "ownpack") as imported:
        yield imported


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y


def other_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y


def doubled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(function)
    def calling(*args: Any) -> torch.Tensor:
        return function(*args)

    return calling


decorated = doubled(doubled(product))
also_decorated = doubled(other_product)


class Kernel:
    def product(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y

    def by_lambda(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return {"by": lambda a: a @ y}["by"](x)

    @staticmethod
    def static(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y

    @classmethod
    def of_class(cls, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y

    @property
    def squared(self) -> torch.Tensor:
        return FULL @ FULL

    @functools.cached_property
    def cubed(self) -> torch.Tensor:
        return FULL @ FULL

    @torch.no_grad()
    def untracked(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y


class Special(Kernel):
    def own(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y


# ---- what may be given -----------------------------------------------------------------------------------------------


def test_a_package_is_its_folder(own: Import) -> None:
    hmp.convert(exact=["ownpack"])
    for module in ("arithmetic", "sums", "inner.deep"):
        assert torch.equal(own(module).product(FINE, FULL), FINE)
    assert (FINE @ FULL).dtype is BF16


def test_a_module_is_its_file(own: Import) -> None:
    hmp.convert(exact=["ownpack.sums"])
    assert own("sums").product(FULL, FULL).dtype is FP32
    assert own("arithmetic").product(FULL, FULL).dtype is BF16
    hmp.convert(exact=["ownpack.inner"])
    assert own("inner.deep").product(FULL, FULL).dtype is FP32
    assert own("sums").product(FULL, FULL).dtype is BF16


def test_a_name_imports_nothing_and_holds_once_it_is_imported(own: Import) -> None:
    hmp.convert(exact=["ownpack.inner.deep"])
    assert "ownpack" not in sys.modules
    assert own("sums").product(FULL, FULL).dtype is BF16
    assert "ownpack.inner" not in sys.modules
    hmp.convert(exact=["ownpack.inner.deep"])
    assert "ownpack.inner" not in sys.modules
    assert own("inner.deep").product(FULL, FULL).dtype is FP32


@pytest.mark.parametrize("module", ["", "arithmetic"])
def test_a_module_object_is_its_folder_or_file(own: Import, module: str) -> None:
    hmp.convert(exact=[own(module)])
    assert own("arithmetic").product(FULL, FULL).dtype is FP32
    assert own("sums").product(FULL, FULL).dtype is (FP32 if module == "" else BF16)


@pytest.mark.parametrize(
    "given",
    [product, functools.partial(decorated, FULL)],
    ids=["function", "partial of decorated"],
)
def test_a_function_is_its_own_code(given: Any) -> None:
    hmp.convert(exact=[given])
    assert torch.equal(product(FINE, FULL), FINE)
    assert decorated(FULL, FULL).dtype is FP32
    assert other_product(FULL, FULL).dtype is BF16
    assert also_decorated(FULL, FULL).dtype is BF16


def test_a_function_has_all_code_that_is_written_in_it() -> None:
    def nested(x: torch.Tensor) -> list[torch.Tensor]:
        def inside() -> torch.Tensor:
            return x @ x

        by_lambda = {"by": lambda one: x @ one}["by"](x)
        return [inside(), by_lambda, *(x @ one for one in [x]), *map(product, [x], [x])]

    hmp.convert(exact=[nested])
    assert [one.dtype for one in nested(FULL)] == [FP32, FP32, FP32, BF16]


def test_a_class_is_the_code_of_its_own_methods() -> None:
    hmp.convert(exact=[Kernel])
    kernel = Special()
    results = [
        one(FULL, FULL) for one in (kernel.product, kernel.by_lambda, kernel.static, kernel.of_class, kernel.untracked)
    ]
    assert {one.dtype for one in (*results, kernel.squared, kernel.cubed)} == {FP32}
    assert kernel.own(FULL, FULL).dtype is BF16
    hmp.convert(exact=[Special])
    assert kernel.own(FULL, FULL).dtype is FP32
    assert kernel.product(FULL, FULL).dtype is BF16


def test_a_part_of_torch_may_be_given() -> None:
    hmp.convert(exact=["torch.distributions"])
    assert torch.distributions.Normal(FULL, torch.ones(4, 4)).log_prob(FULL).dtype is FP32
    assert (FULL @ FULL).dtype is BF16


# ---- what it means ---------------------------------------------------------------------------------------------------


def test_it_holds_in_threads_and_in_forwards_and_backwards() -> None:
    class Squared(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x @ x

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            seen.append((gradient @ x).dtype)
            return gradient

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((x @ x).dtype)
            result: torch.Tensor = Squared.apply(x)
            seen.append(result.dtype)
            return result

    def run() -> None:
        x = FULL.clone().requires_grad_()
        checkpoint(Model(), x, use_reentrant=False).sum().backward()

    seen: list[torch.dtype] = []
    hmp.convert(within="modules", exact=[Squared, Model])
    in_threads(lambda _: run(), 1)
    run()
    assert len(seen) >= 6
    assert set(seen) == {FP32}


def test_it_goes_before_kept_modules_and_rules_by_module() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ x

    inner = Model()
    model = Calls(lambda x: inner(x), inner=inner)
    hmp.convert(rules={"matmul @ inner": "bf16"}, exact=[Model])
    assert model(FULL).dtype is FP32
    hmp.keep(inner, BF16)
    assert model(FULL).dtype is FP32


@pytest.mark.usefixtures("counted")
def test_the_report_names_the_reason() -> None:
    def rectified() -> None:
        torch.relu(FULL)

    hmp.convert(exact=[rectified])
    rectified()
    rows = [(row["operation"], row["precision"], row["reason"]) for row in hmp.report(show=False).as_dicts()]
    assert rows == [("relu", "unchanged", "library")]


# ---- its end ---------------------------------------------------------------------------------------------------------


def test_another_convert_replaces_it(own: Import) -> None:
    hmp.convert(exact=[product, "ownpack.sums", "ownpack.inner"])
    assert own("sums").product(FULL, FULL).dtype is FP32
    hmp.convert(exact=[other_product, "ownpack.inner"])
    assert product(FULL, FULL).dtype is own("sums").product(FULL, FULL).dtype is BF16
    assert other_product(FULL, FULL).dtype is own("inner.deep").product(FULL, FULL).dtype is FP32
    hmp.restore()
    hmp.convert()
    assert other_product(FULL, FULL).dtype is own("inner.deep").product(FULL, FULL).dtype is BF16


def test_an_error_changes_nothing(own: Import) -> None:
    hmp.convert(exact=[product])
    with pytest.raises(ValueError, match="ownpackk"):
        hmp.convert(exact=[other_product, "ownpackk"])
    assert product(FULL, FULL).dtype is FP32
    assert other_product(FULL, FULL).dtype is BF16


def test_a_user_can_look_up_what_is_exact() -> None:
    known = hmp.exact_packages()
    assert {"botorch", "gpytorch", "linear_operator", "torchmetrics", "kornia.losses"} <= set(known)
    assert list(known) == sorted(known)
    hmp.convert(exact=["json", torch.distributions, Kernel.product, functools.partial(product, FULL), "torchmetrics"])
    own = (f"{__name__}.Kernel.product", f"{__name__}.product")
    assert hmp.exact_packages() == (*known, "json", "torch.distributions", *own)
    hmp.restore()
    assert hmp.exact_packages() == known


# ---- errors ----------------------------------------------------------------------------------------------------------


@each(
    "given, words",
    [
        ("ownpack", r"`exact` must be a list, as \['ownpack'\].*got str: 'ownpack'"),
        (product, r"`exact` must be a list, as \[product\].*got function"),
        (
            ["nopackage"],
            "`exact`: there is no package or module 'nopackage'; a name is that by which `import` finds it",
        ),
        (["ownpack.inner.shallow"], "there is no module 'ownpack.inner.shallow'. There is 'ownpack.inner'"),
        (
            ["ownpack.sums.product"],
            r"if `product` is a function or class in it, give .* exact=\[ownpack.sums.product\]",
        ),
        (["own pack"], "a name must be that of a package or module, as \"package.module\"; got 'own pack'"),
        (["math"], "module 'math' has no file of Python code"),
        (
            [torch.matmul],
            "builtin matmul has no code in Python; to keep an operation in float32, name it in the float32",
        ),
        ([int], "class builtins.int has no code in Python"),
        ([nn.Linear(4, 4)], r"a module is no code: give its class, as exact=\[Linear\], or use `hmp.keep\(module\)`"),
        ([3], "an item must be the name of a package or module, a module, a function or a class; got int: 3"),
        (["nopackage", 3], r"(?s)'nopackage'.*\n`exact`: an item must be"),
    ],
)
def test_what_cannot_be_exact_is_refused_before_torch_is_changed(own: Import, given: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        hmp.convert(exact=given)
    assert not hmp.is_converted()
    assert "ownpack" not in sys.modules
