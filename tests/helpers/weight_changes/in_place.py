"""Changes of a weight in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map

from helpers.weight_changes.basics import COLUMN, ROW, SIZE, foreign, noise, write_at

ONE_ELEMENT = torch.zeros(SIZE, SIZE)
ONE_ELEMENT[ROW, COLUMN] = 1
CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


def _set_all(w: torch.Tensor, n: int) -> None:
    w[...] = noise()


def _set_masked(w: torch.Tensor, n: int) -> None:
    w[w > 0] = n


def set_one(w: torch.Tensor, n: int) -> None:
    w[ROW, COLUMN] = n


def _augmented(w: torch.Tensor, n: int) -> None:
    w += n


def _below_autograd(w: torch.Tensor, n: int) -> None:
    with torch._C._AutoDispatchBelowADInplaceOrView():
        w.add_(noise())


def _pointer(w: torch.Tensor) -> int:
    return w.data_ptr()


def _flip_a_bit(w: torch.Tensor, n: int) -> None:
    with torch.inference_mode():
        w.view(dtype=torch.int32)[ROW, COLUMN] ^= 1 << 22 + n


def _through_complex_numbers(w: torch.Tensor, n: int) -> None:
    with torch.inference_mode():
        torch.view_as_real(w.view(torch.complex64))[ROW, COLUMN // 2] += n


# These do not increment a version counter.


def fused_sgd(w: torch.Tensor, gradient: torch.Tensor) -> None:
    options: dict[str, Any] = {"dampening": 0.0, "nesterov": False, "maximize": False, "is_first_step": True}
    torch._fused_sgd_([w], [gradient], [], weight_decay=0.0, momentum=0.0, lr=0.5, **options)


def fused_adamw(w: torch.Tensor, gradient: torch.Tensor, decay: float, step: Any = torch._fused_adamw_) -> None:
    options: dict[str, Any] = {"weight_decay": decay, "eps": 1e-8, "amsgrad": False, "maximize": False}
    state = [[torch.zeros_like(w)], [torch.zeros_like(w)], [], [torch.tensor(1.0)]]
    step([w], [gradient], *state, lr=0.5, beta1=0.9, beta2=0.99, **options)


def unscale(w: torch.Tensor) -> None:
    torch._amp_foreach_non_finite_check_and_unscale_([w], torch.zeros(1), torch.tensor(3.0))


#: Of the many that count the version up, some of each form: ``weights/test_every_operator.py`` calls all.
IN_PLACE: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "add_": lambda w, n: w.add_(n),
    "+=": _augmented,
    "copy_": lambda w, n: w.copy_(noise()),
    "zero_": lambda w, n: w.normal_().div_(n) if n == 1 else w.zero_(),
    "uniform_": lambda w, n: w.uniform_(),
    "t_": lambda w, n: w.t_(),
    "as_strided_": lambda w, n: w.as_strided_((SIZE, SIZE), (1, SIZE))
    if n == 1
    else w.as_strided_((SIZE, SIZE), (SIZE, 1)),
    "w[...] = x": _set_all,
    "w[mask] = x": _set_masked,
    "w[i, j] = x": set_one,
    "out=": lambda w, n: torch.add(w, n, out=w),
    "relu(inplace=True)": lambda w, n: F.relu(w.sub_(0.1), inplace=True),
    "normalize(out=)": lambda w, n: F.normalize(w, p=n + 1, out=w),
    "embedding(max_norm=)": lambda w, n: F.embedding(torch.arange(8), w, max_norm=0.5 / n),
    "aten.add_": lambda w, n: torch.ops.aten.add_.Tensor(w, noise()),
    "_foreach_add_": lambda w, n: torch._foreach_add_([w], 1.0),
    "_foreach_copy_": lambda w, n: torch._foreach_copy_([w], [noise()]),
    "_fused_sgd_": lambda w, n: fused_sgd(w, noise()),
    "_fused_sgd_, one element": lambda w, n: fused_sgd(w, ONE_ELEMENT),
    "_fused_adamw_": lambda w, n: fused_adamw(w, noise(), 0.1),
    "_fused_adamw_, one element": lambda w, n: fused_adamw(w, ONE_ELEMENT, 0.0),
    "aten._fused_adamw_, one element": lambda w, n: fused_adamw(w, ONE_ELEMENT, 0.0, torch.ops.aten._fused_adamw_),
    "_amp_foreach_..._unscale_": lambda w, n: unscale(w),
    "_amp_foreach_..._unscale_, one element": lambda w, n: w.copy_(ONE_ELEMENT) if n == 1 else unscale(w),
    "below autograd": _below_autograd,
    "redispatched": lambda w, n: torch.ops.aten.add_.Tensor.redispatch(CPU, w, noise()),
    "foreign function": lambda w, n: foreign(w, n),
    "a bit, in inference mode": _flip_a_bit,
    "complex numbers, in inference mode": _through_complex_numbers,
    "kron, out": lambda w, n: torch.kron(torch.ones(1, 1), w.detach() + n * ONE_ELEMENT, out=w),
    **(
        {"data as Dynamo has it": lambda w, n: torch._C._autograd._get_data_attr(w)[ROW, COLUMN].add_(n)}
        if hasattr(torch._C._autograd, "_get_data_attr")
        else {}
    ),
    "turned sign": lambda w, n: torch._C._set_neg(w, not w.is_neg()),
    "pointer of many": lambda w, n: write_at(tree_map(torch.Tensor.data_ptr, [w])[0], n),
    "pointer to constants": lambda w, n: write_at(getattr(w, "const_data_ptr", w.data_ptr)(), n),
    "pointer by a decorated method": lambda w, n: write_at(torch.no_grad()(torch.Tensor.data_ptr)(w), n),
    "pointer by a method not compiled": lambda w, n: write_at(torch.compiler.disable(torch.Tensor.data_ptr)(w), n),
    "pointer by a graph": lambda w, n: write_at(torch.fx.Interpreter(torch.fx.symbolic_trace(_pointer)).run(w), n),
    "set_": lambda w, n: w.set_(noise()),
    "set_ of a storage": lambda w, n: w.set_(noise().untyped_storage(), 0, (SIZE, SIZE), (SIZE, 1)),
    "set_ to another offset": lambda w, n: w.set_(noise(SIZE + 1, SIZE).untyped_storage(), n, (SIZE, SIZE), (SIZE, 1)),
}
