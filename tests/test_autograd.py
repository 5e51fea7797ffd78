"""Gradients of every kind through the casts: as through casts by hand, and each in its leaf's own dtype."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
import torch.autograd.forward_ad as fwd
import torch.nn.functional as F
from cases import ADDED_UP, CASES, LATE_KERNELS, NO_KERNEL, Case, cast
from conftest import Converter
from torch import nn
from torch.amp import custom_bwd, custom_fwd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from habana_mp import _operations as ops
from habana_mp import hmp

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
M = torch.linspace(0.1, 0.9, 16).reshape(4, 4)
N = M.t().contiguous() * 0.7
IMAGE = torch.linspace(-1, 1, 2 * 3 * 6 * 6).reshape(2, 3, 6, 6)

Loss = Callable[..., torch.Tensor]


def leaf(value: torch.Tensor) -> torch.Tensor:
    return value.detach().clone().requires_grad_()


def low(value: torch.Tensor) -> torch.Tensor:
    """The cast that a careful person writes."""
    return value.to(BF16) if value.dtype is FP32 else value


def assert_equal(got: Any, wanted: Any) -> None:
    """Equal dtypes and bits, leaf by leaf."""
    one, other = tree_leaves(got), tree_leaves(wanted)
    assert len(one) == len(other) > 0
    for left, right in zip(one, other, strict=True):
        assert left.dtype is right.dtype
        assert torch.equal(left.nan_to_num(), right.nan_to_num())


# ---- every operation that a shipped list names -----------------------------------------------------------------------

#: Inputs that have no gradient in torch either.
WITHOUT_GRADIENT = {
    "batch_norm": (3, 4),
    "soft_margin_loss": (1,),
    "fractional_max_pool2d": (1,),
    "fractional_max_pool3d": (1,),
}
#: No gradient at all, or (lstsq) one whose last bits depend on where the memory lies.
LEFT_OUT = {"geqrf", "linalg_matrix_rank", "linalg_lstsq", "_addmm_activation"}
ONE_FORM = list({case.name: case for case in CASES if case.name not in LEFT_OUT}.values())


def loss_of(result: Any) -> torch.Tensor:
    """A number made of all results that have a gradient; squared, so that no gradient is a constant."""
    outputs = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor) and one.requires_grad]
    real = [torch.view_as_real(one.resolve_conj()) if one.is_complex() else one.to(FP32) for one in outputs]
    return torch.stack([torch.square(one).sum() for one in real]).sum()


def gradients(case: Case, dtype: torch.dtype | None = None) -> list[torch.Tensor | None]:
    """The gradients of all inputs and weights; with ``dtype``, through the casts of a careful person."""
    leaves: list[torch.Tensor] = []

    def prepare(value: Any, index: int) -> Any:
        if isinstance(value, nn.Module):
            weights = {name: leaf(one) for name, one in value.named_parameters()}
            leaves.extend(weights.values())
            given = {name: one if dtype is None else one.to(dtype) for name, one in weights.items()}
            return lambda *inputs: torch.func.functional_call(value, given, inputs)
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        if index not in WITHOUT_GRADIENT.get(case.name, ()):
            leaves.append(value := leaf(value))
        return value if dtype is None or index in case.kept else value.to(dtype)

    inputs = tuple(tree_map(lambda one, i=i: prepare(one, i), value) for i, value in enumerate(case.inputs))
    loss_of(case.run(inputs)).backward()
    for one in leaves:
        assert one.grad is None or one.grad.dtype is one.dtype
    return [one.grad for one in leaves]


def differing(converted: Converter, cases: list[tuple[Case, Any]], **lists: Any) -> list[str]:
    """The cases whose gradients, under a list of their name alone, are not those expected."""
    wrong = []
    for case, expected in cases:
        converted(**{side: [case.name] for side in ("bf16", "fp32") if side in lists}, dtype=lists.get("dtype", BF16))
        got = gradients(case)
        hmp.restore()
        same = [
            one is other is None
            or (one is not None and other is not None and torch.equal(one.nan_to_num(), other.nan_to_num()))
            for one, other in zip(got, expected, strict=True)
        ]
        if not all(same) or not same:
            wrong.append(f"{case}: {same}")
    return wrong


@pytest.mark.parametrize(("dtype", "cases"), [(BF16, ONE_FORM), (FP16, ONE_FORM[::3])], ids=["bf16", "fp16"])
def test_gradients_of_lowered_operations_are_those_of_casts_by_hand(
    converted: Converter, dtype: torch.dtype, cases: list[Case]
) -> None:
    def by_hand(case: Case) -> list[torch.Tensor | None]:
        if case.name in ADDED_UP:
            return gradients(replace(case, call=lambda *inputs: cast(case.call(*inputs), dtype)))
        try:
            return gradients(case, None if case.name in NO_KERNEL else dtype)
        except RuntimeError:
            assert case.name in LATE_KERNELS
            return gradients(case)

    # Those of a recurrent layer's weights are summed over the steps in float32: test_modules.py
    expected = [(case, by_hand(case)) for case in cases if case.name not in ops.TAKES_STEPS]
    assert differing(converted, expected, bf16=True, dtype=dtype) == []


def test_gradients_of_operations_kept_in_float32_are_those_of_casts_by_hand(converted: Converter) -> None:
    lowered = [Case(one.name, one.form, one.call, one.cast(BF16), one.kept) for one in ONE_FORM]
    expected = [(case, gradients(case, FP32)) for case in lowered[::2] if case.name != "batch_norm"]
    assert differing(converted, expected, fp32=True) == []


# ---- gradients of gradients ------------------------------------------------------------------------------------------


def small(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4))


TWICE: dict[str, tuple[Loss, Loss, list[str], list[str]]] = {
    "matmul": (lambda x: x @ x, lambda x: low(x) @ low(x), ["matmul"], []),
    "conv2d": (
        lambda x: F.conv2d(IMAGE, x.reshape(1, 1, 4, 4).expand(2, 3, 4, 4)),
        lambda x: F.conv2d(low(IMAGE), low(x.reshape(1, 1, 4, 4).expand(2, 3, 4, 4))),
        ["conv2d"],
        [],
    ),
    "softmax": (lambda x: torch.softmax(low(x), -1), lambda x: torch.softmax(low(x).float(), -1), [], ["softmax"]),
    "layer_norm": (lambda x: F.layer_norm(x, (4,)), lambda x: F.layer_norm(low(x), (4,)), ["layer_norm"], []),
    "norm": (lambda x: torch.norm(low(x)), lambda x: torch.norm(low(x).float()), [], ["norm"]),
    "normalize": (F.normalize, lambda x: F.normalize(low(x)), ["normalize"], []),
    "cross_entropy": (
        lambda x: F.cross_entropy(low(x), torch.arange(4)),
        lambda x: F.cross_entropy(low(x).float(), torch.arange(4)),
        [],
        ["cross_entropy"],
    ),
}


@pytest.mark.parametrize("name", TWICE)
def test_second_and_third_gradients_are_those_of_casts_by_hand(converted: Converter, name: str) -> None:
    function, by_hand, bf16, fp32 = TWICE[name]

    def derivatives(f: Loss) -> list[torch.Tensor]:
        x = leaf(M)
        loss, found = f(x).float().pow(3).sum(), []
        for _ in range(3):
            (loss,) = torch.autograd.grad(loss, x, create_graph=True)
            found.append(loss.detach())
            loss = loss.pow(2).sum()
        return found

    expected = derivatives(by_hand)
    converted(bf16=bf16, fp32=fp32)
    got = derivatives(function)
    assert_equal(got, expected)
    assert {one.dtype for one in got} == {FP32}


def test_a_gradient_penalty_trains_in_float32() -> None:
    model, x = small(), leaf(M)
    hmp.convert()
    (grad,) = torch.autograd.grad(model(x).float().sum(), x, create_graph=True)
    with hmp.disable_casts():
        penalty = (grad.norm(2, dim=1) - 1).pow(2).mean()
    penalty.backward()
    weights = [one for name, one in model.named_parameters() if name != "3.bias"]
    assert {one.grad.dtype for one in weights if one.grad is not None} == {FP32}
    assert all(one.grad is not None and one.grad.isfinite().all() for one in weights)


def test_float64_passes_gradcheck_untouched() -> None:
    model = small().double()
    x, y = leaf(M.double()), leaf(N.double())
    hmp.convert()
    assert torch.autograd.gradcheck(model, x)
    assert torch.autograd.gradgradcheck(torch.mm, (x, y))
    assert torch.autograd.gradcheck(
        lambda x: F.cross_entropy(F.softmax(x, -1), torch.arange(4)), x, check_forward_ad=True
    )


# ---- the graph and its hooks -----------------------------------------------------------------------------------------


def test_a_graph_that_is_kept_gives_the_same_gradient_again(converted: Converter) -> None:
    x = leaf(M)
    converted(bf16=["mm"], fp32=["softmax"])
    loss = torch.softmax(torch.mm(x, N), -1).pow(2).sum()
    (first,) = torch.autograd.grad(loss, x, retain_graph=True)
    hmp.restore()
    (again,) = torch.autograd.grad(loss, x)
    assert first.dtype is FP32
    assert torch.equal(first, again)


def test_accumulated_gradients_are_the_float32_sum_of_each(converted: Converter) -> None:
    batches = [torch.randn(4, 4) for _ in range(5)]
    converted(bf16=["mm"])
    each = [torch.autograd.grad(torch.mm(batch, w := leaf(N)).float().sum(), w)[0] for batch in batches]
    total = leaf(N)
    for batch in batches:
        torch.mm(batch, total).float().sum().backward()
    hmp.restore()
    expected = each[0]
    for one in each[1:]:
        expected = expected + one
    assert_equal(total.grad, expected)


def test_a_lowered_result_that_keeps_its_gradient_keeps_it_in_its_own_precision(converted: Converter) -> None:
    x = leaf(M)
    converted(bf16=["mm"])
    hidden = torch.mm(x, N)
    hidden.retain_grad()
    hidden.float().pow(2).sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.dtype is BF16
    assert torch.equal(hidden.grad, 2 * hidden.detach().float().bfloat16())
    assert x.grad is not None
    assert x.grad.dtype is FP32


def test_hooks_on_tensors_see_each_gradient_in_its_tensors_precision(converted: Converter) -> None:
    seen: dict[str, torch.dtype] = {}
    x = leaf(M)
    converted(bf16=["mm"])
    hidden = torch.mm(x, N)
    x.register_hook(lambda grad: seen.update(leaf=grad.dtype))
    hidden.register_hook(lambda grad: seen.update(hidden=grad.dtype))
    x.register_post_accumulate_grad_hook(lambda one: seen.update(accumulated=one.grad.dtype))
    torch.autograd.graph.register_multi_grad_hook(
        (x, hidden), lambda grads: seen.update(several=grads[0].dtype, others=grads[1].dtype)
    )
    hidden.sum().backward()
    assert seen == {"leaf": FP32, "hidden": BF16, "accumulated": FP32, "several": FP32, "others": BF16}


def test_hooks_on_nodes_see_the_operation_and_its_casts(converted: Converter) -> None:
    seen: list[tuple[str, torch.dtype]] = []
    x = leaf(M)
    converted(bf16=["mm"])
    out = torch.mm(x, N)
    assert out.grad_fn is not None
    node: Any = out.grad_fn
    node.register_prehook(lambda grads: seen.append(("mm gets", grads[0].dtype)))
    node.register_hook(lambda inputs, _: seen.append(("mm gives", inputs[0].dtype)))
    node.next_functions[0][0].register_hook(lambda inputs, _: seen.append(("the cast gives", inputs[0].dtype)))
    out.sum().backward()
    assert seen == [("mm gets", BF16), ("mm gives", BF16), ("the cast gives", FP32)]


def test_covered_operations_in_a_hook_are_cast_and_the_gradient_is_still_float32(converted: Converter) -> None:
    x, inside = leaf(M), []

    def hook(grad: torch.Tensor) -> torch.Tensor:
        inside.append(torch.mm(grad, N))
        return inside[-1].float()

    x.register_hook(hook)
    converted(bf16=["mm"])
    torch.mm(x, N).sum().backward()
    assert inside[0].dtype is BF16
    assert x.grad is not None
    assert torch.equal(x.grad, inside[0].float())


@pytest.mark.parametrize("arguments", [lambda hook: ((hook,), {}), lambda hook: ((), {"hook": hook})])
def test_a_hook_that_is_registered_later_is_not_cast(arguments: Callable[[Any], Any]) -> None:
    seen = []

    def scaled(grad: torch.Tensor) -> torch.Tensor:
        seen.append(torch.mm(0.1 * grad, N).dtype)
        return grad * lower

    hmp.convert()
    x, lower = leaf(M), M @ M
    hidden = x @ N
    assert lower.dtype is hidden.dtype is BF16
    for tensor in (x, hidden):
        positional, named = arguments(scaled)
        tensor.register_hook(*positional, **named)
    with hmp.disable_casts():
        x.register_hook(lambda grad: seen.append((0.1 * grad).dtype))
    hidden.sum().backward()
    # What hidden gets is lower; a result of another precision than the gradient's is brought back.
    assert seen == [BF16, FP32, FP32]
    assert x.grad is not None
    with hmp.disable_casts():
        expected = ((torch.ones(4, 4).bfloat16() * lower) @ N.bfloat16().t()).float() * lower
    assert torch.equal(x.grad, expected)


@pytest.mark.parametrize("answer", [lambda gradient: None, lambda gradient: gradient], ids=["None", "what it got"])
def test_a_hook_of_a_tensor_that_gets_no_gradient_is_given_none(answer: Callable[[Any], Any]) -> None:
    linear, seen = nn.Linear(8, 8), []
    hmp.convert()
    q, k = linear(torch.ones(2, 8)).chunk(2, -1)
    q.register_hook(lambda gradient: [seen.append(gradient), answer(gradient)][1])
    k.float().sum().backward()
    assert seen == [None]
    assert linear.weight.grad is not None
    assert torch.equal(linear.weight.grad, torch.cat([torch.zeros(4, 8), torch.full((4, 8), 2.0)]))


def test_a_hook_is_called_with_casts_off_or_after_restore_as_it_is() -> None:
    hmp.convert()
    x = leaf(M)
    x.register_hook(lambda grad: grad * 2)
    removed = x.register_hook(lambda grad: None)
    removed.remove()
    hmp.restore()
    (x * 1.0).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((4, 4), 2.0))


def test_a_hook_that_is_interrupted_leaves_the_lists_as_they_were() -> None:
    hmp.convert()
    x = torch.ones(4, 4, requires_grad=True)

    def interrupted(_: torch.Tensor) -> None:
        raise KeyboardInterrupt

    x.register_hook(interrupted)
    with pytest.raises(KeyboardInterrupt):
        torch.mm(x, M).sum().backward()
    assert torch.mm(M, M).dtype is torch.bfloat16


def test_a_hook_after_accumulation_updates_in_float32() -> None:
    def update(weight: torch.Tensor) -> None:
        assert weight.grad is not None
        weight.data.sub_(0.1 * weight.grad * M)

    def train() -> torch.Tensor:
        weight = leaf(M)
        weight.register_post_accumulate_grad_hook(update)
        (weight * 3.0).float().sum().backward()
        return weight.detach()

    expected = train()
    hmp.convert()
    assert torch.equal(train(), expected)


@pytest.mark.parametrize("how", ["step", "disable_casts"])
def test_an_optimizer_that_steps_inside_of_the_backward_steps_in_float32(how: str) -> None:
    def train(inside: bool) -> list[torch.Tensor]:
        model = small()
        optimizers = {weight: torch.optim.Adam([weight], lr=0.1) for weight in model.parameters()}

        def step(weight: torch.Tensor) -> None:
            if how == "step":
                optimizers[weight].step()
            else:
                with hmp.disable_casts():
                    weight.data.sub_(torch.mul(weight.grad, 0.1))
            weight.grad = None

        for _ in range(2):
            handles = [one.register_post_accumulate_grad_hook(step) for one in optimizers if inside]
            model(M).float().pow(2).sum().backward()
            for handle in handles:
                handle.remove()
            for one in [] if inside else optimizers:
                step(one)
        return [one.detach() for one in model.parameters()]

    hmp.convert()
    assert_equal(train(inside=True), train(inside=False))


def test_anomaly_mode_finds_the_operation_and_changes_nothing(converted: Converter) -> None:
    converted(bf16=["mm", "sqrt"])
    plain, watched = leaf(M), leaf(M)
    torch.mm(plain, N).sum().backward()
    with warnings.catch_warnings(), torch.autograd.detect_anomaly(check_nan=True):
        warnings.simplefilter("ignore")
        torch.mm(watched, N).sum().backward()
        assert_equal(plain.grad, watched.grad)
        x = torch.zeros(2, requires_grad=True)
        with pytest.raises(RuntimeError, match="SqrtBackward"):
            (torch.sqrt(x) * 0).sum().backward()


# ---- what is saved for the backward ----------------------------------------------------------------------------------


def test_saved_tensors_are_packed_in_the_precision_of_the_operation(converted: Converter) -> None:
    packed: list[torch.dtype] = []

    def pack(one: torch.Tensor) -> tuple[torch.Tensor]:
        packed.append(one.dtype)
        return (one.clone(),)

    plain, hooked = leaf(M), leaf(M)
    converted(bf16=["mm"], fp32=["softmax"])
    torch.softmax(torch.mm(plain, N), -1).pow(2).sum().backward()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda given: given[0]):
        out = torch.softmax(torch.mm(hooked, N), -1).pow(2).sum()
    out.backward()
    assert packed == [BF16, FP32, FP32]
    assert_equal(hooked.grad, plain.grad)


def test_operations_in_the_saved_tensor_hooks_may_be_covered_themselves(converted: Converter) -> None:
    plain, hooked = leaf(M), leaf(M)
    converted(bf16=["mm", "mul"])
    torch.mm(plain, N).float().pow(2).sum().backward()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda one: (one.dtype, one * 2), lambda kept: (kept[1] * 0.5).to(kept[0])
    ):
        out = torch.mm(hooked, N).float()
    out.pow(2).sum().backward()
    assert_equal(hooked.grad, plain.grad)


@pytest.mark.parametrize("error", [RuntimeError, ValueError, TypeError, IndexError])
@pytest.mark.parametrize("name", ["mm", "conv2d", "gru", "softmax"])
def test_an_error_of_a_hook_of_saved_tensors_is_not_taken_for_one_of_torch(name: str, error: type[Exception]) -> None:
    layer = nn.GRU(4, 4)
    calls: dict[str, Callable[[], Any]] = {
        "mm": lambda: torch.mm(leaf(M), N),
        "conv2d": lambda: F.conv2d(leaf(torch.randn(1, 2, 5, 5)), torch.randn(3, 2, 3, 3)),
        "gru": lambda: layer(leaf(torch.randn(3, 2, 4))),
        "softmax": lambda: torch.softmax(leaf(M.bfloat16()), -1),
    }
    packed = []

    def pack(one: torch.Tensor) -> torch.Tensor:
        packed.append(one)
        raise error("no room")

    hmp.convert(preset="torch-cpu")
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one), pytest.raises(error, match="no room"):
        calls[name]()
    assert len(packed) == 1


class Checking(TorchDispatchMode):
    """Raises where a value is not finite."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_floating_point() and not result.isfinite().all():
            raise RuntimeError("not finite")
        return result


