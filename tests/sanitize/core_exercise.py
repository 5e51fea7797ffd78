"""Drives every path of the core once, for the sanitizers and valgrind: a plain and quick script.

    python tests/sanitize/core_exercise.py [--core FILE]

--core is the core that must be loaded; another one is an error, so that no sanitizer watches the wrong one. With
`--small` nothing larger than some thousand numbers is cast, for a program that runs fifty times slower.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import itertools
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from habana_mp import _core, hmp, kernels, optim

SMALL = "--small" in sys.argv


@contextlib.contextmanager
def raises(*kinds: type[BaseException]) -> Iterator[None]:
    try:
        yield
    except kinds:
        return
    raise AssertionError(f"nothing was raised, expected {kinds}")


@contextlib.contextmanager
def lists(lower: str, fp32: str, **options: Any) -> Iterator[None]:
    """Converted with two lists of names."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (("lower", lower), ("fp32", fp32)):
            Path(folder, name).write_text("\n".join(content.split()))
        hmp.convert(bf16_file_path=Path(folder, "lower"), fp32_file_path=Path(folder, "fp32"), **options)
    try:
        yield
    finally:
        hmp.restore()


@contextlib.contextmanager
def converted(*args: Any, **options: Any) -> Iterator[None]:
    hmp.convert(*args, **options)
    try:
        yield
    finally:
        hmp.restore()


