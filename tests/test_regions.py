"""hmp.autocast: regions with lists of their own, beside convert, disable_casts and torch.autocast."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import pickle
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import Converter, run_script, write_list

from habana_mp import _core, _places, hmp

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
X = torch.linspace(-1, 1, 64).reshape(8, 8)


def product() -> torch.dtype:
    return torch.mm(X, X).dtype


# ---- one region ----------------------------------------------------------------------------------------------------


def test_a_region_casts_inside_and_nothing_outside() -> None:
    assert product() is FP32
    with hmp.autocast("cpu"):
        assert product() is BF16
    assert product() is FP32


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_the_dtype_is_the_lower_precision(dtype: torch.dtype) -> None:
    with hmp.autocast("cpu", dtype):
        assert product() is dtype


def test_all_ways_to_call_an_operation_obey() -> None:
    bound, alias = X.matmul, torch.matmul
    with hmp.autocast("cpu"):
        assert {one.dtype for one in (X @ X, bound(X), alias(X, X), X.matmul(X), F.linear(X, X))} == {BF16}


def test_a_fp32_operation_raises_lower_inputs() -> None:
    low = X.bfloat16()
    with hmp.autocast("cpu"):
        assert torch.equal(F.mse_loss(low, low * 2), F.mse_loss(low.float(), (low * 2).float()))


def test_the_result_is_that_of_casting_by_hand() -> None:
    with hmp.autocast("cpu"):
        assert torch.equal(F.linear(X, X, X[0]), F.linear(X.bfloat16(), X.bfloat16(), X[0].bfloat16()))


def test_a_composite_function_obeys_only_where_a_region_names_it() -> None:
    low = X.bfloat16()
    plain = F.softmin(low, -1)
    with hmp.autocast("cpu", preset="torch-cuda"):
        assert F.softmin(low, -1).dtype is FP32
        with hmp.autocast("cpu"):
            assert torch.equal(F.softmin(low, -1), plain)
    assert torch.equal(F.softmin(low, -1), plain)


def test_inside_a_composite_that_no_list_names_the_lists_speak(converted: Converter) -> None:
    converted(fp32=["softmax", "exp"])
    low = X.bfloat16()
    expected = F.softmin(low, -1)
    assert expected.dtype is FP32
    with hmp.autocast("cpu", preset="torch-cuda"):
        pass
    assert torch.equal(F.softmin(low, -1), expected)


def test_assignment_follows_the_in_place_rule() -> None:
    target = torch.zeros(8, dtype=BF16)
    with hmp.autocast("cpu"):
        target[:] = X[0]
        target += X[0]
    assert target.dtype is BF16


def test_what_no_list_names_runs_in_the_type_of_its_inputs() -> None:
    with hmp.autocast("cpu"):
        assert torch.relu(X).dtype is FP32
        assert torch.relu(X.bfloat16()).dtype is BF16
        assert (X + X.bfloat16()).dtype is FP32


# ---- eligibility ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.complex64])
def test_other_dtypes_are_not_cast(dtype: torch.dtype) -> None:
    matrix = torch.ones(2, 2, dtype=dtype)
    with hmp.autocast("cpu"):
        assert torch.mm(matrix, matrix).dtype is dtype


def test_in_place_and_out_are_not_cast() -> None:
    out, target = torch.empty(8, 8), X.clone()
    with hmp.autocast("cpu"):
        torch.mm(X, X, out=out)
        assert X.addmm(X, X).dtype is BF16
        target.addmm_(X, X)
    assert torch.equal(out, torch.mm(X, X))
    assert torch.equal(target, X.addmm(X, X))


def test_an_explicit_dtype_is_obeyed() -> None:
    low = X.bfloat16()
    with hmp.autocast("cpu", preset="torch-cuda"):
        assert torch.softmax(low, -1).dtype is FP32
        assert torch.softmax(low, -1, dtype=torch.float64).dtype is torch.float64
        assert torch.sum(low, dim=0, dtype=BF16).dtype is BF16


@pytest.mark.parametrize(("preset", "operation"), [("torch-cpu", torch.cat), ("xpu-amp-bf16", torch.stack)])
def test_promoted_operations_go_to_the_widest_input(preset: str, operation: Callable[..., torch.Tensor]) -> None:
    with hmp.autocast("cpu", preset=preset):
        assert operation([X, X.bfloat16()]).dtype is FP32
        assert operation([X.bfloat16(), X.bfloat16()]).dtype is BF16


# ---- nesting -------------------------------------------------------------------------------------------------------


def test_the_innermost_region_wins() -> None:
    with hmp.autocast("cpu", FP16):
        with hmp.autocast("cpu", BF16):
            assert product() is BF16
        assert product() is FP16


def test_a_disabled_region_is_an_island() -> None:
    with hmp.autocast("cpu"):
        with hmp.autocast("cpu", enabled=False):
            assert product() is FP32
            with hmp.autocast("cpu", FP16):
                assert product() is FP16
            assert product() is FP32
        assert product() is BF16


def test_a_region_casts_inside_disable_casts_and_the_other_way_round() -> None:
    with hmp.disable_casts(), hmp.autocast("cpu"):
        assert product() is BF16
        with hmp.disable_casts():
            assert product() is FP32
        assert product() is BF16


def test_a_region_casts_inside_a_disabled_region_of_torchs_and_the_other_way_round() -> None:
    with hmp.autocast("cpu"):
        with torch.autocast("cpu", enabled=False):
            assert product() is FP32
            with hmp.autocast("cpu", FP16):
                assert product() is FP16
                with torch.autocast("cpu", enabled=False):
                    assert product() is FP32
                assert product() is FP16
            assert product() is FP32
        assert product() is BF16
    assert product() is FP32


def test_one_region_can_be_entered_again_inside_itself() -> None:
    region = hmp.autocast("cpu")
    with region, hmp.disable_casts(), region:
        assert product() is BF16
    assert product() is FP32


def test_an_exception_leaves_what_was_before() -> None:
    with hmp.autocast("cpu", FP16):
        with pytest.raises(ZeroDivisionError), hmp.autocast("cpu"):
            raise ZeroDivisionError
        assert product() is FP16


def test_a_region_that_was_not_entered_cannot_be_left() -> None:
    with pytest.raises(RuntimeError, match="not entered"):
        hmp.autocast("cpu").__exit__(None, None, None)


def test_each_thread_has_its_own_regions() -> None:
    region = hmp.autocast("cpu")
    inside, outside = threading.Barrier(2, timeout=30), threading.Barrier(2, timeout=30)
    found: list[torch.dtype] = []

    def other() -> None:
        found.append(product())
        with region:
            found.append(product())
            inside.wait()
            outside.wait()
            found.append(product())

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    assert product() is FP32
    with region, hmp.autocast("cpu", FP16):
        outside.wait()
        thread.join()
        assert product() is FP16
    assert found == [FP32, BF16, BF16]


# ---- as a decorator ------------------------------------------------------------------------------------------------


def test_a_decorated_function_runs_in_the_region_and_may_call_itself() -> None:
    @hmp.autocast("cpu")
    def calls(depth: int) -> list[torch.dtype]:
        """Doc."""
        return [product(), *(calls(depth - 1) if depth else [])]

    assert calls(2) == [BF16] * 3
    assert calls.__name__ == "calls"
    assert calls.__doc__ == "Doc."
    assert product() is FP32


def test_a_decorated_generator_runs_in_the_region_and_its_driver_does_not() -> None:
    @hmp.autocast("cpu")
    def generator() -> Iterator[torch.dtype]:
        yield product()
        yield product()

    for dtype in generator():
        assert dtype is BF16
        assert product() is FP32


def test_decorated_coroutines_keep_their_regions_apart() -> None:
    @hmp.autocast("cpu", BF16)
    async def one() -> list[torch.dtype]:
        found = [product()]
        await asyncio.sleep(0.01)
        return [*found, product()]

    @hmp.autocast("cpu", FP16)
    async def other() -> list[torch.dtype]:
        found = [product()]
        await asyncio.sleep(0.005)
        return [*found, product()]

    async def both() -> Any:
        return await asyncio.gather(one(), other())

    assert asyncio.run(both()) == [[BF16, BF16], [FP16, FP16]]


def test_a_decorated_asynchronous_generator_runs_in_the_region() -> None:
    @hmp.autocast("cpu")
    async def generator() -> AsyncIterator[torch.dtype]:
        yield product()
        await asyncio.sleep(0)
        yield product()

    async def drive() -> list[torch.dtype]:
        found = []
        async for dtype in generator():
            found += [dtype, product()]
        return found

    assert asyncio.run(drive()) == [BF16, FP32, BF16, FP32]


@pytest.mark.parametrize("wrong", [3, torch.nn.Linear, torch.nn.Linear(2, 2)], ids=["number", "class", "module"])
def test_only_functions_can_be_decorated(wrong: Any) -> None:
    decorate: Any = hmp.autocast("cpu")
    words = (
        f"`autocast` decorates a function, or stands in a `with` statement around a block; got {type(wrong).__name__}:"
    )
    with pytest.raises(TypeError, match=words):
        decorate(wrong)


def test_a_region_is_pickled_as_what_it_is_for(tmp_path: Path) -> None:
    region = hmp.autocast("cpu", torch.float16, bf16_file_path=write_list(tmp_path / "own.txt", ["mm"]))
    code = (
        "import pickle, sys, torch\n"
        "from habana_mp import hmp\n"
        "hmp.autocast('cpu', preset='cuda')\n"
        "with pickle.loads(bytes.fromhex(sys.argv[1])):\n"
        "    print(torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype)\n"
        "with pickle.loads(bytes.fromhex(sys.argv[2])):\n"
        "    print(torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype)\n"
    )
    pickles = [pickle.dumps(one).hex() for one in (region, hmp.autocast("cpu", enabled=False))]
    done = run_script(code, *pickles)
    assert done.stdout.split() == ["torch.float16", "torch.float32"], done.stderr


def test_a_region_that_restore_has_emptied_says_that_it_does_not_cast() -> None:
    with hmp.autocast("cpu"):
        assert hmp.is_autocast_enabled("cpu")
        hmp.restore()
        assert (hmp.is_autocast_enabled("cpu"), product()) == (False, FP32)


def test_torchs_autocast_inside_of_disabled_casts_is_no_reason_for_a_warning(converted: Converter) -> None:
    converted(bf16=["mm"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with hmp.disable_casts(), torch.autocast("cpu"):
            pass
    told = pytest.warns(hmp.HmpWarning, match="torch.autocast is enabled")
    with told, torch.autocast("cpu", enabled=False), torch.autocast("cpu"):
        pass


# ---- with convert, and without -------------------------------------------------------------------------------------


def test_in_a_region_its_lists_hold_and_outside_converts(converted: Converter) -> None:
    converted(bf16=["exp"])
    assert (product(), torch.exp(X).dtype) == (FP32, BF16)
    with hmp.autocast("cpu"):
        assert (product(), torch.exp(X).dtype) == (BF16, FP32)
    assert (product(), torch.exp(X).dtype) == (FP32, BF16)


def test_an_operation_that_only_a_region_names_is_left_alone_outside(converted: Converter) -> None:
    with hmp.autocast("cpu"):
        assert product() is BF16
    converted(bf16=["exp"])
    assert product() is FP32
    with hmp.autocast("cpu"):
        assert product() is BF16


def test_converting_inside_a_region_leaves_the_region(converted: Converter) -> None:
    with hmp.autocast("cpu"):
        converted(bf16=["exp"])
        assert (product(), torch.exp(X).dtype) == (BF16, FP32)
    assert (product(), torch.exp(X).dtype) == (FP32, BF16)


def test_o0_and_a_region() -> None:
    hmp.convert("O0")
    assert product() is FP32
    with hmp.autocast("cpu"):
        assert product() is BF16


def test_a_region_is_no_conversion() -> None:
    with hmp.autocast("cpu"):
        assert not hmp.is_converted()


def test_restore_takes_out_what_regions_need_and_an_open_one_casts_nothing() -> None:
    with hmp.autocast("cpu"):
        hmp.restore()
        assert _core.installed_count() == 0
        assert product() is FP32
    assert product() is FP32


def test_restore_inside_a_region_inside_a_disabled_region_of_torchs() -> None:
    with torch.autocast("cpu", enabled=False), hmp.autocast("cpu"):
        hmp.restore()
    with hmp.autocast("cpu"):
        assert product() is BF16


def test_a_region_can_be_entered_again_after_restore() -> None:
    region = hmp.autocast("cpu", preset="torch-cuda")
    with region:
        assert product() is BF16
    hmp.restore()
    with region:
        assert (product(), F.softmin(X.bfloat16(), -1).dtype) == (BF16, FP32)


def test_a_wrapped_function_obeys_in_a_region_alone() -> None:
    def given(x: torch.Tensor) -> torch.Tensor:
        return x

    wrapped = hmp.op_wrap(given, to="bf16")
    assert wrapped(X).dtype is FP32
    with hmp.autocast("cpu"):
        assert wrapped(X).dtype is BF16
    assert wrapped(X).dtype is FP32


def test_in_a_wrapped_function_lists_are_silent_until_it_opens_a_region() -> None:
    def inner(x: torch.Tensor) -> tuple[torch.dtype, torch.dtype]:
        silent = torch.mm(x, x).dtype
        with hmp.autocast("cpu", FP16):
            return silent, torch.mm(x, x).dtype

    wrapped = hmp.op_wrap(inner, to="fp32")
    with hmp.autocast("cpu"):
        assert wrapped(X) == (FP32, FP16)


def test_a_region_that_a_wrapped_function_leaves_open_does_not_keep_the_lists_silent(converted: Converter) -> None:
    converted(bf16=["mm"])
    stack = contextlib.ExitStack()
    hmp.op_wrap(lambda: stack.enter_context(hmp.autocast("cpu", FP16)))()
    assert torch.mm(X, X).dtype is FP16
    stack.close()
    assert torch.mm(X, X).dtype is BF16


_KINDS = {
    "region": (lambda: hmp.autocast("cpu", FP16), FP16),
    "disable_casts": (hmp.disable_casts, FP32),
    "torch": (lambda: torch.autocast("cpu", enabled=False), FP32),
}


@pytest.mark.parametrize("earlier", _KINDS)
@pytest.mark.parametrize("later", _KINDS)
def test_regions_that_are_left_in_another_order_end_when_they_are_left(
    earlier: str, later: str, converted: Converter
) -> None:
    converted(bf16=["mm"])
    (begin_first, _), (begin_then, dtype) = _KINDS[earlier], _KINDS[later]
    first, then = begin_first(), begin_then()
    first.__enter__()
    then.__enter__()
    first.__exit__(None, None, None)
    assert product() is dtype
    then.__exit__(None, None, None)
    assert product() is BF16


def test_a_region_of_torchs_that_another_thread_converts_again_in_ends_when_it_is_left(converted: Converter) -> None:
    converted(bf16=["mm"])
    is_open, is_converted = threading.Event(), threading.Event()
    found = []

    def work() -> None:
        with torch.autocast("cpu", enabled=False):
            is_open.set()
            is_converted.wait()
        found.append(product())

    thread = threading.Thread(target=work)
    thread.start()
    is_open.wait()
    hmp.restore()
    converted(bf16=["mm"])
    is_converted.set()
    thread.join()
    assert found == [BF16]


def test_outside_of_regions_torchs_modules_are_not_told_of_casts() -> None:
    with hmp.autocast("cpu"):
        pass
    # What torch says of it depends on its release.
    with pytest.raises((ValueError, RuntimeError), match=r"weight dtype|must have the type torch\.float32"):
        torch.nn.LSTM(8, 8)(X.bfloat16()[None])
    with hmp.autocast("cpu"):
        torch.nn.LSTM(8, 8)(X.bfloat16()[None])


def test_construction_and_optimizer_steps_stay_in_float32() -> None:
    class Made(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.mm(X, X))

    with hmp.autocast("cpu"):
        model = Made()
        (model.weight**2).sum().backward()
        torch.optim.AdamW(model.parameters()).step()
    assert model.weight.dtype is FP32
    assert model.weight.grad is not None
    assert model.weight.grad.dtype is FP32


def test_a_region_takes_no_part_in_the_report_outside(counted: None) -> None:
    with hmp.autocast("cpu"):
        product()
    product()
    rows = {(row.operation, row.precision): row.calls for row in hmp.report(show=False).rows}
    assert rows[("mm", "bf16")] == 1
    assert ("mm", "fp32") not in rows


# ---- the devices and their lists -----------------------------------------------------------------------------------


def test_the_lists_follow_the_device_name_that_is_given_as_preset() -> None:
    with hmp.autocast("cpu", preset="hpu"):
        assert (product(), torch.mul(X, X).dtype, torch.exp(X.bfloat16()).dtype) == (BF16, BF16, FP32)
    with hmp.autocast("cpu", preset="xpu"):
        assert F.conv_transpose2d(X[None, None], X[None, None]).dtype is BF16
    with hmp.autocast("cpu", FP16, preset="cuda"):
        assert (product(), torch.exp(X.half()).dtype) == (FP16, FP32)


@pytest.mark.parametrize(("device", "dtype"), [("cpu", BF16), ("cuda", FP16), ("xpu", BF16), ("hpu", BF16)])
def test_the_default_precision_follows_the_device(device: str, dtype: torch.dtype) -> None:
    assert hmp.get_autocast_dtype(device) is dtype


@pytest.mark.parametrize("device", ["cuda", "xpu", "hpu"])
def test_a_device_that_is_not_there_gives_a_warning_and_no_effect(device: str) -> None:
    if getattr(getattr(torch, device, None), "is_available", lambda: False)():
        pytest.skip("the device is there")
    with pytest.warns(hmp.HmpWarning, match=f"{device.upper()} is not available"):
        region = hmp.autocast(device)
    with hmp.autocast("cpu"), region:
        assert product() is BF16
    with region:
        assert product() is FP32


@pytest.mark.parametrize(
    ("device", "arguments", "what"),
    [
        ("hpu", {"dtype": FP16}, r"`dtype` must be torch\.bfloat16"),
        ("cuda", {"dtype": "bfloat16"}, "`dtype` must be"),
        ("xpu", {"preset": "torch-xpuu"}, "did you mean 'torch-xpu'?"),
    ],
)
def test_wrong_arguments_are_refused_for_a_device_that_is_not_there_too(
    device: str, arguments: dict[str, Any], what: str
) -> None:
    with pytest.raises(ValueError, match=what):
        hmp.autocast(device, **arguments)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"preset": ["torch-cpu"]}, r"`preset` must be one of .*; got \['torch-cpu'\]"),
        ({"cache_enabled": "False"}, "`cache_enabled` must be True, False or None; got 'False'"),
        ({"dtype": ["bfloat16"]}, "`dtype` must be"),
    ],
)
def test_an_argument_of_another_kind_is_refused(arguments: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        hmp.autocast("cpu", **arguments)


def test_a_zero_for_cache_enabled_is_false_whatever_was_asked_before() -> None:
    zero: Any = 0
    weight = torch.nn.Parameter(torch.randn(64, 64))
    for region in (hmp.autocast("cpu", cache_enabled=zero), hmp.autocast("cpu", cache_enabled=False)):
        before = hmp.report(show=False).weights.hits
        with region, torch.no_grad():
            for _ in range(4):
                F.linear(X[:, :1].expand(8, 64), weight)
        assert hmp.report(show=False).weights.hits == before


def test_a_list_that_changes_while_its_tensors_are_asked_for_their_device() -> None:
    # In a process of its own: it would end it.
    done = run_script("""