def test_an_error_of_a_mode_is_not_taken_for_one_of_torch_and_torchs_own_is(converted: Converter) -> None:
    converted(bf16=["mm"], dtype=FP16)
    with Checking():
        assert torch.mm(M, N).dtype is torch.float16
        with pytest.raises(RuntimeError, match="not finite"):
            torch.mm(M * 1e4, N * 1e4)
    converted(bf16=["mm"])
    lowered, on_meta = torch.mm(M, N), torch.mm(M.to("meta"), N.to("meta"))
    with torch.autocast("cpu", enabled=False):
        with Checking():  # whose kernel wants one precision, as `torch._check` of the function for meta tensors does
            assert torch.lerp(lowered, M, 0.5).dtype is FP32
        assert torch.lerp(on_meta, M.to("meta"), 0.5).dtype is FP32


def test_an_error_of_torch_that_a_mode_tells_on_is_one_of_torch(converted: Converter) -> None:
    class Telling(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            try:
                return function(*args, **(kwargs or {}))
            except RuntimeError as error:
                raise RuntimeError(f"in {function}") from error

    converted(bf16=["mm"])
    lowered = torch.mm(M, N)
    with torch.autocast("cpu", enabled=False), Telling():
        assert torch.lerp(lowered, M, 0.5).dtype is FP32


def compressed(tensor: torch.Tensor) -> Any:
    """The usual eight bits, by arithmetic that the default lists lower."""
    if not tensor.is_floating_point():
        return tensor, None
    scale = tensor.abs().max() / 127
    return (tensor / scale).round().to(torch.int8), scale


def expanded(kept: Any) -> torch.Tensor:
    value, scale = kept
    return value if scale is None else value.float() * scale


@pytest.mark.parametrize("backend", [None, "aot_eager"])
@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.softmax(x, -1),
        lambda x: F.cross_entropy(x, torch.arange(4)),
        lambda x: torch.cdist(x, x + 1),
        lambda x: F.prelu(x - 0.5, torch.full((1,), 0.25)),
        torch.linalg.svdvals,
        lambda x: torch.mm(x, N),
    ],
)
def test_what_a_hook_computes_is_unpacked_in_the_precision_that_was_packed(call: Loss, backend: str | None) -> None:
    expected, hooked = leaf(M), leaf(M)
    call(expected).sum().backward()
    hmp.convert()
    call = torch.compile(call, backend=backend) if backend else call
    with torch.autograd.graph.saved_tensors_hooks(pack_hook=compressed, unpack_hook=expanded):
        out = call(hooked)
    out.sum().backward()
    torch.testing.assert_close(hooked.grad, expected.grad, rtol=0.05, atol=0.05)
    assert hooked.grad is not None
    assert hooked.grad.dtype is FP32