def the_kernels() -> None:
    sizes = [0, 1, 7, 8, 15, 16, 17, 31, 33, 64, 100, 1000, 4097]
    if not SMALL:
        sizes += [1 << 16, (1 << 20) + 3]
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3.4e38, 65504, 65520, 6e-8, 1.00390625], np.float32)
    dtypes = [kernels._FLOAT32, kernels._FLOAT16, kernels._BFLOAT16]
    rng = np.random.default_rng(0)
    for size in sizes:
        values = np.resize(np.concatenate([special, rng.standard_normal(97).astype(np.float32)]), size)
        with np.errstate(all="ignore"):
            arrays = [values, values.astype(np.float16), values.astype(kernels._BFLOAT16)]
        for array, dtype, path in itertools.product(arrays, dtypes, _core.kernels_paths()):
            for threads, stream in ((1, False), (1, True), (3, False), (3, True)):
                _core.kernels_cast_with(array, dtype, None, threads, path, stream)
            # Not aligned, and not from the beginning.
            if size > 3:
                out = np.empty(size, dtype)[1:]
                _core.kernels_cast_with(array[1:], dtype, out, 2, path, False)
                _core.kernels_cast_with(array[:-1][::-1], dtype, None, 1, path, True)
    grid = rng.standard_normal((5, 6, 7)).astype(np.float32)
    for face in (kernels.to_float32, kernels.to_float16, kernels.to_bfloat16):
        for array in (grid, grid.T, grid[::2, ::-1], np.asfortranarray(grid), grid[:, :0], np.ones((), np.float32)):
            face(array)
            face(array, threads=2)
        with raises(TypeError):
            face([1.0])  # type: ignore[arg-type]
        with raises(TypeError):
            face(grid.astype(np.float64))
        with raises(ValueError):
            face(grid, threads=0)
        with raises(TypeError):
            face(grid, threads="2")  # type: ignore[arg-type]
        with raises(TypeError):
            face(grid, out=np.empty_like(grid, np.int32))
        with raises(ValueError):
            face(grid, out=np.empty((2, 2), face(grid).dtype))
    everything = [values[:size] for size in (0, 1, 40, 97)] + [grid.T, grid[::2, ::-1], np.resize(values, (70, 90)).T]
    for dtype, path in itertools.product(dtypes, _core.kernels_paths()):
        outs = [np.empty(array.shape, dtype) for array in everything]
        outs[-1] = np.empty(everything[-1].shape[::-1], dtype)[::-1].T
        for threads, stream in ((1, False), (3, True)):
            _core.kernels_cast_many_with(everything, outs, threads, path, stream)
        for threads in (1, 3):
            _core.kernels_cast_stochastically(values, kernels._BFLOAT16, 7, None, threads, path)
    kernels.cast_many(everything, outs)
    with raises(ValueError):
        kernels.cast_many([grid, grid], [outs[0], outs[0]])
    with raises(TypeError):
        kernels.to_bfloat16(grid, seed="1")  # type: ignore[arg-type]
    with raises(ValueError):
        kernels.to_float32(grid, out=grid)
    with raises(ValueError):
        _core.kernels_cast_with(grid, np.dtype(np.float16), None, 1, "nothing", False)
    # Other threads while the pool is busy: they do without it.
    import threading

    big = np.zeros(1 << (14 if SMALL else 20), np.float32)
    path = _core.kernels_path()
    jobs = [
        threading.Thread(target=_core.kernels_cast_with, args=(big, np.dtype(np.float16), None, 2, path, True))
        for _ in range(4)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()


def the_optimizers() -> None:
    """Steps of weights that fit and of some that do not, with copies in lower precision."""
    shapes = [(), (0,), (3,), (70, 90), (1 << (10 if SMALL else 18),)]
    lowers = (torch.bfloat16, torch.float16, None)
    targets = optim._lower_targets
    kept: dict[Any, Any] = {}
    for kind, options in (
        (optim.AdamW, {"amsgrad": True}),
        (optim.Adam, {"weight_decay": 0.1, "maximize": True, "fused": True}),
        (optim.SGD, {"momentum": 0.9, "nesterov": True}),
        (optim.SGD, {"weight_decay": 0.1, "fused": True}),
    ):
        params: list[Any] = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
        params += [torch.nn.Parameter(torch.randn(5, 7).t()), torch.nn.Parameter(torch.randn(3).bfloat16())]
        params += [torch.nn.Parameter(torch.randn(9)[::2])]
        if not options.get("fused"):  # torch refuses it
            params += [torch.nn.Parameter(torch._neg_view(torch.randn(3)))]
        for param, dtype in zip(params, lowers * 4, strict=False):
            kept[param] = None if dtype is None else torch.empty_like(param, dtype=dtype)
        optim._lower_targets = lambda some: [kept[param] for param in some]
        optimizer = kind(params, lr=0.1, **options)
        for step in range(4):
            for param in params:
                param.grad = torch.randn_like(param)
            if step == 1:
                params[3].grad = torch.randn(90, 70).t()
            elif step == 2:
                params[2].grad = params[2].detach()
            elif step == 3 and options.get("fused"):
                optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(0.0)
            optimizer.step()
    optim._lower_targets = targets
    with raises(ValueError):
        _core.StepPlan(params=params, grads=[], states=[], steps=[], lowers=[], writes_grads=False)
    with raises(TypeError):
        _core.StepPlan(params=1, grads=[], states=[], steps=[], lowers=[], writes_grads=False)  # type: ignore[arg-type]
    plan = _core.StepPlan(params=[1], grads=[None], states=[[None]], steps=["x"], lowers=[2], writes_grads=True)
    assert plan.left_out == [0]
    plan = _core.StepPlan(params=[], grads=[], states=[], steps=[], lowers=[], writes_grads=False)
    plan.sgd(lr=1, momentum=0, dampening=0, weight_decay=0, nesterov=False, maximize=False, grad_scale=None, begins=[])


def the_weights() -> None:
    """Kept casts of weights that are used, written in all kinds of ways, packed and dropped."""
    size = 130
    layer = torch.nn.Linear(size, size)
    convolution = torch.nn.Conv2d(130, 20, 3).to(memory_format=torch.channels_last)
    x, image = torch.randn(3, size), torch.randn(1, 130, 5, 5).to(memory_format=torch.channels_last)
    writes: list[Callable[[Any], Any]] = [
        lambda w: w.add_(1),
        lambda w: w.data.mul_(2),
        lambda w: setattr(w, "data", torch.randn_like(w)),
        lambda w: w.detach().numpy().fill(1),
        lambda w: w.untyped_storage().fill_(0),
        lambda w: torch._C._autograd._unsafe_set_version_counter((w,), (0,)),
        lambda w: torch._fused_sgd_(
            [w],
            [w.detach()],
            [],
            weight_decay=0.0,
            momentum=0.0,
            lr=0.5,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=True,
        ),
        lambda w: w.detach().apply_(lambda value: value),
        lambda w: w.detach().map_(w.detach(), lambda one, _: one),
        lambda w: w.detach().map2_(w.detach(), w.detach(), lambda one, *_: one),
        lambda w: w.data_ptr(),
        lambda w: w.untyped_storage().data_ptr(),
        lambda w: np.from_dlpack(w.detach()),
        lambda w: torch.utils.swap_tensors(w, torch.nn.Parameter(torch.randn_like(w))),
    ]
    for form in ("library", "panels"):
        _core.weights_assume_packing(form)
        for options in ({}, {"dtype": torch.float16}, {"weight_cache_limit": 100}, {"weight_cache": False}):
            with converted(**options):
                for write in writes:
                    experts = torch.nn.Parameter(torch.randn(2, size, size))
                    turned = torch.nn.Parameter(torch.randn(size, size))
                    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
                        with mode():
                            for _ in range(7):
                                layer(x), convolution(image)
                                x @ layer.weight.T, torch.nn.functional.linear(x, experts[1])
                                torch.addmm(layer.bias, x, turned), torch.nn.functional.linear(x, turned.T)
                    loss = layer(x).float().sum() + (x @ layer.weight.T).float().sum() + (x @ turned).float().sum()
                    with torch.no_grad():
                        write(layer.weight)
                        write(experts)
                        write(turned)
                    with contextlib.suppress(RuntimeError):  # where the version tells
                        loss.backward()
                    layer = torch.nn.Linear(size, size)
                optimizer = optim.AdamW([*layer.parameters(), *convolution.parameters()])
                for _ in range(3):
                    layer(x).float().sum().backward()
                    convolution(image).float().sum().backward()
                    optimizer.step()
    _core.weights_assume_packing("library")
    points = torch.nn.Conv2d(128, 160, 1)
    with converted():
        for side in (32, 31, 32):
            picture = torch.randn(1, 128, side, side)
            with torch.no_grad():
                for _ in range(7):
                    points(picture), points(picture[0]), points(picture[:, :, ::2])
        table = torch.nn.Parameter(torch.ones(1 << (10 if SMALL else 16), 64))
        for _ in range(2):
            torch.nn.functional.linear(torch.nn.functional.linear(x[:, :64], table)[:, :64], table).sum().backward()
    _core.weights_assume_packing("measured")
    with converted(), torch.no_grad():
        for shape in ((64, 64), (70, 514), (130, 1100)):
            measured = torch.nn.Linear(shape[1], shape[0])
            for rows in (1, 1, 1, 1, 1, 1, 3, 70):
                measured(torch.randn(rows, shape[1])), measured(torch.randn(shape[1], rows).t())
                torch.randn(rows, shape[1]) @ measured.weight.T, torch.mm(torch.randn(rows, shape[0]), measured.weight)
    with converted():
        with raises(TypeError):
            _core.weights_renew(1, False)  # type: ignore[arg-type]
        _core.weights_renew((1, None, layer, layer.weight), True)
        _core.weights_were_written([1, layer.weight], [None, x])
        assert _core.weights_casts_to_write([1, None, "x"]) == [None] * 3
        _core.weights_forget(layer)
        _core.weights_forget(layer.weight)


def the_casts() -> None:
    """Every way from a tensor to a lower one: kernels, torch, saturated; every kind of tensor."""
    large = 1 << (10 if SMALL else 17)
    with lists("mm matmul mul sigmoid clamp", "exp"):
        a, b = torch.randn(3, 4), torch.randn(4, 5)
        for grad in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            with grad():
                assert torch.mm(a, b).dtype == torch.bfloat16
                assert (a @ b).dtype == torch.bfloat16
                assert a.matmul(b).dtype == torch.bfloat16
                assert torch.exp(torch.mm(a, b)).dtype == torch.float32
                bound = a.mm
                assert bound(b).dtype == torch.bfloat16
                assert bound(mat2=b).dtype == torch.bfloat16
                for one in (
                    torch.randn(()),
                    torch.randn(0),
                    torch.randn(0, 3),
                    torch.randn(large),
                    torch.randn(6, 6).t(),
                ):
                    assert torch.sigmoid(one).dtype == torch.bfloat16
                for one in (torch.randn(1).expand(5), torch.randn(9)[::3], torch._neg_view(torch.randn(3))):
                    assert torch.sigmoid(one).dtype == torch.bfloat16
                assert torch.sigmoid(torch.ones(3).half()).dtype == torch.bfloat16
                assert torch.sigmoid(torch.empty(3, device="meta")).dtype == torch.bfloat16
                assert torch.sigmoid(torch.ones(3, dtype=torch.float64)).dtype == torch.float64
                assert torch.sigmoid(torch.ones(3, dtype=torch.int64)).dtype == torch.float32
                # The last one is a cast by the kernel with two threads of its own.
                torch.sigmoid(torch.randn(4 * large))
        weight = torch.nn.Parameter(torch.randn(4, 5))
        torch.mm(a, weight).sum().backward()
        assert weight.grad is not None
        assert weight.grad.dtype == torch.float32
        sparse = torch.randn(3, 3).relu().to_sparse()
        with contextlib.suppress(RuntimeError):
            torch.mm(sparse, torch.randn(3, 3))
        with contextlib.suppress(RuntimeError):
            torch.sigmoid(torch.nested.nested_tensor([torch.randn(2), torch.randn(3)]))
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            assert torch.mm(torch.randn(2, 2), torch.randn(2, 2)).dtype == torch.bfloat16
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(torch.randn(2, 2), torch.randn(2, 2))
            assert torch.autograd.forward_ad.unpack_dual(torch.mm(dual, torch.randn(2, 2))).tangent is not None
        torch.func.vmap(torch.mm)(torch.randn(2, 3, 3), torch.randn(2, 3, 3))
        torch.func.grad(lambda x: torch.mm(x, x).sum().float())(torch.randn(2, 2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.trace(lambda x: torch.mm(x, x), torch.randn(2, 2))
    with lists("pow clamp masked_fill", "", dtype=torch.float16):
        x = torch.tensor([1e6, -1e6, 2.0])
        with torch.no_grad():
            assert torch.pow(x, 1).dtype == torch.float16
            assert torch.clamp(x, -1e30, 70000).dtype == torch.float16
            assert torch.clamp(x, 2**70, 2**80).dtype == torch.float16
            x.masked_fill(x > 0, -1e30)
            torch.masked_fill(x, x > 0, 10**30)
        with raises(RuntimeError, OverflowError, TypeError):
            torch.clamp(x, 2**2000, 1)
        half = torch.ones(3).half()
        torch.clamp(half, -1e30, 1e30)
        half.masked_fill_(half > 0, -1e30)


def the_buffers() -> None:
    """Memory for casts of activations that is used again: more shapes than fit, layouts, errors, results that stay."""
    weight = torch.randn(8, 3).bfloat16()
    large = torch.randn(1 << (6 if SMALL else 14), 8)
    inputs = [torch.randn(rows, 8) for rows in range(1, 25)] + [torch.randn(8, 5).t(), torch.randn(6, 8)[::2], large]
    with lists("matmul conv2d", ""):
        results = []
        for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad, torch.no_grad):
            with mode():
                for x in (*inputs, *inputs, *reversed(inputs)):
                    results.append(x @ weight)
                    image = x.flatten()[:8].reshape(1, 2, 2, 2).to(memory_format=torch.channels_last)
                    torch.conv2d(image, image)
                    with raises(RuntimeError):
                        torch.matmul(x, torch.ones(9, 9))
        assert all(torch.equal(x.bfloat16() @ weight, result) for x, result in zip(inputs, results, strict=False))
    assert _core.buffer_count() == 0


def the_arguments() -> None:
    """Sequences, keywords, many arguments, out= and dtype=."""
    with lists("cat stack mm lstm_cell linear sum", "softmax"):
        a, b = torch.randn(2, 3), torch.randn(2, 3).bfloat16()
        assert torch.cat([a, b]).dtype == torch.bfloat16
        assert torch.cat((a, a, b, a)).dtype == torch.bfloat16
        assert torch.cat(tensors=[a, b], dim=0).dtype == torch.bfloat16
        assert torch.stack([a] * 40).shape == (40, 2, 3)
        assert torch.cat([a, a], dim=1, out=torch.empty(2, 6)).dtype == torch.float32
        assert torch.sum(a, dim=0, dtype=torch.float32).dtype == torch.float32
        assert a.sum(0, True, dtype=torch.float64).dtype == torch.float64
        assert torch.softmax(b, 0, torch.bfloat16).dtype == torch.bfloat16
        assert torch.softmax(b, dim=0).dtype == torch.float32
        assert F.linear(a, torch.randn(4, 3), torch.randn(4)).dtype == torch.bfloat16
        assert F.linear(input=a, weight=torch.randn(4, 3), bias=None).dtype == torch.bfloat16
        cell = torch.nn.LSTMCell(3, 2)
        assert cell(a, (torch.randn(2, 2), torch.randn(2, 2)))[0].dtype == torch.bfloat16
        deep: list[Any] = [a]
        for _ in range(50):
            deep = [deep]
        itself: list[Any] = []
        itself.append(itself)
        for wrong in (deep, itself, [], [1, 2], [None], (a, 1), [a, [b, (a, [b])]], {"a": a}, "text", object()):
            with raises(TypeError, RuntimeError, ValueError):
                torch.cat(wrong)  # type: ignore[call-overload]
        with raises(TypeError):
            torch.mm(*[a] * 60)
        with raises(TypeError):
            torch.mm(**{f"k{i}": a for i in range(60)})
        with raises(TypeError):
            torch.mm(a, **{"mat2": a, "other": a})
        with raises(TypeError):
            torch.mm()
        with raises(TypeError):
            torch.Tensor.mm()
        with raises(TypeError):
            torch.Tensor.mm(1, a)
        for key in (1, None, "\udc80"):
            with raises(TypeError, UnicodeEncodeError):
                a.mm(**{key: a})  # type: ignore[misc]
            with raises(TypeError, UnicodeEncodeError):
                torch.mm(a, **{key: a})  # type: ignore[misc]


class Strange:
    @property
    def dtype(self) -> Any:
        raise RuntimeError("no dtype")


class StrangeTensor(torch.Tensor):
    broken: Any = RuntimeError

    @property
    def dtype(self) -> Any:
        raise self.broken("no dtype")


class OwnFunction(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(function, kinds, args, kwargs or {})


class NoCast(torch.Tensor):
    def bfloat16(self, *_: Any, **__: Any) -> Any:
        raise KeyError("no bfloat16")


class Shrinks(torch.Tensor):
    """Reading it empties the list that it is in."""

    inside: list[Any]

    @property
    def dtype(self) -> Any:
        self.inside.clear()
        return torch.float32


def the_errors() -> None:
    with lists("mm cat mul", "exp"):
        a = torch.randn(2, 2)
        for wrong in (Strange(), StrangeTensor(a), NoCast(a), None, 1j, "x", object):
            for call in (
                lambda w: torch.mm(a, w),
                lambda w: torch.cat([a, w]),
                a.mm,
                lambda w: torch.mm(w, a),
            ):
                with contextlib.suppress(TypeError, RuntimeError, KeyError, AttributeError):
                    call(wrong)
        assert torch.mm(a.as_subclass(OwnFunction), a).dtype == torch.bfloat16
        shrinking: list[Any] = [a.as_subclass(Shrinks), a, a]
        shrinking[0].inside = shrinking
        with contextlib.suppress(RuntimeError, TypeError, ValueError):
            torch.cat(shrinking)
        with raises(RuntimeError):
            torch.mm(a, torch.randn(5, 5))
        with raises(RuntimeError):
            torch.mm(a.bfloat16(), torch.randn(5, 5))
        # Gone before the call returns, and asked for afterwards.
        for _ in range(40):
            _core.was_lowered(torch.mm(a, a))
    for text in ("nothing_of_that_name", "mm mm exp"):
        with raises(hmp.ListError), lists(text, "mm"):
            pass
    with raises(OSError):
        hmp.convert(bf16_file_path="/nonexistent/list")
    with raises(OSError):
        hmp.convert(log="/nonexistent/log")
    for action, precision in (("dance", "bf16"), ("precision", "bf8")):
        with raises(ValueError):
            _core.Rule(action=action, precision=precision)
    rule = _core.Rule(action="precision", precision="bf16")
    for target in (1, torch.Tensor.__getitem__, len, torch._C.TensorBase.__len__):
        with raises(TypeError, RuntimeError):
            _core.install([(torch.mm, torch.mm, "mm", rule, rule), (target, target, "x", rule, rule)])
    assert _core.installed_count() == 0
    with raises(TypeError):
        _core.untouched_twin(1)
    with converted():
        assert _core.is_covered(torch.mm)
        assert not _core.is_covered(1)
        assert _core.untouched_twin(torch.mm)(a, a).dtype == torch.float32


class OnlyFloat32:
    """A function of the user that has no bf16 kernel."""

    calls = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if x.dtype != torch.float32:
            raise RuntimeError("\"only_float32\" not implemented for 'BFloat16'")
        return x + 1


def the_second_try() -> None:
    """Operations without a kernel for the lower precision that a list demands it of."""
    with lists("cholesky_solve frac vander cummax histc frexp ldexp igamma", ""):
        a = torch.rand(3, 3) + 1
        for call in (
            lambda: torch.igamma(a, a),
            lambda: torch.frexp(a),
            lambda: torch.histc(a, 4),
            lambda: torch.cholesky_solve(a, a),
            lambda: torch.cummax(a, 0),
        ):
            call()
        with raises(RuntimeError, TypeError):
            torch.igamma(a, torch.rand(7, 5))
    with converted():
        only = OnlyFloat32()
        wrapped = hmp.op_wrap(only, to="bf16")
        # A function of the user's may have done things before it raised: it is not called again.
        with raises(RuntimeError):
            wrapped(torch.ones(3))
        assert only.calls == 1

        def stopped(x: torch.Tensor) -> torch.Tensor:
            raise KeyboardInterrupt

        def exhausted(x: torch.Tensor) -> torch.Tensor:
            raise MemoryError

        def wrong(x: torch.Tensor) -> torch.Tensor:
            raise ValueError("always")

        for function, kind in ((stopped, KeyboardInterrupt), (exhausted, MemoryError), (wrong, ValueError)):
            with raises(kind):
                hmp.op_wrap(function)(torch.ones(3))


def the_functions() -> None:
    """op_wrap, composites and the rules where the lists are silent."""
    with converted():
        for to, expected in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)):
            wrapped = hmp.op_wrap(lambda x, *rest, scale=None: x * 1, to=to)
            for _ in range(3):
                assert wrapped(torch.ones(3)).dtype == expected
                assert wrapped(torch.ones(3), [torch.ones(2)], scale=torch.ones(1)).dtype == expected
        widest = hmp.op_wrap(torch.add, to="widest")
        assert widest(torch.ones(3).bfloat16(), torch.ones(3)).dtype == torch.float32
        first = hmp.op_wrap(torch.add, to="first")
        assert first(torch.ones(3).bfloat16(), torch.ones(3)).dtype == torch.bfloat16
        with raises(TypeError):
            wrapped()
        del wrapped, widest, first
        gc.collect()
        assert len(hmp.report(show=False)) > 0
        hmp.reset_report()
    with lists("mm", "normalize cosine_similarity softmin rdiv __rdiv__ softmax"):
        half = torch.rand(3, 3).bfloat16()
        F.normalize(half)
        F.normalize(input=half, dim=0)
        F.softmin(half, dim=0)
        1 / half
        with raises(TypeError):
            F.normalize()  # type: ignore[call-arg]
    with lists("add", "sub"):
        # Types and results of add in place: the target keeps what it has.
        x = torch.zeros(3)
        x += torch.ones(3).bfloat16()
        x.mul_(torch.ones(3).half())
        x.add_(1).clamp_(0, 1e38)
        assert x.dtype == torch.float32
        torch.where(x > 0, x, x.bfloat16())
        torch.lerp(x, x.bfloat16(), 0.5)
    for level in ("O2", "O0"):
        with converted(level):
            torch.mm(torch.ones(2, 2), torch.ones(2, 2))
            torch.softmax(torch.ones(2, 2), 0)


def the_assignment() -> None:
    with converted():
        x, low = torch.zeros(3, 3), torch.zeros(3, 3, dtype=torch.bfloat16)
        x[0] = torch.ones(3).bfloat16()
        low[1:] = torch.ones(3)
        low[low == 0] = torch.tensor(2.0)
        x[1] = 1
        x[2] = torch.ones(3, dtype=torch.int64)
        torch.nn.Parameter(low, requires_grad=False)[0] = torch.ones(3)
        low.as_subclass(OwnFunction)[0] = torch.ones(3)
        torch.Tensor.__setitem__(low, 0, torch.ones(3))
        assert low.dtype == torch.bfloat16
        with raises(RuntimeError):
            low[0] = torch.ones(7)
        with raises(IndexError):
            low[9] = torch.ones(3)
        with raises(TypeError):
            low["x"] = torch.ones(3)  # type: ignore[index]
        with raises(TypeError, RuntimeError, NotImplementedError):
            del low[0]  # type: ignore[attr-defined]
        with contextlib.suppress(RuntimeError, TypeError):
            low[0] = StrangeTensor(torch.ones(3))
        with contextlib.suppress(RuntimeError, TypeError, KeyError):
            low[0] = NoCast(torch.ones(3))

        class Later(torch.Tensor):
            pass

        low.as_subclass(Later)[0] = torch.ones(3)
    low.as_subclass(Later)[0] = torch.ones(3)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)
        product = torch.mm(torch.ones(3, 3), torch.ones(3, 3))
        assert product.dtype == torch.float32
        self.weight = torch.nn.Parameter(product)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) @ self.weight


