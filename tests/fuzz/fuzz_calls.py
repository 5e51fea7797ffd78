"""Fuzzes calls: what plain torch does without raising, torch under `hmp.convert` must do without raising too.

    python tests/fuzz/fuzz_calls.py [--seconds 300] [--seed 0] [--case N]

Each case is one call of an operation that some policy covers, as function, descriptor, bound method or assignment, with
arguments that may be anything. It is made twice from its number, and called once in plain torch and once converted,
under the same random state. Found is:

- a converted call that raises where the plain one does not, a SystemError, or an exception left pending;
- a result of another type, shape or integer dtype, or that needs gradients where the plain one does not (and the
  reverse); where the policy says float32 for everything, other numbers in the result of float32 inputs;
- an in-place target that is another object or has another dtype afterwards;
- a reference count of an argument that ends up different;
- a crash or a call that never returns, where the plain call does neither.

The calls run in a process of their own with faulthandler, which is started again where torch itself crashes. --case
runs one case in this process and shows all of it. The exit status is 1 when anything was found.

Left out, because wrong arguments make torch itself read or write where it may not, so that whatever happens next says
nothing (:data:`UNSAFE`), or because a large number means a loop of that length or memory of that size, by design
(:data:`UNBOUNDED`, which only get small numbers).
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import gc
import json
import os
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map

from habana_mp import _core, _operations, hmp
from habana_mp._install import installation


def words(text: str) -> list[str]:
    return text.split()


#: Torch trusts some arguments of these: sorted offsets, pivots, lengths, sizes of a workspace.
UNSAFE = words(
    """
    embedding_bag _embedding_bag _unsafe_masked_index_put_accumulate ctc_loss _ctc_loss lu_solve linalg_lu_solve
    linalg_ldl_solve ormqr orgqr linalg_householder_product _histogramdd_from_bin_cts _histogramdd_bin_edges
    _lu_with_info gru lstm rnn_tanh rnn_relu _convolution _chunk_cat native_group_norm _batch_norm_with_update
    """
)

#: A number among the arguments is the length of a loop, or of the result in every direction.
UNBOUNDED = re.compile(
    r"special_.*polynomial|matrix_power|matrix_exp|vander|histogram|pad|upsample|interpolate|full|meshgrid"
)

#: Longer than any call takes; a call that takes longer is reported as one that does not return.
PATIENCE = 30
BATCH = 40
MEMORY = 6 << 30


# ---- strange objects -------------------------------------------------------------------------------------------------


class RaisesOnDtype:
    @property
    def dtype(self) -> Any:
        raise RuntimeError("dtype raises")


class RaisesOnClass:
    @property
    def __class__(self) -> Any:
        raise RuntimeError("__class__ raises")


class RaisesOnEverything:
    def __getattribute__(self, name: str) -> Any:
        raise ZeroDivisionError(name)


class Overrides:
    """Not a tensor, but torch asks it."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        return "overridden"


class Refuses:
    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        return NotImplemented


class Raises:
    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise KeyError("__torch_function__ raises")


class Subclass(torch.Tensor):
    pass