def normalised(gradients: Any) -> tuple[torch.Tensor]:
    return (gradients[0] / (gradients[0].norm() + 1e-6),)


GradientOf = Callable[[Any], tuple[torch.Tensor]]


@pytest.mark.parametrize("options", [{}, {"preset": "torch-cpu"}, {"opt_level": "O2"}], ids=str)
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(
    "hook",
    [
        normalised,
        lambda gradients: (torch.softmax(gradients[0], -1),),
        lambda gradients: (torch.where(gradients[0] > 0, gradients[0], torch.zeros(())),),
        lambda gradients: (gradients[0] * 2,),
    ],
)
def test_a_modules_hooks_may_compute_gradients(hook: GradientOf, before: bool, options: dict[str, str]) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    if before:
        hmp.convert(**options)
    module[2].register_full_backward_hook(lambda _, inputs, outputs: hook(inputs))
    module[0].register_full_backward_pre_hook(lambda _, outputs: hook(outputs))
    module[2].register_full_backward_hook(lambda _, inputs, outputs: None)
    if not before:
        module(leaf(M)).pow(2).sum().backward()
        hmp.convert(**options)
    plain = [one.grad.clone() if one.grad is not None else None for one in module.parameters()]
    module.zero_grad()
    module(leaf(M)).float().pow(2).sum().backward()
    for one, expected in zip(module.parameters(), plain, strict=True):
        assert one.grad is not None
        assert one.grad.dtype is FP32
        if expected is not None:
            torch.testing.assert_close(one.grad, expected, rtol=0.05, atol=0.05 * expected.abs().max().item())


