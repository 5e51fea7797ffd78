"""Compiled code follows the state: convert, restore, disable_casts, other lists; each is compiled once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from habana_mp import hmp
from helpers.comparing import assert_same
from helpers.compiled_functions import FUNCTIONS, M, N
from helpers.models import Calls
from helpers.probes import BF16, FP32

pytestmark = pytest.mark.usefixtures("compiled_anew", "one_thread")


# ---- states and recompilation ----------------------------------------------------------------------------------------


def states() -> list[tuple[Callable[[], Any], torch.dtype]]:
    return [
        (lambda: torch.set_grad_enabled(True), BF16),
        (hmp.disable_casts, FP32),
        (lambda: torch.autocast("cpu", enabled=False), FP32),
    ]


def test_a_product_follows_each_state_with_the_code_of_that_state() -> None:
    hmp.convert()
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(torch.mm, backend=counter)
    for index in (0, 1, 2, 1, 0, 2) * 2:
        context, expected = states()[index]
        with context():
            assert compiled(M, N).dtype is expected
    assert counter.frame_count <= 3


@pytest.mark.parametrize("is_first", [False, True], ids=["in the middle", "first"])
@pytest.mark.parametrize("name", ["convert", "restore"])
def test_convert_and_restore_in_a_compiled_function_raise_one_clear_error(name: str, is_first: bool) -> None:
    def changing(x: torch.Tensor) -> torch.Tensor:
        y = x if is_first else x @ x
        getattr(hmp, name)()
        return y + x

    is_converted = name == "restore"
    if is_converted:
        hmp.convert()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError, match=rf"`hmp\.{name}` was called in a function that torch\.compile compiles"):
            torch.compile(changing, backend="eager")(M)
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported):
            torch.compile(changing, backend="eager", fullgraph=True)(M)
    assert hmp.is_converted() is is_converted


def test_convert_is_called_from_compiled_code_where_the_compiler_is_told_to_stay_out() -> None:
    @torch.compiler.disable
    def outside() -> None:
        hmp.convert()

    def calling(x: torch.Tensor) -> torch.Tensor:
        y = x + x
        outside()
        return y

    torch.compile(calling, backend="eager")(M)
    assert hmp.is_converted()


def test_a_new_policy_is_compiled_once_and_restore_forgets_it() -> None:
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(lambda x, y: torch.mm(x, y), backend=counter)
    found = []
    for step in range(1, 7):
        (hmp.convert if step % 2 else hmp.restore)()
        found.append([compiled(M, N).dtype for _ in range(3)])
        assert counter.frame_count == step
    assert found == [[BF16] * 3, [FP32] * 3] * 3


@pytest.mark.parametrize("how", ["marked", "automatic"])
def test_sizes_are_recompiled_as_often_as_in_plain_torch(how: str) -> None:
    def frames() -> tuple[int, list[torch.Tensor]]:
        torch._dynamo.reset()
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(
            lambda x, y: F.normalize(torch.softmax(x @ y, -1) + x[:1, :1]),
            backend=counter,
        )
        found = []
        for size in (5, 3, 7, 12, 2, 64):
            x = torch.linspace(0, 1, size * 4).reshape(size, 4)
            if how == "marked":
                torch._dynamo.mark_dynamic(x, 0)
            found += [compiled(x, N), compiled(x, N)]
        return counter.frame_count, found

    plain, _ = frames()
    hmp.convert()
    got, results = frames()
    assert got == plain
    for size, one in zip((5, 3, 7, 12, 2, 64), results[::2], strict=True):
        x = torch.linspace(0, 1, size * 4).reshape(size, 4)
        assert_same(one, F.normalize(torch.softmax(x @ N, -1) + x[:1, :1]))


def test_a_thread_of_another_state_runs_the_code_of_that_state() -> None:
    from concurrent.futures import ThreadPoolExecutor

    hmp.convert()
    compiled = torch.compile(FUNCTIONS["functions"], backend="aot_eager")
    compiled(M, N)
    with ThreadPoolExecutor(1) as pool, hmp.disable_casts():
        there = pool.submit(torch.compile(lambda x, y: torch.mm(x, y), backend="aot_eager"), M, N)
        assert torch.compile(lambda x, y: torch.mm(x, y), backend="aot_eager")(M, N).dtype is FP32
        assert there.result().dtype is BF16


# ---- breaks inside of regions, parts left out ------------------------------------------------------------------------


def broken(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    first = torch.mm(x, y)
    with hmp.disable_casts():
        second = torch.mm(x, y)
        torch._dynamo.graph_break()
        third = torch.mm(x, y)
        with torch.autocast("cpu", enabled=False):
            torch._dynamo.graph_break()
            fourth = torch.mm(x, y)
    torch._dynamo.graph_break()
    return [first, second, third, fourth, torch.mm(x, y)]


def partly_left_out() -> Callable[..., Any]:
    @torch.compiler.disable
    def left_out(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, y)

    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        with hmp.disable_casts():
            quiet = left_out(x, y)
        return [torch.relu(left_out(x, y)), quiet, torch.mm(x, y)]

    return function


def reads_a_number(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with hmp.disable_casts():
        scale = torch.mm(x, y).sum().item()
        return torch.mm(x, y) * scale


def breaks(function: Callable[..., Any], *inputs: Any) -> int:
    return int(torch._dynamo.explain(function)(*inputs).graph_break_count)


@pytest.mark.parametrize("name", ["broken", "partly left out", "reads a number"])
def test_a_graph_break_changes_nothing(name: str) -> None:
    function = {"broken": broken, "partly left out": partly_left_out(), "reads a number": reads_a_number}[name]
    plain = breaks(function, M, N)
    torch._dynamo.reset()
    hmp.convert()
    compiled = torch.compile(function, backend="eager")
    for _ in range(2):
        assert_same(compiled(M, N), function(M, N))
        with hmp.disable_casts():
            assert_same(compiled(M, N), function(M, N))
    assert torch.mm(M, N).dtype is BF16
    torch._dynamo.reset()
    assert breaks(function, M, N) == plain


OFF: dict[str, Callable[[], Any]] = {
    "disable_casts": hmp.disable_casts,
    "torch.autocast": lambda: torch.autocast("cpu", enabled=False),
    "hmp.autocast": lambda: hmp.autocast("cpu", enabled=False),
}
OPTIONS: list[dict[str, Any]] = [
    {"rules": {"linear @ second": "fp32"}},
    {"rules": {"linear @ first": "bf16"}},
    {"rules": {"* @ second": "fp32"}},
    {"preset": "recommended", "results": "as computed", "rules": {"* @ second": "fp32"}},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("how", OFF)
def test_rules_of_modules_lower_nothing_where_casts_are_off(how: str, options: dict[str, Any]) -> None:
    """Each module's call is a region of the graph. It leaves casts off, and a region of the user turns them on."""

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        with OFF[how]():
            results = [first(x), second(x)]
            with hmp.autocast("cpu"):
                results.append(second(x))
        return [*results, first(x)]

    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    model = Calls(run, first=first, second=second)
    hmp.convert(**options)
    compiled = torch.compile(model, backend="eager")
    assert [one.dtype for one in model(M)] == [one.dtype for one in compiled(M)] == [FP32, FP32, BF16, BF16]
    with OFF[how]():
        expected = [one.dtype for one in model(M)]
        assert [one.dtype for one in compiled(M)] == expected == [FP32, FP32, BF16, FP32]