class SubclassOwnFunction(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(function, kinds, args, kwargs or {})


class SubclassNoFunction(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


class SubclassRaisingDtype(torch.Tensor):
    @property
    def dtype(self) -> Any:
        raise RuntimeError("the dtype of a tensor raises")


class SubclassRaisingCast(torch.Tensor):
    def bfloat16(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("bfloat16 raises")

    half = float = bfloat16


class Wrapper(torch.Tensor):
    """A tensor around a tensor, which sees every operation."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        made: Wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        args_inside, kwargs_inside = tree_map(lambda one: one.inner if isinstance(one, cls) else one, (args, kwargs))
        out = function(*args_inside, **kwargs_inside)
        out = tree_map(lambda one: cls(one) if isinstance(one, torch.Tensor) else one, out)
        return return_and_correct_aliasing(function, args, kwargs, out)

    def __repr__(self, **_: Any) -> str:
        return "Wrapper"


class ListThatRaises(list):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("__iter__ raises")


class ListThatLies(list):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 1000


class TupleThatRaises(tuple):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("__iter__ raises")


class Pair(NamedTuple):
    first: Any
    second: Any


class Text(str):
    """A name that only equals itself."""

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = str.__hash__


class Number(float):
    pass


class Index:
    def __index__(self) -> int:
        return 1


class RaisingIndex:
    def __index__(self) -> int:
        raise RuntimeError("__index__ raises")


# ---- arguments -------------------------------------------------------------------------------------------------------

SHAPES = [
    (),
    (0,),
    (1,),
    (3,),
    (4,),
    (3, 3),
    (2, 3),
    (3, 2),
    (1, 3),
    (0, 3),
    (2, 3, 3),
    (3, 3, 3),
    (1, 2, 4, 4),
    (2, 2, 3, 4, 4),
]
DTYPES = [
    *[torch.float32] * 6, torch.bfloat16, torch.bfloat16, torch.float16, torch.float64, torch.complex64,
    torch.complex128, torch.complex32, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool,
    torch.float8_e4m3fn,
]  # fmt: skip
KEYWORDS = words(
    """
    input other out dtype dim keepdim alpha beta value weight bias eps mask source index src min max exponent p
    reduction size_average reduce self tensors mat1 mat2 vec1 vec2 batch1 batch2 rounding_mode correction unbiased
    target stride padding dilation groups training momentum running_mean running_var normalized_shape layout device
    requires_grad x
    """
)
SMALL = [0, 1, -1, 2, 3]
LARGE = [2**31, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63), 2**63, 2**64, 2**200]


class Maker:
    """The arguments of one case."""

    def __init__(self, rng: random.Random, bounded: bool) -> None:
        self.rng = rng
        self.bounded = bounded
        #: What is held by the arguments, at any depth, to count references of.
        self.leaves: list[Any] = []
        #: Is every floating tensor made here a float32 one of the plain kind?
        self.plain_float32 = True

    def fill(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if dtype.is_floating_point or dtype.is_complex:
            kind = self.rng.random()
            if kind < 0.1:
                values = torch.full(shape, self.rng.choice([0.0, float("nan"), float("inf"), 3.3e38, 1e-40, -1e30]))
            elif kind < 0.3:
                values = torch.rand(shape)
            else:
                values = torch.randn(shape)
            return values.to(dtype)
        return torch.randint(0, 2, shape).to(dtype)

    def base(self, shape: tuple[int, ...] | None = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        shape = self.rng.choice(SHAPES) if shape is None else shape
        dtype = self.rng.choice(DTYPES) if dtype is None else dtype
        if dtype != torch.float32 and (dtype.is_floating_point or dtype.is_complex):
            self.plain_float32 = False
        return self.fill(shape, dtype)

    def odd(self, tensor: torch.Tensor) -> Any:
        """The same numbers in another kind of tensor."""
        rng = self.rng
        choice = rng.randrange(26)
        with contextlib.suppress(Exception):
            if choice < 4:
                return tensor.requires_grad_()
            if choice < 6:
                return torch.nn.Parameter(tensor, requires_grad=rng.random() < 0.7)
            if choice == 6:
                return tensor.mT.contiguous().mT
            if choice == 7:
                return torch.stack([tensor, tensor])[1]
            if choice == 8:
                return tensor.flatten()[:1].expand(tensor.shape)
            if choice == 9:
                return torch.stack([tensor, tensor], -1)[..., 0]
            if choice == 10:
                self.plain_float32 = False
                return tensor.to(torch.complex64).conj()
            if choice == 11:
                return torch._neg_view(tensor)
            if choice == 12:
                return tensor.requires_grad_() * 1
            if choice == 13:
                return torch.nn.Parameter(tensor).detach()
            self.plain_float32 = False
            if choice == 14:
                return tensor.to_sparse()
            if choice == 15:
                return tensor.to_sparse_csr()
            if choice == 16:
                return tensor.to_mkldnn()
            if choice == 17:
                return torch.quantize_per_tensor(
                    tensor.float(), 0.1, 1, rng.choice([torch.qint8, torch.quint8, torch.qint32])
                )
            if choice == 18:
                layout = rng.choice([torch.strided, torch.jagged])
                return torch.nested.nested_tensor([tensor, tensor], layout=layout)
            if choice == 19:
                return tensor.to("meta")
            if choice == 20:
                from torch._subclasses.fake_tensor import FakeTensorMode

                return FakeTensorMode(allow_non_fake_inputs=True).from_tensor(tensor)
            if choice == 21:
                return Wrapper(tensor)
            kinds = [Subclass, SubclassOwnFunction, SubclassNoFunction, SubclassRaisingDtype, SubclassRaisingCast]
            return tensor.as_subclass(rng.choice(kinds))
        return tensor

    def tensor(
        self, shape: tuple[int, ...] | None = None, dtype: torch.dtype | None = None, strange: float = 0.3
    ) -> Any:
        made = self.base(shape, dtype)
        if self.rng.random() < strange:
            made = self.odd(made)
        self.leaves.append(made)
        return made

    def number(self) -> Any:
        rng = self.rng
        if rng.random() < 0.7 or self.bounded:
            return rng.choice([*SMALL, 0.5, 1.0, -2.0, True, False])
        return rng.choice(
            [*LARGE, float("nan"), float("inf"), -float("inf"), 3.4e38, 1e39, -1e300, 65505.0, 1j, Number(1.5)]
        )

    def sequence(self, depth: int) -> Any:
        rng = self.rng
        items = [self.anything(depth + 1) for _ in range(rng.randrange(4))]
        made: Any = rng.choice([list, list, tuple, tuple, ListThatRaises, ListThatLies, TupleThatRaises])(items)
        if rng.random() < 0.05:
            made = []
            made.append(made)
        elif rng.random() < 0.05:
            made = Pair(self.tensor(), self.tensor())
        elif rng.random() < 0.03:
            for _ in range(200):
                made = [made]
        self.leaves.append(made)
        return made

    def anything(self, depth: int = 0) -> Any:
        rng = self.rng
        kind = rng.random()
        if kind < 0.5:
            return self.tensor()
        if kind < 0.7:
            return self.number()
        if kind < 0.82 and depth < 3:
            return self.sequence(depth)
        made = rng.choice(
            [
                lambda: None, lambda: None, lambda: "mean", lambda: "floor", lambda: "\udc80", lambda: "", dict, object,
                lambda: {"a": self.tensor()}, lambda: {self.number()}, lambda: b"x", lambda: ..., lambda: slice(0, 2),
                lambda: torch.float32, lambda: torch.bfloat16, lambda: torch.float64, lambda: torch.strided,
                lambda: torch.device("cpu"), lambda: torch.Size([2]), lambda: torch.contiguous_format, RaisesOnDtype,
                RaisesOnClass, RaisesOnEverything, Overrides, Refuses, Raises, Index, RaisingIndex, lambda: int,
                lambda: torch.Tensor, lambda: torch.mm, lambda: torch.storage.UntypedStorage(4), lambda: range(3),
                lambda: (one for one in (1, 2)), torch.Generator, lambda: memoryview(b"abc"),
            ]
        )()  # fmt: skip
        self.leaves.append(made)
        return made


def t(*shape: int) -> Callable[[Maker], Any]:
    return lambda make: make.tensor(shape, torch.float32, 0.25)


def i(*shape: int) -> Callable[[Maker], Any]:
    return lambda make: make.tensor(shape, torch.int64, 0.05)


def many(*makers: Callable[[Maker], Any]) -> Callable[[Maker], Any]:
    return lambda make: make.rng.choice([list, tuple])([one(make) for one in makers])


def n(*values: Any) -> Callable[[Maker], Any]:
    return lambda make: make.rng.choice(values)


#: Arguments that make sense, for operations that few arguments do.
TEMPLATES: dict[str, list[Any]] = {
    "linear": [t(2, 3), t(4, 3), t(4)],
    "bilinear": [t(2, 3), t(2, 3), t(4, 3, 3), t(4)],
    "bmm": [t(2, 3, 3), t(2, 3, 3)],
    "baddbmm": [t(2, 3, 3), t(2, 3, 3), t(2, 3, 3)],
    "addbmm": [t(3, 3), t(2, 3, 3), t(2, 3, 3)],
    "addmm": [t(3, 3), t(3, 3), t(3, 3)],
    "addmv": [t(3), t(3, 3), t(3)],
    "addr": [t(3, 3), t(3), t(3)],
    "mv": [t(3, 3), t(3)],
    "dot": [t(3), t(3)],
    "vdot": [t(3), t(3)],
    "conv1d": [t(1, 2, 4), t(3, 2, 2), t(3)],
    "conv2d": [t(1, 2, 4, 4), t(3, 2, 2, 2), t(3)],
    "conv3d": [t(1, 2, 3, 3, 3), t(3, 2, 2, 2, 2), t(3)],
    "conv_transpose1d": [t(1, 2, 4), t(2, 3, 2), t(3)],
    "conv_transpose2d": [t(1, 2, 4, 4), t(2, 3, 2, 2), t(3)],
    "layer_norm": [t(2, 3), n([3]), t(3), t(3)],
    "group_norm": [t(2, 4, 3), n(2), t(4), t(4)],
    "rms_norm": [t(2, 3), n([3]), t(3)],
    "batch_norm": [t(2, 3), t(3), t(3), t(3), t(3), n(True, False), n(0.1), n(1e-5), n(False)],
    "instance_norm": [t(2, 3, 4), t(3), t(3), n(None), n(None), n(True), n(0.1), n(1e-5), n(False)],
    "cross_entropy_loss": [t(3, 4), i(3)],
    "nll_loss_nd": [t(3, 4), i(3)],
    "nll_loss": [t(3, 4), i(3)],
    "multi_margin_loss": [t(3, 4), i(3)],
    "binary_cross_entropy_with_logits": [t(3), t(3), t(3)],
    "lerp": [t(3, 3), t(3, 3), t(3, 3)],
    "addcdiv": [t(3), t(3), t(3)],
    "addcmul": [t(3), t(3), t(3)],
    "where": [lambda make: make.tensor((3,), torch.bool, 0), t(3), t(3)],
    "masked_fill": [t(3), lambda make: make.tensor((3,), torch.bool, 0), n(1.0, 1e39, -1e300, 70000.0)],
    "masked_fill_": [t(3), lambda make: make.tensor((3,), torch.bool, 0), n(1.0, 1e39, -1e300, 70000.0)],
    "masked_scatter": [t(3), lambda make: make.tensor((3,), torch.bool, 0), t(3)],
    "index_add": [t(3, 3), n(0), i(2), t(2, 3)],
    "index_copy": [t(3, 3), n(0), i(2), t(2, 3)],
    "index_fill": [t(3, 3), n(0), i(2), n(1.0, 7e4)],
    "index_fill_": [t(3, 3), n(0), i(2), n(1.0, 7e4)],
    "index_put": [t(3, 3), many(i(2)), t(2, 3)],
    "index_put_": [t(3, 3), many(i(2)), t(2, 3)],
    "index_reduce": [t(3, 3), n(0), i(2), t(2, 3), n("prod", "mean")],
    "scatter": [t(3, 3), n(0), i(2, 3), t(2, 3)],
    "scatter_": [t(3, 3), n(0), i(2, 3), t(2, 3)],
    "scatter_add": [t(3, 3), n(0), i(2, 3), t(2, 3)],
    "scatter_reduce": [t(3, 3), n(0), i(2, 3), t(2, 3), n("sum", "amax")],
    "put": [t(3, 3), i(2), t(2)],
    "select_scatter": [t(3, 3), t(3), n(0), n(1)],
    "slice_scatter": [t(3, 3), t(2, 3), n(0), n(0), n(2)],
    "diagonal_scatter": [t(3, 3), t(3)],
    "gru_cell": [t(2, 3), t(2, 4), t(12, 3), t(12, 4), t(12), t(12)],
    "lstm_cell": [t(2, 3), many(t(2, 4), t(2, 4)), t(16, 3), t(16, 4), t(16), t(16)],
    "rnn_tanh_cell": [t(2, 3), t(2, 4), t(4, 3), t(4, 4), t(4), t(4)],
    "scaled_dot_product_attention": [t(1, 2, 4, 4), t(1, 2, 4, 4), t(1, 2, 4, 4)],
    "grid_sampler": [t(1, 2, 4, 4), t(1, 3, 3, 2), n(0, 1), n(0, 1), n(True, False)],
    "einsum": [n("ij,jk", "ij,jk->k"), t(3, 3), t(3, 3)],
    "tensordot": [t(3, 3), t(3, 3), n([0]), n([1])],
    "prelu": [t(2, 3), t(3)],
    "cdist": [t(2, 3), t(4, 3)],
    "max_pool2d": [t(1, 2, 4, 4), n(2)],
    "avg_pool2d": [t(1, 2, 4, 4), n(2)],
    "avg_pool3d": [t(2, 2, 3, 4, 4), n(2)],
    "upsample_nearest2d": [t(1, 2, 4, 4), n([8, 8])],
    "upsample_bilinear2d": [t(1, 2, 4, 4), n([8, 8]), n(False)],
    "pad": [t(2, 3), n([1, 1]), n("constant", "reflect"), n(0.5, 1e39, -1e300)],
    "constant_pad_nd": [t(2, 3), n([1, 1]), n(0.5, 1e39, -1e300)],
    "stft": [t(64), n(16), n(4), n(16), n(None), n(False), n(True), n(True)],
    "topk": [t(4), n(2)],
    "embedding": [t(4, 3), i(2)],
    "linalg_multi_dot": [many(t(3, 3), t(3, 3), t(3, 3))],
    "chain_matmul": [t(3, 3), t(3, 3), t(3, 3)],
    "softmax": [t(3, 3), n(0, 1)],
    "log_softmax": [t(3, 3), n(0, 1)],
    "cumsum": [t(3, 3), n(0)],
    "norm": [t(3, 3), n(2.0, 1)],
    "threshold": [t(3), n(0.1, 1e39), n(20.0, -1e300)],
    "clamp": [t(3), n(-1e39, -1.0, 70000), n(1.0, 1e39)],
    "clamp_": [t(3), n(-1e39, -1.0, 70000), n(1.0, 1e39)],
    "dropout": [t(3, 3), n(0.5), n(True, False)],
    "__setitem__": [t(3, 3), n(0, slice(0, 2), (0, 1), ..., None), t(3)],
}
TAKES_LIST = re.compile(
    r"^(cat|concat|concatenate|stack|[hvd]stack|(row|column)_stack|block_diag|meshgrid|cartesian_prod)$"
)


class Case:
    """A call, made from its number."""

    def __init__(self, seed: int, number: int, targets: list[tuple[str, str, Any]]) -> None:
        rng = random.Random(f"{seed}:{number}")
        self.number = number
        self.operation, self.place, self.object = targets[rng.randrange(len(targets))]
        torch.manual_seed(number)
        make = Maker(rng, UNBOUNDED.search(self.operation) is not None)
        template = TEMPLATES.get(self.operation, TEMPLATES.get(self.operation.rstrip("_")))
        self.args: list[Any]
        self.kwargs: dict[Any, Any] = {}
        style = rng.random()
        if template is not None and style < 0.7:
            self.args = [one(make) for one in template]
        elif style < 0.8:
            shape = rng.choice(SHAPES)
            strange = rng.choice([0.0, 0.3])
            self.args = [make.tensor(shape, torch.float32, strange) for _ in range(rng.choice([1, 1, 2, 2, 2, 3]))]
            if TAKES_LIST.match(self.operation):
                self.args = [rng.choice([list, tuple])(self.args)]
            for _ in range(rng.choice([0, 0, 0, 1, 2])):
                self.args.append(make.number())
        else:
            self.args = [make.anything() for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4, 30]))]
        if rng.random() < 0.15 and self.args:
            self.args[rng.randrange(len(self.args))] = make.anything()
        if rng.random() < 0.15:
            for _ in range(rng.choice([1, 1, 2, 20])):
                name = rng.choice(KEYWORDS)
                odd: Any = rng.choice([name] * 12 + [Text(name), 1, None, "", "\udc80"])
                self.kwargs[odd] = make.anything()
        if rng.random() < 0.05 and self.args:
            self.kwargs[rng.choice(["other", "input", "value", "weight"])] = self.args.pop()
        if rng.random() < 0.05 and self.args:
            self.args.append(self.args[0])
        # Others are everybody's: None, small numbers, types.
        owned = (torch.Tensor, list, tuple, dict)
        self.leaves = [one for one in make.leaves if issubclass(type(one), owned) or type(one).__module__ == __name__]
        self.float32 = make.plain_float32
        self.way = rng.choice(["call", "call", "bound", "expanded"])
        self.place_in_torch = rng.choice(["", "", "", "no_grad", "inference", "disabled", "autocast"])

    def call(self) -> Any:
        """Call it, as it is in torch now."""
        function: Any = self.object
        args = self.args
        if isinstance(function, types.WrapperDescriptorType):
            target, key, value = args
            target[key] = value
            return target
        if self.way == "bound" and isinstance(function, types.MethodDescriptorType) and args:
            function, args = getattr(args[0], function.__name__), args[1:]
        if self.way == "expanded":
            return function(*iter(args), **self.kwargs)
        if self.kwargs:
            return function(*args, **self.kwargs)
        if len(args) == 1:
            return function(args[0])
        if len(args) == 2:
            return function(args[0], args[1])
        return function(*args)

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if self.place_in_torch == "no_grad":
                stack.enter_context(torch.no_grad())
            elif self.place_in_torch == "inference":
                stack.enter_context(torch.inference_mode())
            elif self.place_in_torch == "disabled":
                stack.enter_context(hmp.disable_casts())
            elif self.place_in_torch == "autocast":
                stack.enter_context(torch.autocast("cpu", enabled=False))
            yield

    def __str__(self) -> str:
        words = [show(one) for one in self.args] + [f"**{{{name!r}: {show(one)}}}" for name, one in self.kwargs.items()]
        return f"{self.place}({', '.join(words)}) [{self.way}, {self.place_in_torch or 'plain'}]"


def show(value: Any, depth: int = 0) -> str:
    """A short description that runs no code of the value."""
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        try:
            get = torch.Tensor
            name = "" if kind is torch.Tensor else kind.__name__ + " "
            shape = tuple(get.shape.__get__(value))  # type: ignore[attr-defined]
            grad = ", grad" if get.requires_grad.__get__(value) else ""  # type: ignore[attr-defined]
            return f"<{name}{str(get.dtype.__get__(value)).removeprefix('torch.')}{list(shape)}{grad}>"  # type: ignore[attr-defined]
        except Exception:
            return f"<{kind.__name__}>"
    if kind in (int, float, bool, complex, str, bytes, type(None), slice, torch.dtype, torch.Size):
        return repr(value)[:30]
    if issubclass(kind, (list, tuple)):
        if depth > 2:
            return "[..]"
        items = tuple.__iter__(value) if issubclass(kind, tuple) else list.__iter__(value)
        return f"{kind.__name__}[{', '.join(show(one, depth + 1) for one in items)}]"
    return f"<{kind.__name__}>"


# ---- what comes of a call --------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    error: str  # "" when the call returned
    shape: Any  # of the result: types, sizes, dtypes that are no floating ones
    values: list[Any]  # of the result's tensors, where they can be compared
    same: int  # which argument the result is, -1 for none
    targets: list[Any]  # the dtypes of the arguments afterwards
    counts: list[int]  # by how much the reference counts of the leaves went up


def describe(value: Any, values: list[Any], depth: int = 0) -> Any:
    kind = type(value)
    if isinstance(value, torch.Tensor):
        get: Any = torch.Tensor
        try:
            dtype = get.dtype.__get__(value)
            shape = tuple(value.shape) if not get.is_nested.__get__(value) else "nested"
            if (
                kind in (torch.Tensor, torch.nn.Parameter)
                and get.layout.__get__(value) == torch.strided
                and value.device.type == "cpu"
            ):
                values.append(value.detach().clone())
        except Exception:
            return kind.__name__
        return (
            kind.__name__,
            "floating" if dtype.is_floating_point else "complex" if dtype.is_complex else str(dtype),
            shape,
            get.requires_grad.__get__(value),
        )
    if isinstance(value, (tuple, list)) and depth < 3:
        return (kind.__name__, [describe(one, values, depth + 1) for one in value])
    return kind.__name__


def dtypes_of(args: list[Any]) -> list[Any]:
    found = []
    for one in args:
        try:
            is_tensor = issubclass(type(one), torch.Tensor)
            found.append(str(torch.Tensor.dtype.__get__(one)) if is_tensor else None)  # type: ignore[attr-defined]
        except Exception:
            found.append(None)
    return found


def counts(leaves: list[Any]) -> list[int]:
    return [sys.getrefcount(one) for one in leaves]


def run(case: Case) -> Outcome:
    """Call a case and look at everything that is left."""
    before = counts(case.leaves)
    error, shape, values, same = "", None, [], -1
    torch.manual_seed(1)
    try:
        with case.surroundings():
            result = case.call()
        same = next((k for k, one in enumerate(case.args) if one is result), -1)
        with hmp.disable_casts():
            shape = describe(result, values)
        del result
    except Exception as raised:
        error = f"{type(raised).__name__}: {str(raised)[:300]}"
        if isinstance(raised.__cause__ or raised.__context__, SystemError):
            error = f"SystemError behind {error}"
    # Were an exception still pending, one of these would say so.
    assert _core.reader() in ("layout", "dlpack", "attribute")
    assert int("7") == 7
    after = counts(case.leaves)
    if after != before:
        gc.collect()
        after = counts(case.leaves)
    return Outcome(
        error, shape, values, same, dtypes_of(case.args), [b - a for a, b in zip(before, after, strict=True)]
    )


def is_close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """As close as memory that is aligned otherwise allows; a cast to a lower precision is far from it."""
    if not theirs.is_floating_point() and not theirs.is_complex():
        return torch.equal(ours, theirs)
    size = theirs[theirs.isfinite()].abs().max().item() if theirs.isfinite().any() else 0.0
    return torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4 * size, equal_nan=True)


def difference(case: Case, plain: Outcome, converted: Outcome, all_float32: bool) -> str:
    """What is wrong with a converted call; "" for nothing."""
    if "SystemError" in converted.error and "SystemError" not in plain.error:
        return f"SystemError: {converted.error}"
    if "memory" in converted.error or "memory" in plain.error:
        return ""
    if converted.counts != plain.counts and bool(converted.error) == bool(plain.error):
        wrong = [
            (show(one), p, c) for one, p, c in zip(case.leaves, plain.counts, converted.counts, strict=True) if p != c
        ]
        return f"reference counts changed otherwise (argument, plain, converted): {wrong[:3]}"
    if plain.error:
        return ""
    if converted.error:
        return f"raises {converted.error}"
    # Where nothing is to be done the plain operation gives back its argument; a cast one is another tensor.
    if converted.same != plain.same and _operations.is_in_place(case.operation):
        return f"the result is argument {converted.same}, in plain torch it is {plain.same}"
    if converted.targets != plain.targets:
        return f"arguments have the dtypes {converted.targets}, in plain torch {plain.targets}"
    if case.float32 and plain.same < 0 and converted.shape != plain.shape:
        return f"gives {converted.shape}, in plain torch {plain.shape}"
    if case.float32 and all_float32:
        for ours, theirs in zip(converted.values, plain.values, strict=True):
            if ours.dtype != theirs.dtype or not is_close(ours, theirs):
                return "gives other numbers although everything is float32"
    return ""


# ---- configurations --------------------------------------------------------------------------------------------------


class Configurations:
    """What is converted to; one after the other, a batch of cases each."""

    def __init__(self, folder: Path) -> None:
        self._names = folder / "all.txt"
        self._none = folder / "none.txt"
        self._none.write_text("")
        hmp.convert("O2")
        o2 = installation.policy
        hmp.convert(preset="torch-cuda")
        cuda = installation.policy
        hmp.convert()
        default = installation.policy
        hmp.restore()
        assert o2 is not None
        assert cuda is not None
        assert default is not None
        found = {
            (one.operation, one.builtin.place): one.builtin.object
            for policy in (o2, cuda, default)
            for one in policy.covered
        }
        self.targets = [(*key, value) for key, value in sorted(found.items()) if key[0] not in UNSAFE]
        self._names.write_text(
            "\n".join(sorted({operation for operation, _, _ in self.targets} - {_operations.ASSIGNMENT}))
        )
        self.kinds: list[tuple[str, dict[str, Any]]] = [
            ("default", {}),
            ("fp16", {"dtype": torch.float16}),
            ("torch-cuda", {"preset": "torch-cuda"}),
            ("O2", {"opt_level": "O2"}),
            ("logged", {"log": folder / "log.jsonl"}),
            ("all-lower", {"bf16_file_path": self._names, "fp32_file_path": self._none}),
            ("all-lower-fp16", {"bf16_file_path": self._names, "fp32_file_path": self._none, "dtype": torch.float16}),
            ("all-fp32", {"bf16_file_path": self._none, "fp32_file_path": self._names}),
        ]

    def of(self, batch: int) -> tuple[str, dict[str, Any]]:
        return self.kinds[batch % len(self.kinds)]


# ---- worker ----------------------------------------------------------------------------------------------------------


def quiet() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def work(options: argparse.Namespace) -> None:
    """Run batches until the time is over; `options.state` holds the phase and number of the case under way."""
    faulthandler.enable()
    quiet()
    end = time.monotonic() + options.seconds
    state = os.open(options.state, os.O_RDWR | os.O_CREAT)
    skipped = set(json.loads(options.skip))
    with tempfile.TemporaryDirectory() as folder:
        configurations = Configurations(Path(folder))
        batch = options.batch
        # A fixed number of batches for a worker, so that what leaks in torch does not add up.
        for batch in range(options.batch, options.batch + 400):
            if time.monotonic() > end:
                break
            name, arguments = configurations.of(batch)
            numbers = [one for one in range(batch * BATCH, (batch + 1) * BATCH) if one not in skipped]

            def mark(phase: bytes, number: int, batch: int = batch) -> None:
                os.pwrite(state, struct.pack("<cqq", phase, number, batch), 0)
                faulthandler.dump_traceback_later(PATIENCE, exit=True)

            pairs = []
            for number in numbers:
                mark(b"m", number)
                with contextlib.suppress(Exception):  # some tensors cannot be made
                    pairs.append(tuple(Case(options.seed, number, configurations.targets) for _ in range(2)))
            plain = []
            for first, _ in pairs:
                mark(b"p", first.number)
                plain.append(run(first))
            hmp.convert(**arguments)
            for (_, second), expected in zip(pairs, plain, strict=True):
                mark(b"c", second.number)
                outcome = run(second)
                tell = {"case": second.number, "raised": bool(expected.error)}
                wrong = difference(second, expected, outcome, name == "all-fp32")
                if wrong:
                    tell.update(config=name, operation=second.operation, call=str(second), wrong=wrong)
                print(json.dumps(tell), flush=bool(wrong))
            hmp.restore()
        faulthandler.cancel_dump_traceback_later()
        os.pwrite(state, struct.pack("<cqq", b"d", 0, batch + 1), 0)


def one_case(options: argparse.Namespace) -> int:
    """Run one case in this process, plain and converted or only plain, and show it."""
    faulthandler.enable()
    quiet()
    with tempfile.TemporaryDirectory() as folder:
        configurations = Configurations(Path(folder))
        name, arguments = configurations.of(options.case // BATCH)
        first, second = (Case(options.seed, options.case, configurations.targets) for _ in range(2))
        print(f"{first}\nconfiguration: {name} {arguments}", flush=True)
        plain = run(first)
        print(f"plain: {plain}", flush=True)
        if options.only_plain:
            return 0
        hmp.convert(**arguments)
        converted = run(second)
        hmp.restore()
        print(f"converted: {converted}")
        wrong = difference(second, plain, converted, name == "all-fp32")
        print(wrong or "nothing is wrong")
        return 1 if wrong else 0


# ---- supervisor ------------------------------------------------------------------------------------------------------


def signature(found: dict[str, Any]) -> str:
    return f"{found['operation']}: " + re.sub(r"0x[0-9a-f]+|\d+", "N", found["wrong"])[:120]


def supervise(options: argparse.Namespace) -> int:
    begin = time.monotonic()
    end = begin + options.seconds
    statistics: collections.Counter[str] = collections.Counter()
    findings: dict[str, dict[str, Any]] = {}
    repeated: collections.Counter[str] = collections.Counter()
    skipped: list[int] = []
    batch = 0
    command = [sys.executable, __file__, "--seed", str(options.seed)]
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        while time.monotonic() < end - 5:
            errors = Path(folder) / "errors"
            arguments = ["--worker", "--state", str(state), "--batch", str(batch), "--skip", json.dumps(skipped)]
            with errors.open("w") as to:
                worker = subprocess.Popen(
                    [*command, *arguments, "--seconds", str(end - time.monotonic())],
                    stdout=subprocess.PIPE,
                    stderr=to,
                    text=True,
                )
                assert worker.stdout is not None
                for line in worker.stdout:
                    try:
                        told = json.loads(line)
                    except ValueError:
                        continue  # torch says things, too
                    statistics["executions"] += 1
                    statistics["raised in plain torch"] += told["raised"]
                    if "wrong" in told:
                        key = signature(told)
                        repeated[key] += 1
                        if findings.setdefault(key, told) is told:
                            print(
                                f"FINDING case {told['case']} [{told['config']}] {told['call']}\n    {told['wrong']}",
                                flush=True,
                            )
                status = worker.wait()
            phase, number, batch = struct.unpack("<cqq", state.read_bytes()[:17])
            if phase == b"d" and status == 0:
                continue
            skipped.append(number)
            said = errors.read_text(errors="replace")
            how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
            if "Timeout (" in said:
                how = "did not return"
            blame = "torch"
            if phase == b"c":
                alone = subprocess.run(
                    [*command, "--case", str(number), "--only-plain"], capture_output=True, check=False, timeout=120
                )
                blame = "torch" if alone.returncode != 0 else "us"
            statistics[f"crashes of {'plain torch' if blame == 'torch' else 'the converted call'}"] += 1
            print(f"case {number}: {how}, in phase {phase.decode()}: {blame}", flush=True)
            if blame == "us":
                findings[f"crash {number}"] = {"case": number, "wrong": how}
                print(said[-3000:], flush=True)
    print(f"\nfuzz_calls: {time.monotonic() - begin:.0f} s, seed {options.seed}, {dict(statistics)}")
    print(f"{len(findings)} findings, {sum(repeated.values())} cases")
    for key, found in findings.items():
        print(f"  case {found['case']} ({repeated[key]} times) {key}")
    return 1 if findings else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="run this case alone, in this process")
    parser.add_argument("--only-plain", action="store_true", help="with --case: only in plain torch")
    for name in ("--worker", "--state", "--batch", "--skip"):
        kind: dict[str, Any] = (
            {"action": "store_true"} if name == "--worker" else {"type": int if name == "--batch" else str}
        )
        parser.add_argument(name, help=argparse.SUPPRESS, **kind)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return 0
    return one_case(options) if options.case is not None else supervise(options)


if __name__ == "__main__":
    sys.exit(main())