def test_a_modules_hook_that_is_wrong_raises_what_torch_raises(converted: Converter) -> None:
    module = nn.Linear(4, 4)
    module.register_full_backward_hook(lambda _, inputs, outputs: (None, None))
    converted(bf16=["linear"])
    with pytest.raises(RuntimeError, match="invalid number of grad_input, got 2, but expected 1"):
        module(leaf(M)).sum().backward()


def test_saving_on_the_cpu_gives_the_same_gradients() -> None:
    plain, saved = small(), small()
    hmp.convert()
    plain(M).float().pow(2).sum().backward()
    with torch.autograd.graph.save_on_cpu():
        out = saved(M).float().pow(2).sum()
    out.backward()
    assert_equal([one.grad for one in saved.parameters()], [one.grad for one in plain.parameters()])


# ---- torch.autograd.Function -----------------------------------------------------------------------------------------


class Product(torch.autograd.Function):
    """A linear layer by hand, as in torch's tutorial."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return torch.mm(x, weight.t())

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        return grads[0].mm(weight), torch.mm(grads[0].t(), x)


class LateProduct(Product):
    """The same with setup_context and rules for torch.func."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return torch.mm(x, weight.t())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs)


@pytest.mark.parametrize("function", [Product, LateProduct])
def test_a_function_with_a_backward_of_its_own_casts_in_both(converted: Converter, function: Any) -> None:
    x, weight = leaf(M), leaf(N)
    converted(bf16=["mm"])
    out = function.apply(x, weight)
    out.backward(N)
    hmp.restore()
    by_hand = M.bfloat16() @ N.bfloat16().t()
    assert_equal(out.detach(), by_hand)
    grad = N.bfloat16()
    assert_equal([x.grad, weight.grad], [(grad @ N.bfloat16()).float(), (grad.t() @ M.bfloat16()).float()])