import torch
from habana_mp import hmp
given = []
class Own(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), keywords=None):
        if getattr(getattr(function, "__self__", None), "__name__", "") == "is_cpu":
            given.clear()
            for _ in range(2000):
                bytearray(b"A" * 8 * 500)
            return False
        return super().__torch_function__(function, types, arguments, keywords or {})
count = hmp.op_wrap(lambda tensors: len(tensors), to="bf16")
with hmp.autocast("cpu"):
    for _ in range(50):
        given[:] = [torch.ones(2).as_subclass(Own), *(object() for _ in range(500))]
        count(given)
print("done")
""")
    assert done.stdout.strip() == "done", done.stderr


@pytest.mark.parametrize("question", [hmp.get_autocast_dtype, hmp.is_autocast_enabled, hmp.autocast])
def test_a_device_type_that_is_no_string_is_refused(question: Callable[[Any], object]) -> None:
    with pytest.raises(ValueError, match="`device_type` must be a string; got int: 5"):
        question(5)


def test_a_device_that_torch_does_not_know_is_torchs_error() -> None:
    with pytest.raises(RuntimeError):
        torch.autocast("abacus")
    with pytest.raises(RuntimeError, match="abacus"):
        hmp.autocast("abacus")


def test_the_index_of_a_device_does_not_matter() -> None:
    with hmp.autocast("cpu:0", dtype=torch.float16):
        for device_type in ("cpu", "cpu:0"):
            assert hmp.is_autocast_enabled(device_type)
            assert hmp.get_autocast_dtype(device_type) is torch.float16
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.float16


def test_a_device_type_must_be_a_string() -> None:
    device: Any = torch.device("cpu")
    with pytest.raises(ValueError, match="`device_type` must be a string"):
        hmp.autocast(device)


def test_a_device_without_lists_needs_a_preset() -> None:
    device = next(filter(torch.amp.is_autocast_available, ("mtia", "xla")))  # older releases do not name the first
    with pytest.raises(ValueError, match=f"`preset` must be given for '{device}'"):
        hmp.autocast(device, BF16)


def test_another_lower_precision_is_warned_about_and_nothing_is_cast() -> None:
    with pytest.warns(hmp.HmpWarning, match=r"not to torch\.float32"):
        region = hmp.autocast("cpu", FP32)
    with hmp.autocast("cpu"), region:
        assert product() is FP32


def test_a_dtype_must_be_one() -> None:
    wrong: Any = "bf16"
    with pytest.raises(ValueError, match=r"`dtype` must be torch\.bfloat16 or torch\.float16; got 'bf16'"):
        hmp.autocast("cpu", wrong)


def test_an_unknown_preset_is_an_error() -> None:
    with pytest.raises(ValueError, match="`preset` must be one of"):
        hmp.autocast("cpu", preset="abacus")


@pytest.mark.parametrize("device", ["meta"])
def test_a_tensor_of_another_device_is_left_alone(device: str) -> None:
    other = X.to(device)
    with hmp.autocast("cpu"):
        assert torch.mm(other, other).dtype is FP32
        assert torch.cat([other, other.bfloat16()]).dtype is FP32


@pytest.mark.parametrize(
    "preset",
    ["torch-cpu", "torch-cuda", "torch-xpu", "xpu-amp-bf16", "hpu-autocast", "hmp-default", "hmp-guide-o1", "resnet50"],
)
def test_every_preset_is_a_region_and_a_conversion_with_the_same_results(preset: str) -> None:
    calls: list[Callable[[], torch.Tensor]] = [
        lambda: torch.mm(X, X),
        lambda: F.linear(X, X),
        lambda: torch.exp(X.bfloat16()),
        lambda: F.layer_norm(X.bfloat16(), (8,)),
        lambda: F.mse_loss(X.bfloat16(), X.bfloat16()),
        lambda: torch.cat([X, X.bfloat16()]),
    ]
    with hmp.autocast("cpu", preset=preset):
        inside = [call() for call in calls]
    hmp.convert(preset=preset)
    for one, call in zip(inside, calls, strict=True):
        expected = call()
        assert one.dtype is expected.dtype
        assert torch.equal(one, expected)


# ---- own lists -----------------------------------------------------------------------------------------------------


def test_own_lists_replace_a_side_of_the_preset(tmp_path: Path) -> None:
    lower = write_list(tmp_path / "lower.txt", ["exp"])
    region = hmp.autocast("cpu", bf16_file_path=lower)
    (tmp_path / "lower.txt").unlink()  # files are read at once
    with region:
        assert (product(), torch.exp(X).dtype) == (FP32, BF16)
        assert F.mse_loss(X.bfloat16(), X.bfloat16()).dtype is FP32


def test_a_wrong_list_is_an_error_with_its_line_and_changes_nothing(tmp_path: Path) -> None:
    path = write_list(tmp_path / "lower.txt", ["mm", "sofmax"])
    with pytest.raises(hmp.ListError, match=r"lower\.txt:2: unknown operation `sofmax`; did you mean `softmax`"):
        hmp.autocast("cpu", bf16_file_path=path)
    assert _core.installed_count() == 0


def test_lists_with_the_same_content_are_one_region(tmp_path: Path) -> None:
    first = hmp.autocast("cpu", bf16_file_path=write_list(tmp_path / "lower.txt", ["exp"]))
    second = hmp.autocast("cpu", bf16_file_path=write_list(tmp_path / "lower.txt", ["exp"]))
    assert first._number == second._number


@pytest.mark.parametrize("keeps", [True, False, None])
def test_cache_enabled_says_whether_casts_of_weights_are_kept(keeps: bool | None, counted: None) -> None:
    layer = torch.nn.Linear(8, 8)
    with hmp.autocast("cpu", cache_enabled=keeps):
        results = [layer(X) for _ in range(3)]
    assert torch.equal(results[0], results[2])
    casts = {row.operation: row.casts for row in hmp.report(show=False).rows}["linear"]
    assert casts == (9 if keeps is False else 5)


def test_there_are_as_many_regions_as_torch_compile_can_tell_apart(tmp_path: Path) -> None:
    code = (
        "import sys, torch\n"
        "from pathlib import Path\n"
        "from habana_mp import hmp\n"
        "names = 'exp log sin cos tan sinh cosh tanh asin acos atan sqrt rsqrt relu sigmoid square abs'.split()\n"
        "made = []\n"
        "try:\n"
        "    for first in names:\n"
        "        for second in names:\n"
        "            Path('own.txt').write_text(f'{first}\\n{second}')\n"
        "            number = hmp.autocast('cpu', bf16_file_path='own.txt')._number\n"
        "            made.append(number) if number not in made else None\n"
        "except RuntimeError as error:\n"
        "    print(len(made), str(error).split('.')[0] + '.' + str(error).split('.')[1])\n"
        "with hmp.autocast('cpu', bf16_file_path=Path('own.txt').write_text('exp\\nexp') and 'own.txt'):\n"
        "    print(torch.exp(torch.ones(2)).dtype)\n"
        "    try:\n"
        "        hmp.op_wrap(torch.exp)(torch.ones(2))\n"
        "    except RuntimeError as error:\n"
        "        print(str(error).split(',')[0])\n"
        "    print(torch.exp(torch.ones(2)).dtype)\n"
    )
    every = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    done = run_script(code, cwd=tmp_path)
    assert done.stdout.splitlines() == [
        f"{len(every) - 1} habana_mp: a process can have {len(every) - 1} different regions of "
        "`hmp.autocast`, and has them",
        "torch.bfloat16",
        f"habana_mp: a process can have {len(every) - 1} different regions of `hmp.autocast`",
        "torch.bfloat16",
    ], done.stderr


@pytest.mark.parametrize("restored", [True, False])
def test_a_generator_that_is_left_open_ends_quietly_with_the_interpreter(restored: bool) -> None:
    code = (
        "import habana_mp as hmp\n"
        "@hmp.autocast('cpu')\n"
        "def forever():\n"
        "    while True:\n"
        "        yield 1\n"
        "left_open = forever()\n"
        "print(next(left_open))\n"
    )
    done = run_script(code + "hmp.restore()\n" * restored)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_the_same_lists_of_ever_new_files_are_one_region(tmp_path: Path) -> None:
    numbers = set()
    for i in range(3):
        file = write_list(tmp_path / f"{i}.txt", ["linear", "matmul", "aten::mm"])
        numbers.add(hmp.autocast("cpu", bf16_file_path=file)._number)
    assert len(numbers) == 1


@pytest.mark.parametrize("wrong", [[], 0, False], ids=str)
@pytest.mark.parametrize("which", ["bf16_file_path", "fp32_file_path"])
def test_an_empty_value_that_is_no_path_is_refused(wrong: Any, which: str) -> None:
    for function in (hmp.convert, functools.partial(hmp.autocast, "cpu")):
        with pytest.raises(ValueError, match=f"`{which}` must be the path of a list file; got {type(wrong).__name__}"):
            function(**{which: wrong})


@pytest.mark.parametrize("number", [None, -1], ids=["below Python", "by torch's functions"])
def test_torch_compile_is_told_of_regions_and_of_silence(number: int | None) -> None:
    code = (
        "import torch, habana_mp as hmp\n"
        "from habana_mp import _install, _marks\n"
        f"_install.MARK_NUMBER = {number if number is not None else '_marks.MARK_NUMBER'}\n"
        "def told():\n"
        "    mark = _marks.MARK\n"
        "    on = torch.is_autocast_enabled(mark)\n"
        "    seen.append(_marks.MARK_DTYPES.index(torch.get_autocast_dtype(mark)) if on else 0)\n"
        "seen = []\n"
        "told()\n"
        "region, silent = hmp.autocast('cpu'), hmp.op_wrap(told)\n"
        "with region:\n"
        "    told(), silent(), told()\n"
        "    with hmp.autocast('cpu', torch.float16):\n"
        "        told(), hmp.op_wrap(silent)(), hmp.disable_casts(silent)(), told()\n"
        "    told()\n"
        "told()\n"
        "hmp.convert()\n"
        "told(), silent(), told()\n"
        "print(*seen)\n"
    )
    done = run_script(code)
    assert done.stdout.split() == ["0", "1", "2", "1", "3", "4", "3", "3", "1", "0", "0", "5", "0"], done.stderr


# ---- what is refused -----------------------------------------------------------------------------------------------


def test_binary_cross_entropy_is_refused_in_float16_with_the_way_out() -> None:
    p = torch.sigmoid(X)
    with hmp.autocast("cpu", FP16, preset="torch-cuda"):
        with pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"):
            F.binary_cross_entropy(p, p)
        with pytest.raises(RuntimeError, match="BCEWithLogitsLoss"):
            torch.nn.BCELoss()(p, p)
        assert F.binary_cross_entropy_with_logits(X, p).dtype is FP32
        with hmp.disable_casts():
            assert F.binary_cross_entropy(p, p).dtype is FP32
        assert F.binary_cross_entropy(p.double(), p.double()).dtype is torch.float64
    assert F.binary_cross_entropy(p, p).dtype is FP32


def test_binary_cross_entropy_runs_in_float32_where_a_list_says_so() -> None:
    p = torch.sigmoid(X).half()
    with hmp.autocast("cpu", FP16):
        assert F.binary_cross_entropy(p, p).dtype is FP32


def test_float16_on_xpu_is_for_inference_only() -> None:
    layer = torch.nn.Linear(8, 8)
    with hmp.autocast("cpu", FP16, preset="xpu"):
        with torch.no_grad():
            assert layer(X).dtype is FP16
        result = layer(X)  # as the documentation's example, without no_grad
    with pytest.raises(RuntimeError, match="float16 with the lists of xpu is for inference only"):
        result.sum().backward()


def test_bfloat16_on_xpu_trains() -> None:
    layer = torch.nn.Linear(8, 8)
    with hmp.autocast("cpu", preset="xpu"):
        layer(X).sum().backward()
    assert layer.weight.grad is not None


def test_float16_on_hpu_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`dtype` must be torch\.bfloat16 with the lists of hpu"):
        hmp.autocast("cpu", FP16, preset="hpu")


def test_cache_enabled_is_reported_as_without_effect_for_hpu() -> None:
    with pytest.warns(hmp.HmpWarning, match="`cache_enabled` has no effect with the lists of hpu"):
        region = hmp.autocast("cpu", cache_enabled=False, preset="hpu-autocast")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert region._number == hmp.autocast("cpu", preset="hpu-autocast")._number


# ---- lists from the environment ------------------------------------------------------------------------------------

_ASK = """
import torch
from habana_mp import hmp
x = torch.ones(4, 4)
with hmp.autocast("cpu", preset="hpu"):
    print(torch.mm(x, x).dtype, torch.exp(x).dtype, torch.tan(x.bfloat16()).dtype, torch.erf(x.bfloat16()).dtype)
