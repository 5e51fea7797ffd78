"""`linear -> fp32`: operands in lower precision, the sum of their products as the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import ListError, hmp
from habana_mp.run.lists import difference
from helpers.each import each
from helpers.lists import write_list

pytestmark = pytest.mark.usefixtures("with_and_without_instructions")
Call = Callable[..., torch.Tensor]

#: Calls, the sizes of their tensors, and the position of the one that is added.
CALLS: dict[str, tuple[Call, Sequence[tuple[int, ...]], int | None]] = {
    "linear": (F.linear, [(65, 97), (130, 97), (130,)], 2),
    "linear of batches": (F.linear, [(3, 20, 96), (128, 96), (128,)], 2),
    "linear of a vector": (F.linear, [(96,), (128, 96), (128,)], 2),
    "linear of one row": (F.linear, [(1, 96), (128, 96)], None),
    "linear, one number for all": (F.linear, [(64, 96), (128, 96), (1,)], 2),
    "linear of nothing": (F.linear, [(0, 96), (128, 96), (128,)], 2),
    "matmul": (lambda x, w: x @ w.t(), [(4, 16, 96), (160, 96)], None),
    "matmul of strides": (lambda x, w: torch.matmul(x[..., ::2], w.t()[::2]), [(4, 16, 96), (160, 96)], None),
    "matmul of batches": (torch.matmul, [(2, 8, 64, 32), (1, 8, 32, 48)], None),
    "mm": (torch.mm, [(64, 96), (96, 160)], None),
    "mv": (torch.mv, [(64, 96), (96,)], None),
    "addmm": (torch.addmm, [(160,), (64, 96), (96, 160)], 0),
    "addmm, scaled": (lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=2.0), [(64, 160), (64, 96), (96, 160)], 0),
    "bmm": (torch.bmm, [(8, 64, 32), (8, 32, 48)], None),
    "baddbmm": (lambda b, x, w: torch.baddbmm(b, x, w, alpha=2.0), [(8, 64, 48), (8, 64, 32), (8, 32, 48)], 0),
    "einsum": (lambda q, k: torch.einsum("bqd,bkd->bqk", q, k), [(8, 40, 32), (8, 30, 32)], None),
    "tensordot": (lambda x, w: torch.tensordot(x, w, 1), [(8, 64), (64, 32)], None),
    "bilinear": (F.bilinear, [(30, 20), (30, 25), (7, 20, 25), (7,)], 3),
    "conv1d": (lambda x, w: F.conv1d(x, w, padding="same"), [(4, 16, 200), (32, 16, 3)], None),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, 2, 1), [(4, 16, 20, 20), (32, 16, 3, 3), (32,)], 2),
    "conv_transpose2d": (F.conv_transpose2d, [(4, 16, 20, 20), (16, 32, 3, 3), (32,)], 2),
}
LISTED = (
    *["linear", "matmul", "mm", "mv", "addmm", "bmm", "baddbmm", "einsum", "tensordot", "bilinear"],
    *["conv1d", "conv2d", "conv_transpose2d"],
)


def convert(dtype: torch.dtype = torch.bfloat16, result: str = " -> fp32", **options: object) -> None:
    hmp.convert(dtype=dtype, rules=dict.fromkeys(LISTED, f"lower{result}"), **options)  # type: ignore[arg-type]  # of any type


def exact(
    call: Call, values: list[torch.Tensor], added: int | None, dtype: torch.dtype, gradient: torch.Tensor | None
) -> list[torch.Tensor]:
    """The call in float64 with rounded operands, and the gradients of a result whose gradient is rounded."""
    with hmp.disable_casts(), torch.enable_grad():
        operands = [
            (one.detach() if place == added else one.detach().to(dtype)).double().requires_grad_()
            for place, one in enumerate(values)
        ]
        result = call(*operands)
        if gradient is None:
            return [result.detach()]
        return [result.detach(), *torch.autograd.grad(result, operands, gradient.to(dtype).double())]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@each("are_lower", [False, True])
@each("name", CALLS)
def test_the_result_is_the_float32_sum_and_gradients_are_sums_too(
    dtype: torch.dtype, name: str, are_lower: bool
) -> None:
    call, sizes, added = CALLS[name]
    values = [torch.randn(one) for one in sizes]
    given = [one.to(dtype) if are_lower and place != added else one.clone() for place, one in enumerate(values)]
    given = [one.requires_grad_() for one in given]
    convert(dtype)
    made = call(*given)
    gradient = torch.randn_like(made)
    wanted = exact(call, values, added, dtype, gradient)
    gradients = torch.autograd.grad(made, given, gradient)
    assert made.dtype is torch.float32
    assert [one.dtype for one in gradients] == [one.dtype for one in given]
    for one, other in zip([made.detach(), *gradients], wanted, strict=True):
        near = 1e-5 if one.dtype is torch.float32 else torch.finfo(dtype).eps
        largest = other.abs().max().item() if other.numel() else 0.0
        assert ((one.double() - other).abs() <= near * largest).all()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            untracked = call(*given)
        assert untracked.dtype is torch.float32
        torch.testing.assert_close(untracked.double(), wanted[0], rtol=1e-5, atol=1e-4)


@each("name", [one for one in CALLS if one not in ("linear of nothing", "addmm, scaled")])
def test_small_whole_numbers_have_the_bits_of_float64(name: str) -> None:
    call, sizes, _ = CALLS[name]
    values = [torch.randint(-8, 9, one).float() for one in sizes]
    convert()
    with hmp.disable_casts():
        wanted = call(*(one.double() for one in values)).float()
    assert torch.equal(call(*values), wanted)
    assert torch.equal(call(*(one.requires_grad_() for one in values)).detach(), wanted)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(200, 48)
        self.inner = nn.Linear(48, 48)
        self.lm_head = nn.Linear(48, 200, bias=False)
        self.lm_head.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.lm_head(torch.relu(self.inner(self.words(words))))
        return made


HEAD = {"linear @ lm_head": "bf16 -> fp32"}


def test_a_line_holds_in_its_modules_and_a_tied_weight_is_cached_once() -> None:
    model, words = Tied().requires_grad_(False), torch.randint(0, 200, (2, 7))
    hmp.convert(preset="torch-cpu", rules=HEAD)
    assert model.lm_head(torch.randn(2, 48)).dtype is torch.float32
    assert model.inner(torch.randn(2, 48)).dtype is torch.bfloat16
    model(words)
    hmp.reset_report()
    model(words)
    report = hmp.report(show=False)
    rows = {(row.operation, row.ran_in): row for row in report.rows}
    assert {("linear", "bf16 -> fp32"), ("linear", "bf16")} <= rows.keys()
    assert rows["linear", "bf16 -> fp32"].rule == "rules['linear @ lm_head']"
    assert report.weights.weights == 3  # of the head, of `inner`, and its bias
    assert "All 2 products ran in bf16, 1 of them with a float32 result" in report.words[0]


@pytest.mark.parametrize("compiled", ["eager", "inductor", "export"])
def test_compiled_and_exported_code_has_the_same_values(compiled: str) -> None:
    model, words = Tied(), torch.randint(0, 200, (2, 7))
    hmp.convert(preset="torch-cpu", rules={"linear": "bf16 -> fp32"})

    def run(call: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        made = call(words)
        return [made.detach(), *torch.autograd.grad(made.square().sum(), [*model.parameters()])]

    expected = run(model)
    if compiled == "export":
        exported = torch.export.export(model, (words,)).module()
        found = [exported(words)]
        found[0].sum().backward()
        assert all(one.grad is not None for one in exported.parameters())
    else:
        found = run(torch.compile(model, backend="aot_eager" if compiled == "eager" else compiled))
    for one, other in zip(found, expected[: len(found)], strict=True):
        assert one.dtype is torch.float32
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_transforms_and_second_derivatives() -> None:
    weight, x = torch.randn(12, 20), torch.randn(5, 20)
    hmp.convert(preset="torch-cpu", rules={"linear": "bf16 -> fp32"})

    def loss(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight).square().sum()

    whole = torch.func.grad(loss)(weight, x)
    each_row = torch.func.vmap(torch.func.grad(loss), (None, 0))(weight, x[:, None])
    assert whole.dtype is each_row.dtype is torch.float32
    torch.testing.assert_close(each_row.sum(0), whole, rtol=2e-2, atol=2e-2)  # other gradients are rounded
    made, tangent = torch.func.jvp(lambda w: F.linear(x, w), (weight,), (torch.ones_like(weight),))
    assert made.dtype is tangent.dtype is torch.float32
    given = weight.clone().requires_grad_()
    (first,) = torch.autograd.grad(loss(given, x), given, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), given)
    with hmp.disable_casts():
        rounded = x.bfloat16().float()
        wanted = (2 * rounded.sum(1) @ rounded).expand(12, -1)
    torch.testing.assert_close(second, wanted, rtol=2e-2, atol=5e-1)


class Subclass(torch.Tensor):
    pass


@each("call", [F.linear, lambda x, w: x @ w.t(), lambda x, w: torch.bmm(x[None], w.t()[None])[0]])
def test_an_operand_of_a_subclass_gets_its_gradient(call: Call) -> None:
    hmp.convert(preset="torch-cpu", rules=dict.fromkeys(LISTED, "lower -> fp32"))
    weight = nn.Parameter(torch.randn(4, 8).as_subclass(Subclass))
    call(torch.randn(2, 8), weight).sum().backward()
    assert weight.grad is not None


@each("result", ["", " -> fp32"])
@each("name", CALLS)
def test_a_backward_adds_nothing_to_what_is_watched(counted: None, name: str, result: str) -> None:
    call, sizes, _ = CALLS[name]
    convert(result=result)
    with hmp.watch():
        made = call(*(torch.randn(one, requires_grad=True) for one in sizes))
        before = [row.operation for row in hmp.report(show=False).rows]
        made.backward(torch.ones_like(made))
    assert [row.operation for row in hmp.report(show=False).rows] == before


@each("name", ["linear of a vector", "linear", "bmm", "conv2d", "einsum"])
def test_results_can_be_written_into(name: str) -> None:
    call, sizes, _ = CALLS[name]
    values = [torch.randn(one, requires_grad=True) for one in sizes]
    convert()
    gradients = torch.autograd.grad(call(*values).add_(1).relu_().sum(), values)
    expected = torch.autograd.grad((call(*values) + 1).relu().sum(), values)
    assert all(torch.equal(one, other) for one, other in zip(gradients, expected, strict=True))


def test_torch_jit_records_it() -> None:
    hmp.convert(preset="torch-cpu", rules=dict.fromkeys(LISTED, "lower -> fp32"))
    model, x = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2)), torch.randn(3, 8)
    traced = torch.jit.trace(model, x)
    assert torch.equal(traced(x), model(x))


def test_op_wrap_gives_one_product_a_float32_result() -> None:
    product = hmp.op_wrap(F.linear, to="bf16 -> fp32")
    x, w = torch.randn(3, 20), torch.randn(4, 20)
    assert torch.equal(product(x, w), F.linear(x, w))
    hmp.convert(preset="torch-cpu")
    wanted = x.bfloat16().double() @ w.bfloat16().double().t()
    torch.testing.assert_close(product(x, w).double(), wanted, rtol=1e-5, atol=1e-5)
    assert F.linear(x, w).dtype is torch.bfloat16
    for function, to in ((torch.softmax, "bf16 -> fp32"), (lambda x: x, "bf16 -> fp32"), (F.linear, "fp32 -> bf16")):
        with pytest.raises(ValueError, match="-> fp32"):
            hmp.op_wrap(function, to=to)


#: Lines in the list of the lower precision, and what the error says.
WRONG = {
    "linear ->": "write `linear -> fp32`",
    "-> fp32": "must hold one operation name",
    "linear -> bf16": "write `linear -> fp32`",
    "linear -> float32": "write `linear -> fp32`",
    "linear -> fp32 -> fp32": "write `linear -> fp32`",
    "linear -> fp32 @ lm_head": "write `linear @ lm_head -> fp32`",
    "* @ lm_head -> fp32": "as `linear @ lm_head -> fp32`",
    "linear => fp32": "the arrow .* is `->`",
    "linear - > fp32": "the arrow .* is `->`",
    "linear lm_head -> fp32": "must hold one operation name",
    "linar -> fp32": "did you mean `linear`",
    "softmax -> fp32": "write `softmax` into the float32 list",
    "scaled_dot_product_attention @ x -> fp32": "cannot have -> fp32",
    "linear @ -> fp32": "a pattern of modules must follow",
}


@each("line", WRONG)
def test_a_wrong_line_is_named_with_what_to_write(tmp_path: Path, line: str) -> None:
    path = write_list(tmp_path / "bf16.txt", ["matmul", line])
    with pytest.raises(ListError, match=WRONG[line]) as caught:
        hmp.convert(bf16_file_path=path)
    assert f"{path}:2" in str(caught.value)


def test_lines_that_disagree_are_an_error(tmp_path: Path) -> None:
    lower, fp32 = tmp_path / "bf16.txt", tmp_path / "fp32.txt"
    for lines, others, says in (
        (["linear -> fp32"], ["linear"], "gives linear another precision"),
        (["linear", "linear -> fp32"], ["softmax"], "gives linear another precision"),
        (
            ["relu", "linear @ a", "linear @ a -> fp32"],
            ["softmax"],
            "gives bf16 -> fp32, and the equally specific line",
        ),
        (["relu"], ["linear -> fp32"], "belongs into the list of the lower precision"),
    ):
        paths = write_list(lower, lines), write_list(fp32, others)
        with pytest.raises(ListError, match=says):
            hmp.convert(bf16_file_path=paths[0], fp32_file_path=paths[1])
    for value in ("bf16 -> fp16", "fp32 -> bf16", "fp32 -> fp32", "-> fp32", "bf16 ->"):
        with pytest.raises(ListError, match=r"rules\['linear'\]"):
            hmp.convert(rules={"linear": value})
    assert not hmp.is_converted()


def test_a_comparison_of_lists_sees_it(tmp_path: Path) -> None:
    files = [write_list(tmp_path / name, [line]) for name, line in (("a.txt", "linear"), ("b.txt", "linear -> fp32"))]
    assert difference(files[0], files[0]) == []
    assert [line.rpartition(": ")[2] for line in difference(*files)] == ["linear  listed", "linear -> fp32  listed"]