class Seen(torch.autograd.Function):
    """It notes the precision of a product in its backward, and that of a part that it runs again to record it."""

    seen: ClassVar[list[torch.dtype]] = []

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        Seen.seen.append(torch.mm(x, N).dtype)
        with torch.enable_grad():
            Seen.seen.append(torch.mm(x, N).dtype)
        return grads[0] * 2


def test_a_backward_written_in_python_is_not_lowered_as_under_autocast(converted: Converter) -> None:
    def seen(context: Any) -> list[torch.dtype]:
        Seen.seen.clear()
        with context:
            out = Seen.apply(leaf(M))
        out.float().sum().backward()
        return list(Seen.seen)

    assert seen(torch.autocast("cpu"))[0] is FP32
    converted(bf16=["mm"])
    # What records in a backward is a forward that is made a second time.
    assert seen(contextlib.nullcontext()) == [FP32, BF16]
    assert torch.mm(M, N).dtype is BF16
    with hmp.autocast("cpu", preset="torch-cpu"):
        assert seen(contextlib.nullcontext()) == [BF16, BF16]


def test_a_backward_that_raises_leaves_the_lists_as_they_were(converted: Converter) -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            raise KeyError("mine")

    converted(bf16=["mm"])
    with pytest.raises(KeyError, match="mine"):
        Fails.apply(leaf(M)).sum().backward()
    assert torch.mm(M, N).dtype is BF16


