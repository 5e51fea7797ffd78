"""Arguments for calls that are fuzzed: tensors of every kind, numbers, lists, and objects that lie or raise."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map


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