with hmp.autocast("cpu"):
    print(torch.mm(x, x).dtype, torch.exp(x).dtype)
"""


def test_lists_from_the_environment_replace_those_of_hpu(tmp_path: Path) -> None:
    lower = write_list(tmp_path / "lower.txt", ["exp"])
    fp32 = write_list(tmp_path / "fp32.txt", ["erf"])
    done = run_script(_ASK, LOWER_LIST=lower, FP32_LIST=fp32)
    assert done.stdout.splitlines() == [
        "torch.float32 torch.bfloat16 torch.bfloat16 torch.float32",
        "torch.bfloat16 torch.float32",
    ], done.stderr


def test_one_list_from_the_environment_leaves_the_other_of_the_preset(tmp_path: Path) -> None:
    done = run_script(_ASK, FP32_LIST=write_list(tmp_path / "fp32.txt", ["erf"]))
    assert done.stdout.splitlines()[0] == "torch.bfloat16 torch.float32 torch.bfloat16 torch.float32", done.stderr


_OF_TODAY = {
    "LOWER_LIST": "PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST",
    "FP32_LIST": "PT_HPU_AUTOCAST_FP32_OPS_LIST",
}


def test_the_environment_names_the_lists_of_hpu_by_the_names_of_today_too(tmp_path: Path) -> None:
    lower = write_list(tmp_path / "lower.txt", ["exp"])
    fp32 = write_list(tmp_path / "fp32.txt", ["erf"])
    expected = "torch.float32 torch.bfloat16 torch.bfloat16 torch.float32"
    done = run_script(_ASK, **{_OF_TODAY["LOWER_LIST"]: lower, _OF_TODAY["FP32_LIST"]: fp32})
    assert done.stdout.splitlines()[0] == expected, done.stderr
    done = run_script(_ASK, **{"LOWER_LIST": lower, _OF_TODAY["FP32_LIST"]: fp32})
    assert done.stdout.splitlines()[0] == expected, done.stderr


@pytest.mark.parametrize("variable", _OF_TODAY)
def test_two_names_of_the_environment_that_disagree_are_refused_with_both(tmp_path: Path, variable: str) -> None:
    one, other = write_list(tmp_path / "one.txt", ["exp", "erf"]), write_list(tmp_path / "other.txt", ["exp"])
    done = run_script(_ASK, **{variable: one, _OF_TODAY[variable]: other})
    assert done.returncode != 0
    assert (
        f"{variable} and {_OF_TODAY[variable]} are two names for one list, and must name the same operations; got "
        f"{one} and {other}: unset one of the two"
    ) in done.stderr


def test_two_names_of_the_environment_may_name_the_same_operations(tmp_path: Path) -> None:
    one, other = write_list(tmp_path / "one.txt", ["exp", "mm"]), write_list(tmp_path / "other.txt", ["mm", "exp"])
    done = run_script(_ASK, **{"LOWER_LIST": one, _OF_TODAY["LOWER_LIST"]: other})
    assert done.stdout.splitlines()[0].startswith("torch.bfloat16 torch.bfloat16"), done.stderr


@pytest.mark.parametrize("variable", ["LOWER_LIST", "FP32_LIST", *_OF_TODAY.values()])
def test_an_error_in_a_list_from_the_environment_names_variable_file_and_line(tmp_path: Path, variable: str) -> None:
    path = write_list(tmp_path / "own.txt", ["mm", "sofmax"])
    done = run_script(_ASK, **{variable: path})
    assert done.returncode != 0
    assert f"{variable}: {path}:2: unknown operation `sofmax`; did you mean `softmax`?" in done.stderr


def test_a_missing_file_in_the_environment_names_the_variable(tmp_path: Path) -> None:
    done = run_script(_ASK, cwd=tmp_path, LOWER_LIST=str(tmp_path / "none.txt"))
    told = f"the operation list of LOWER_LIST does not exist (looked in the working directory {tmp_path})"
    assert f"{told}: '{tmp_path / 'none.txt'}'" in done.stderr


# ---- questions -----------------------------------------------------------------------------------------------------


def test_questions_are_answered_from_the_innermost_region() -> None:
    assert not hmp.is_autocast_enabled()
    with hmp.autocast("cpu", FP16):
        assert hmp.is_autocast_enabled()
        assert hmp.is_autocast_enabled("cpu")
        assert not hmp.is_autocast_enabled("cuda")
        assert hmp.get_autocast_dtype("cpu") is FP16
        assert hmp.get_autocast_dtype("cuda") is FP16
        with hmp.disable_casts():
            assert not hmp.is_autocast_enabled("cpu")
            assert hmp.get_autocast_dtype("cpu") is BF16
    assert hmp.get_autocast_dtype("cpu") is BF16


@pytest.mark.parametrize("device", ["cpu", "cuda", "xpu", "hpu", "mps", "meta"])
def test_autocast_is_available_where_torchs_is(device: str) -> None:
    assert hmp.is_autocast_available(device) == torch.amp.is_autocast_available(device)


def test_a_module_that_is_copied_in_a_region_keeps_its_weights() -> None:
    layer = torch.nn.Linear(8, 8)
    with hmp.autocast("cpu"):
        layer(X)
        assert copy.deepcopy(layer).weight.dtype is FP32


# ---- torch.autocast beside it --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:torch.autocast is enabled while")
def test_inside_an_enabled_region_of_torchs_ours_decides_first() -> None:
    with torch.autocast("cpu", BF16), hmp.autocast("cpu", FP16):
        # `mm` is in both lists: torch sees float16 inputs, and brings them into its own precision.
        assert product() is BF16
        assert torch.exp(X).dtype is FP32
    with hmp.autocast("cpu", preset="torch-cuda"), torch.autocast("cpu", BF16):
        assert torch.exp(X.bfloat16()).dtype is FP32


def test_torchs_autocast_alone_is_not_warned_about_once_a_region_was_used() -> None:
    with hmp.autocast("cpu"):
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.autocast("cpu"):
            assert product() is BF16
    _places.forget_warnings()
    warned = pytest.warns(hmp.HmpWarning, match="torch.autocast is enabled while habana_mp casts")
    with hmp.autocast("cpu"), warned, torch.autocast("cpu"):
        pass


# ---- weights, and other kinds of tensors -----------------------------------------------------------------------------


def test_kept_casts_follow_their_weight_through_regions_of_both_precisions() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    for step in range(12):
        dtype = (BF16, FP16)[step % 2]
        optimizer.zero_grad()
        with hmp.autocast("cpu", dtype):
            out = layer(X)
            again = layer(X)
        expected = F.linear(X.to(dtype), layer.weight.to(dtype), layer.bias.to(dtype))
        assert torch.equal(out, expected)
        assert torch.equal(again, expected)
        out.float().square().sum().backward()
        optimizer.step()
        if step == 5:
            with torch.no_grad():
                layer.weight.data.mul_(2.0)


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.processor
@pytest.mark.parametrize("form", ["library", "panels"])
def test_layers_run_from_packed_weights_in_a_region(dtype: torch.dtype, form: Any) -> None:
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(144, 160), torch.randn(2, 144)
    _core.weights_assume_packing(form)
    try:
        with torch.no_grad():
            for _ in range(10):
                with hmp.autocast("cpu", dtype):
                    result = layer(x)
                assert torch.equal(result, F.linear(x.to(dtype), layer.weight.to(dtype), layer.bias.to(dtype)))
    finally:
        _core.weights_assume_packing("measured")


def test_transforms_of_torch_func_go_through_a_region() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, X).float().square().sum()

    def by_hand(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x.bfloat16(), X.bfloat16()).float().square().sum()

    batch = torch.stack([X, 2 * X])
    expected = torch.func.grad(by_hand)(X), torch.func.vmap(torch.func.grad(by_hand))(batch)
    with hmp.autocast("cpu"):
        assert torch.equal(torch.func.grad(loss)(X), expected[0])
        assert torch.equal(torch.func.vmap(torch.func.grad(loss))(batch), expected[1])


class Marked(torch.Tensor):
    """A subclass that does nothing of its own."""


@pytest.mark.parametrize(
    "kind",
    [
        lambda x: x.as_subclass(Marked),
        lambda x: torch.nn.Parameter(x),
        lambda x: x[:, ::1].t(),
    ],
    ids=["subclass", "parameter", "view"],
)
def test_other_kinds_of_tensors_are_cast_as_by_hand(kind: Callable[[torch.Tensor], torch.Tensor]) -> None:
    other = kind(X)
    with hmp.autocast("cpu"):
        result = torch.mm(other, X)
    assert result.dtype is BF16
    assert torch.equal(result, torch.mm(other.bfloat16(), X.bfloat16()))


def test_a_product_with_a_sparse_matrix_runs_in_float32_in_a_region() -> None:
    with hmp.autocast("cpu"):
        result = torch.mm(X.to_sparse(), X.bfloat16())
    assert result.dtype is FP32
    assert torch.equal(result, torch.mm(X.to_sparse(), X.bfloat16().float()))


def test_fake_tensors_are_of_the_device_that_they_stand_for() -> None:
    with torch._subclasses.FakeTensorMode():
        on_cpu, elsewhere = torch.empty(8, 8), torch.empty(8, 8, device="xpu")
        with hmp.autocast("cpu"):
            assert torch.mm(on_cpu, on_cpu).dtype is BF16
            assert torch.mm(elsewhere, elsewhere).dtype is FP32


# ---- the log ---------------------------------------------------------------------------------------------------------


def test_the_log_tells_where_regions_begin_and_end(tmp_path: Path) -> None:
    hmp.convert("O0", log=tmp_path / "casts.log")
    with hmp.autocast("cpu"):
        product()
    product()
    hmp.restore()
    lines = [line for line in (tmp_path / "casts.log").read_text().splitlines() if line]
    assert [word for line in lines for word in ("entering", "casting", "leaving") if word in line] == [
        "entering",
        "casting",
        "leaving",
    ]
    assert "entering region torch-cpu in bf16 on cpu" in lines[0]