def test_a_function_of_ones_own_without_casts_stays_without_casts(converted: Converter) -> None:
    x, weight = leaf(M), leaf(N)
    converted(bf16=["mm"])
    with hmp.disable_casts():
        out = Product.apply(x, weight)
        out.backward(N)
    hmp.restore()
    assert_equal([out.detach(), x.grad, weight.grad], [M @ N.t(), N @ N, N.t() @ M])


def test_a_function_of_ones_own_goes_through_func_transforms(converted: Converter) -> None:
    def total(f: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda weight: f(M, weight).float().sum()

    batch = torch.stack([M, N])
    converted(bf16=["mm"])
    expected = torch.stack([torch.func.grad(total(lambda x, w: torch.mm(x, w.t())))(one) for one in batch])
    assert_equal(torch.func.grad(total(LateProduct.apply))(M), expected[0])
    assert_equal(torch.func.vmap(torch.func.grad(total(LateProduct.apply)))(batch), expected)


def test_a_checked_function_sees_no_gradient_of_another_dtype(converted: Converter) -> None:
    kinds: list[torch.dtype] = []

    class Watching(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            kinds.append(grads[0].dtype)
            return grads[0]

    x = leaf(M)
    converted(bf16=["mm"])
    torch.mm(Watching.apply(x), N).sum().backward()
    Watching.apply(torch.mm(x, N)).sum().backward()
    assert kinds == [FP32, BF16]


@pytest.mark.parametrize("options", [{}, {"cast_inputs": FP16}, {"cast_inputs": FP32}], ids=str)
@pytest.mark.parametrize("disabled", [False, True], ids=["casts", "disabled"])
def test_a_function_written_for_autocast_has_the_casts_of_any_other(options: dict[str, Any], disabled: bool) -> None:
    class ForAutocast(Product):
        forward = staticmethod(custom_fwd(Product.forward, device_type="cpu", **options))
        backward = staticmethod(custom_bwd(Product.backward, device_type="cpu"))

    found = []
    hmp.convert()
    for function in (ForAutocast, Product):
        x, weight = leaf(M), leaf(N)
        with hmp.disable_casts() if disabled else contextlib.nullcontext():
            out = function.apply(x, weight)
            out.backward(N.to(out.dtype))
        assert out.dtype is (FP32 if disabled else BF16)
        found.append([out.detach(), x.grad, weight.grad])
    assert_equal(*found)


def test_a_backward_written_for_autocast_obeys_regions_around_it_and_inside_of_it() -> None:
    kinds = []

    class ForAutocast(torch.autograd.Function):
        @staticmethod
        @custom_fwd(device_type="cpu")
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        @custom_bwd(device_type="cpu")
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            kinds.append(torch.mm(M, N).dtype)
            with torch.autocast("cpu", enabled=False):
                kinds.append(torch.mm(M, N).dtype)
            return grads[0]

    hmp.convert()
    for region in (contextlib.nullcontext, hmp.disable_casts, lambda: torch.autocast("cpu", enabled=False)):
        out = ForAutocast.apply(leaf(M)).sum()
        with region():
            out.backward()
    assert kinds == [BF16, FP32, FP32, FP32, FP32, FP32]


# ---- torch.func, torch.autograd.functional, forward mode -------------------------------------------------------------


def test_per_sample_gradients_are_those_of_each_sample_alone() -> None:
    samples, labels = torch.randn(3, 4), torch.tensor([0, 1, 3])
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
    weights = dict(model.named_parameters())

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        out = torch.func.functional_call(model, weights, (x[None],))
        return F.cross_entropy(out, label[None])

    hmp.convert()
    grad = torch.func.grad(loss)
    got = torch.func.vmap(grad, in_dims=(None, 0, 0))(weights, samples, labels)
    each = [grad(weights, x, label) for x, label in zip(samples, labels, strict=True)]
    for name, stacked in got.items():
        assert stacked.dtype is FP32
        torch.testing.assert_close(stacked, torch.stack([one[name] for one in each]), rtol=2e-2, atol=2e-3)


NORMS = {
    "layer": lambda: nn.LayerNorm(6),
    "group": lambda: nn.GroupNorm(2, 6),
    "batch": lambda: nn.BatchNorm1d(6).eval(),
    "instance": lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2, affine=True), nn.Flatten()),
    "encoder": lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0),
}


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS.keys())
def test_transforms_go_through_norms_of_lowered_activations(norm: Callable[[], nn.Module]) -> None:
    # The formulas of torch's transforms do not take a float32 weight beside a lower input, as the kernels do.
    model = nn.Sequential(nn.Linear(4, 6), norm(), nn.Linear(6, 2))
    weights, samples = dict(model.named_parameters()), torch.randn(3, 4)

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, weights, (x[None],)).exp().sum()

    # A linear layer's bias before an instance norm has no gradient but rounding.
    told = [name for name in weights if name != "0.bias"]
    plain = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, samples)
    hmp.convert()
    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, samples)
    jacobian = torch.func.jacrev(loss)(weights, samples[0])
    for name in told:
        for got, expected in ((per_sample[name], plain[name]), (jacobian[name], plain[name][0])):
            assert got.dtype is FP32
            torch.testing.assert_close(got, expected, rtol=0.1, atol=0.05 * expected.abs().max().item() + 1e-3)
    if not isinstance(model[1], nn.TransformerEncoderLayer):  # torch's attention has no forward mode
        tangent = torch.func.jvp(lambda x: loss(weights, x), (samples[0],), (samples[1],))[1]
        expected = torch.func.grad(lambda x: loss(weights, x))(samples[0]) @ samples[1]
        torch.testing.assert_close(tangent.float(), expected.float(), rtol=0.1, atol=0.1)


