"""The kernels, kept weights, casts and buffers, each driven once."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from exercise_common import SMALL, converted, lists, raises

from habana_mp import _core, kernels


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
    kernels.cast_many(everything, outs)
    with raises(ValueError):
        kernels.cast_many([grid, grid], [outs[0], outs[0]])
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
                optimizer = torch.optim.AdamW([*layer.parameters(), *convolution.parameters()])
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