def the_places() -> None:
    """The probes: autocast, construction, optimizers, parameters made of results, disabled casts."""
    with converted():
        a = torch.ones(3, 3)
        with torch.autocast("cpu", enabled=False):
            assert torch.mm(a, a).dtype == torch.float32
            with torch.autocast("cpu", dtype=torch.bfloat16):
                torch.mm(a, a)
            with torch.autocast("cpu", enabled=False), torch.autocast("cpu", enabled=False):
                torch.mm(a, a)
        with raises(TypeError):
            torch.set_autocast_enabled("cpu", 1, 2)  # type: ignore[call-arg]
        with raises(TypeError):
            torch.autocast_increment_nesting(1)  # type: ignore[call-arg]
        model = Model()
        closed = 0

        def closure() -> torch.Tensor:
            nonlocal closed
            closed += 1
            optimizer.zero_grad()
            loss = model(a).float().sum()
            loss.backward()
            return loss

        for optimizer in (torch.optim.SGD(model.parameters(), 0.1), torch.optim.LBFGS(model.parameters(), max_iter=2)):
            optimizer.step(closure)
            optimizer.step(closure=closure)
        assert closed > 1

        def fails() -> Any:
            raise ValueError("closure")

        with raises(ValueError):
            optimizer.step(fails)
        assert torch.mm(a, a).dtype == torch.bfloat16

        class Fails(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                raise ValueError("__init__")

        with raises(ValueError):
            Fails()
        assert torch.mm(a, a).dtype == torch.bfloat16
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            late = torch.nn.Module()
            late.weight = torch.nn.Parameter(torch.mm(a, a))
            late.register_buffer("buffer", torch.mm(a, a))
        assert told
        with hmp.disable_casts():
            with hmp.disable_casts():
                assert torch.mm(a, a).dtype == torch.float32
            assert torch.mm(a, a).dtype == torch.float32

        @hmp.disable_casts()
        def generator() -> Iterator[torch.dtype]:
            for _ in range(3):
                yield torch.mm(a, a).dtype

        assert set(generator()) == {torch.float32}
        del late
        gc.collect()


def the_log() -> None:
    handler = logging.StreamHandler(io.StringIO())
    logger = logging.getLogger("core_exercise")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False

    class Calls(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            torch.mm(torch.ones(2, 2), torch.ones(2, 2))
            raise RuntimeError("a handler that fails")

    a = torch.ones(3, 3)
    with tempfile.TemporaryDirectory() as folder:
        for log in (Path(folder, "log.txt"), Path(folder, "log.jsonl"), logger, None):
            with contextlib.redirect_stdout(io.StringIO()), converted(log=log):
                for _ in range(600):
                    torch.mm(a, a)
                with hmp.disable_casts():
                    torch.mm(a, a)
                with raises(RuntimeError):
                    torch.mm(a, torch.ones(5, 5))
                _core._log_operation('\udc80 "quoted" \n \x01 \u00e9 \u20ac \U0001f600', "x", 0, 0, 2)
                _core._log_event("\ud800 event")
                _core.log_flush()
        assert Path(folder, "log.jsonl").read_bytes().count(b"\n") > 600
        hook = sys.unraisablehook
        sys.unraisablehook = lambda _: None
        logger.addHandler(Calls())
        with converted(log=logger), contextlib.suppress(RuntimeError):
            torch.mm(a, a)
        with contextlib.redirect_stdout(None), converted(isVerbose=True):  # type: ignore[type-var]
            torch.mm(a, a)
        if Path("/dev/full").exists():
            with converted(log="/dev/full"):
                for _ in range(2000):
                    torch.mm(a, a)
        sys.unraisablehook = hook
        for wrong in (("x", None), ("python", 1), ("file", 1), ("file", folder)):
            with contextlib.suppress(Exception):
                _core.log_to(*wrong)
        _core.log_off()
        for precision, reason in ((-1, 0), (0, 99)):
            with raises(ValueError):
                _core._log_operation("x", "x", precision, reason, 0)


def the_fork() -> None:
    with tempfile.TemporaryDirectory() as folder, converted(log=Path(folder, "log.jsonl")):
        a = torch.ones(3, 3)
        torch.mm(a, a)
        kernels.to_float16(np.zeros(1 << 12, np.float32), threads=2)
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                torch.mm(a, a)
                _core.kernels_cast_with(
                    np.zeros(1 << 16, np.float32), np.dtype(np.float16), None, 2, _core.kernels_path(), False
                )
                hmp.restore()
                hmp.convert()
                torch.mm(a, a)
                hmp.restore()
                status = 0
            os._exit(status)
        assert os.waitpid(child, 0)[1] == 0


def the_installation() -> None:
    for _ in range(5):
        with converted():
            hmp.convert("O2")
            hmp.convert(preset="torch-cuda")
            held = torch.ones(2, 2).mm
        assert held(torch.ones(2, 2)).dtype == torch.float32
        assert _core.installed_count() == 0
    hmp.restore()


def the_regions() -> None:
    region, x = hmp.autocast("cpu"), torch.randn(4, 4, requires_grad=True)
    for _ in range(3):
        with region, hmp.autocast("cpu", torch.float16, preset="torch-cuda"):
            torch.mm(x, x).sum().backward()
            torch.nn.functional.softmin(x, -1)
            with hmp.disable_casts(), region, torch.autocast("cpu", enabled=False):
                torch.mm(x, x)
            with raises(RuntimeError):
                torch.nn.functional.binary_cross_entropy(x.sigmoid(), x.detach().sigmoid())
            hmp.restore()
    with raises(RuntimeError):
        region.__exit__()
    state = _core.current_state()
    assert _core.exchange_state(state) == state


PARTS: list[Callable[[], None]] = [
    the_kernels,
    the_optimizers,
    the_weights,
    the_casts,
    the_buffers,
    the_arguments,
    the_errors,
    the_second_try,
    the_functions,
    the_assignment,
    the_places,
    the_regions,
    the_log,
    the_fork,
    the_installation,
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--core", type=Path, help="the core that must be loaded")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", help="one part")
    given = parser.parse_args()
    if given.core is not None and Path(_core.__file__).resolve() != given.core.resolve():
        sys.exit(f"the wrong core is loaded: {_core.__file__}, expected {given.core}")
    torch.set_num_threads(2)
    for part in PARTS:
        if given.only is None or part.__name__ == given.only:
            part()
            print(f"core_exercise: {part.__name__} ({_core.reader()}, {_core.kernels_path()})", flush=True)


if __name__ == "__main__":
    main()