def model_loss(x: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(torch.mm(x, N), -1).pow(2).sum()


def model_loss_by_hand(x: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(torch.mm(low(x), low(N)).float(), -1).pow(2).sum()


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: torch.func.jacrev(torch.func.jacfwd(f))(M),
        lambda f: torch.func.jacfwd(torch.func.jacrev(f))(M),
        lambda f: torch.func.jvp(torch.func.grad(f), (M,), (N,)),
        lambda f: torch.autograd.functional.hessian(f, M),
        lambda f: torch.autograd.functional.hvp(f, M, N),
        lambda f: torch.autograd.functional.vhp(f, M, N),
        lambda f: torch.autograd.functional.vjp(f, M),
        lambda f: torch.autograd.functional.jvp(f, M, N),
        lambda f: torch.autograd.functional.jacobian(f, M, vectorize=True),
        lambda f: torch.autograd.functional.jacobian(f, M, vectorize=True, strategy="forward-mode"),
    ],
    ids=["rev-fwd", "fwd-rev", "jvp-grad", "hessian", "hvp", "vhp", "vjp", "jvp", "jacobian", "jacobian-forward"],
)
def test_transforms_of_a_mixed_function_are_those_of_casts_by_hand(
    converted: Converter, transform: Callable[[Loss], Any]
) -> None:
    expected = transform(model_loss_by_hand)
    converted(bf16=["mm"], fp32=["log_softmax"])
    torch.testing.assert_close(transform(model_loss), expected)


def test_forward_mode_through_a_whole_model_is_that_of_reverse_mode() -> None:
    model, tangent = small(), torch.randn(4, 4)
    hmp.convert()
    with fwd.dual_level():
        out = fwd.unpack_dual(model(fwd.make_dual(M, tangent)))
    x = leaf(M)
    (reverse,) = torch.autograd.grad(model(x).float().sum(), x)
    hmp.restore()
    assert out.tangent is not None
    torch.testing.assert_close(out.tangent.float().sum(), (reverse * tangent).sum(), rtol=3e-2, atol=3e-2)


# ---- in place, views, inference --------------------------------------------------------------------------------------


def test_writing_into_a_view_passes_the_gradient_of_both(converted: Converter) -> None:
    def run(product: Callable[..., torch.Tensor]) -> list[torch.Tensor | None]:
        x, y = leaf(M), leaf(N)
        base = x.clone()
        base[1:3] = product(y, y)[1:3]
        base.t()[0].mul_(2)
        base.view(-1)[3:5].add_(product(x, y).view(-1)[:2])
        base.pow(2).sum().backward()
        return [x.grad, y.grad]

    expected = run(lambda a, b: (low(a) @ low(b)).float())
    converted(bf16=["mm"])
    assert_equal(run(torch.mm), expected)


def test_changing_what_was_saved_in_its_own_precision_is_still_an_error(converted: Converter) -> None:
    x = leaf(M)
    converted(bf16=["mm", "exp"])
    out = torch.exp(x)
    out.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_changing_a_float32_input_after_its_cast_leaves_the_gradient_right(converted: Converter) -> None:
    x, other = leaf(M), N.clone()
    converted(bf16=["mm"])
    out = torch.mm(x, other)
    other.zero_()
    out.sum().backward()
    hmp.restore()
    assert_equal(x.grad, (torch.ones(4, 4).bfloat16() @ N.bfloat16().t()).float())


def test_a_detached_lowered_result_shares_its_memory(converted: Converter) -> None:
    converted(bf16=["mm"])
    out = torch.mm(leaf(M), N)
    out.detach().zero_()
    assert out.eq(0).all()


def test_inference_tensors_are_refused_by_the_backward_as_in_torch(converted: Converter) -> None:
    with torch.inference_mode():
        fixed = torch.ones(4, 4)
    converted(bf16=["relu"], fp32=["exp"])
    x = leaf(M)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        x * fixed
    with torch.inference_mode():
        assert torch.relu(fixed).is_inference()
        assert torch.exp(torch.relu(fixed)).dtype is FP32


def test_no_grad_and_enable_grad_decide_what_is_recorded(converted: Converter) -> None:
    x = leaf(M)
    converted(bf16=["mm"])
    with torch.no_grad():
        assert not torch.mm(x, N).requires_grad
        with torch.enable_grad():
            assert torch.mm(x, N).requires_grad
    assert torch.mm(x.detach(), N).grad_fn is None


# ---- threads ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def test_a_backward_in_another_thread_gives_the_same_gradients(pool: ThreadPoolExecutor) -> None:
    here, there = small(), small()
    hmp.convert()
    here(M).float().pow(2).sum().backward()
    loss = there(M).float().pow(2).sum()
    pool.submit(loss.backward).result()
    assert_equal([one.grad for one in there.parameters()], [one.grad for one in here.parameters()])


def test_backwards_of_many_threads_add_up_in_shared_weights(pool: ThreadPoolExecutor) -> None:
    model, x = small(), M
    hmp.convert()
    model(x).float().pow(2).sum().backward()
    single = [one.grad for one in model.parameters()]
    model.zero_grad()
    start = threading.Barrier(4)

    def work(_: int) -> None:
        start.wait()
        for _ in range(4):
            model(x).float().pow(2).sum().backward()

    list(pool.map(work, range(4)))
    hmp.restore()
    for weight, one in zip(model.parameters(), single, strict=True):
        assert weight.grad is not None
        assert one is not None
        torch.testing.assert_close(weight.grad, 16 * one)


def test_one_graph_may_be_walked_by_two_threads(pool: ThreadPoolExecutor, converted: Converter) -> None:
    x = leaf(M)
    converted(bf16=["mm"])
    shared = torch.mm(x, N)
    losses = [shared.float().sum(), shared.float().pow(2).sum()]
    got = list(pool.map(lambda loss: torch.autograd.grad(loss, x, retain_graph=True)[0], losses))
    assert_equal(got, [torch.autograd.grad(loss, x, retain_graph=True)[0] for loss in losses])
