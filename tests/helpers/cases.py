"""The cases that test the rules: every operation that a shipped list names, in the ways in which programs call it."""

from __future__ import annotations

import contextlib
import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_map

from habana_mp import hmp, ops
from helpers.comparing import assert_same

_generator = torch.Generator().manual_seed(7)


def rand(*shape: int) -> torch.Tensor:
    """Returns numbers between 0.1 and 0.9, inside the domain of every operation."""
    return torch.rand(*shape, generator=_generator) * 0.8 + 0.1


@dataclass(frozen=True)
class Case:
    """One way of calling one operation. ``kept`` are the positions of the inputs that are not cast."""

    name: str
    form: str
    call: Callable[..., Any]
    inputs: tuple[Any, ...]
    kept: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}-{self.form}"

    def run(self, inputs: tuple[Any, ...] | None = None) -> Any:
        """Returns the result, made with the same random numbers each time."""
        torch.manual_seed(3)
        return self.call(*(self.inputs if inputs is None else inputs))

    def cast(self, dtype: torch.dtype, *, everything: bool = False) -> tuple[Any, ...]:
        """Returns the inputs, cast by hand."""
        return tuple(
            one if index in self.kept and not everything else cast(one, dtype) for index, one in enumerate(self.inputs)
        )


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Returns tensors, also in lists, and modules in another precision; other values unchanged."""
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).to(dtype)
    return tree_map(
        lambda one: one.to(dtype) if isinstance(one, torch.Tensor) and one.is_floating_point() else one, value
    )


def _positive(size: int) -> torch.Tensor:
    root = rand(size, size)
    return root @ root.T + torch.eye(size) * size


M, N, V, W = rand(4, 4), rand(4, 4), rand(4), rand(4)
B3, C3 = rand(2, 4, 4), rand(2, 4, 4)
I1, I2, I3 = rand(2, 4, 8), rand(2, 4, 8, 8), rand(2, 4, 6, 6, 6)
P = _positive(4)
INDEX = torch.tensor([0, 2, 1, 3])
LABELS = torch.tensor([0, 1, 2, 3])
SIGNS = torch.tensor([1.0, -1.0, 1.0, -1.0])

CASES: list[Case] = []


def case(name: str, inputs: tuple[Any, ...], kept: tuple[int, ...] = (), **forms: Callable[..., Any]) -> None:
    CASES.extend(Case(name, form, call, inputs, kept) for form, call in forms.items())


def unary(*names: str) -> None:
    for name in names:
        case(name, (M,), torch=getattr(torch, name), tensor=getattr(torch.Tensor, name))


def functional(inputs: tuple[Any, ...], *names: str) -> None:
    for name in names:
        case(name, inputs, functional=getattr(F, name))


def binary(*names: str) -> None:
    for name in names:
        case(name, (M, N), torch=getattr(torch, name), tensor=getattr(torch.Tensor, name))


# GEMM
case("mm", (M, N), torch=torch.mm, tensor=torch.Tensor.mm)
case("bmm", (B3, C3), torch=torch.bmm, tensor=torch.Tensor.bmm)
case("mv", (M, V), torch=torch.mv, tensor=torch.Tensor.mv)
case("dot", (V, W), torch=torch.dot, tensor=torch.Tensor.dot)
case(
    "matmul",
    (M, N),
    torch=torch.matmul,
    tensor=torch.Tensor.matmul,
    operator=operator.matmul,
    reflected=lambda a, b: a.__rmatmul__(b),
    linalg=torch.linalg.matmul,
)
case("__matmul__", (M, N), operator=operator.matmul, tensor=torch.Tensor.__matmul__)
case("addmm", (M, N, M), torch=torch.addmm, tensor=torch.Tensor.addmm)
case("addmv", (V, M, W), torch=torch.addmv, tensor=torch.Tensor.addmv)
case("addr", (M, V, W), torch=torch.addr, tensor=torch.Tensor.addr)
case("addbmm", (M, B3, C3), torch=torch.addbmm, tensor=torch.Tensor.addbmm)
case("baddbmm", (B3, C3, B3), torch=torch.baddbmm, tensor=torch.Tensor.baddbmm)
if torch._C._dispatch_has_computed_kernel_for_dispatch_key("aten::_grouped_mm", "CPU"):  # not in torch 2.8
    case(
        "_grouped_mm",
        (rand(4, 8), rand(2, 8, 8)),
        torch=lambda x, w: torch._grouped_mm(x, w, offs=torch.tensor([1, 4], dtype=torch.int32)),
    )
case("_addmm_activation", (V, M, N), torch=torch._addmm_activation, tensor=torch.Tensor._addmm_activation)
case("vdot", (V, W), torch=torch.vdot, tensor=torch.Tensor.vdot)
case("linear", (M, N, V), functional=F.linear)
case("bilinear", (M, N, rand(3, 4, 4), rand(3)), functional=F.bilinear, torch=torch.bilinear)
case("chain_matmul", (M, N, M), vf=lambda *x: torch._VF.chain_matmul(x), torch=torch.chain_matmul)
case("multi_dot", ([M, N, M],), linalg=torch.linalg.multi_dot)
case("linalg_multi_dot", ([M, N, M],), linalg=torch.linalg.multi_dot)
case("linalg_vecdot", (M, N), linalg=torch.linalg.vecdot)
case("einsum", (M, N), torch=lambda a, b: torch.einsum("ij,jk->ik", a, b))
case("tensordot", (M, N), torch=lambda a, b: torch.tensordot(a, b, 1))
case("inner", (M, N), torch=torch.inner, tensor=torch.Tensor.inner)
functional((B3, C3, B3), "scaled_dot_product_attention")

# convolutions
for _n, _input in ((1, I1), (2, I2), (3, I3)):
    _weight, _bias = rand(4, 4, *[3] * _n), rand(4)
    for _name in (f"conv{_n}d", f"conv_transpose{_n}d"):
        case(_name, (_input, _weight, _bias), torch=getattr(torch, _name), functional=getattr(F, _name))
case("conv_transpose2d.input", (I2, rand(4, 4, 3, 3)), torch=torch.conv_transpose2d)
case("conv_transpose3d.input", (I3, rand(4, 4, 3, 3, 3)), torch=torch.conv_transpose3d)
_CONVOLUTION = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
for _name in ("convolution", "_convolution", "_convolution.deprecated"):
    case(_name, (I2, rand(4, 4, 3, 3), rand(4)), functional=F.conv2d)
case("convolution", (I2, rand(4, 4, 3, 3), rand(4)), torch=lambda x, w, b: torch.convolution(x, w, b, *_CONVOLUTION))
case("conv_tbc", (rand(8, 2, 4), rand(3, 4, 3), rand(3)), torch=torch.conv_tbc)


# other sizes
def resized(name: str, *more: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: getattr(torch._C._nn, name)(x, [7] * (x.dim() - 2), *more, None)


for _n, _input in ((1, I1), (2, I2), (3, I3)):
    for _name in (f"upsample_nearest{_n}d", f"_upsample_nearest_exact{_n}d"):
        case(_name, (_input,), c=resized(_name))
_LINEAR = {"upsample_linear1d": I1, "upsample_bilinear2d": I2, "upsample_bicubic2d": I2, "upsample_trilinear3d": I3}
for _name, _input in _LINEAR.items():
    case(_name, (_input,), c=resized(_name, False))

# arithmetic
case(
    "add",
    (M, N),
    torch=torch.add,
    tensor=torch.Tensor.add,
    operator=operator.add,
    radd=lambda a, b: a.__radd__(b),
    scalar=lambda a, b: 2 + a,
)
case("sub", (M, N), torch=torch.sub, tensor=torch.Tensor.sub, operator=operator.sub, subtract=torch.subtract)
case("rsub", (M, N), torch=torch.rsub, operator=lambda a, b: 1 - a, tensor=lambda a, b: a.__rsub__(b))
case(
    "mul",
    (M, N),
    torch=torch.mul,
    tensor=torch.Tensor.mul,
    operator=operator.mul,
    multiply=torch.multiply,
    rmul=lambda a, b: a.__rmul__(b),
    scalar=lambda a, b: 2 * a,
)
case("div", (M, N), torch=torch.div, tensor=torch.Tensor.div, operator=operator.truediv, divide=torch.divide)
case("divide", (M, N), torch=torch.divide, tensor=torch.Tensor.divide)
case("true_divide", (M, N), torch=torch.true_divide, tensor=torch.Tensor.true_divide)
case("truediv", (M, N), operator=operator.truediv, tensor=torch.Tensor.__truediv__)
for _name in ("__rtruediv__", "__rdiv__"):
    case(_name, (M,), operator=lambda a: 3 / a)
for _name in ("pow", "__pow__", "pow.Scalar", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "__rpow__"):
    case(
        _name,
        (M, N),
        torch=torch.pow,
        tensor=torch.Tensor.pow,
        operator=operator.pow,
        scalar=lambda a, b: a**2,
        base=lambda a, b: 2**a,
    )
case("addcmul", (M, N, M), torch=torch.addcmul, tensor=torch.Tensor.addcmul)
case("addcdiv", (M, N, M), torch=torch.addcdiv, tensor=torch.Tensor.addcdiv)
binary("atan2", "dist")
unary("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log1p", "log2", "reciprocal", "relu", "rsqrt")
unary("sigmoid", "sinh", "tan", "mean", "prod", "sum", "trace")
case("log1p", (M,), special=torch.special.log1p)
case("expm1", (M,), special=torch.special.expm1)
case("erfinv", (M,), special=torch.special.erfinv)
case("sigmoid", (M,), special=torch.special.expit, functional=F.sigmoid)
case("cumsum", (M,), torch=lambda x: torch.cumsum(x, 0), tensor=lambda x: x.cumsum(dim=0))
case("cumprod", (M,), torch=lambda x: torch.cumprod(x, 0), tensor=lambda x: x.cumprod(dim=0))
case("logsumexp", (M,), torch=lambda x: torch.logsumexp(x, 0), special=lambda x: torch.special.logsumexp(x, 0))
case("norm", (M,), torch=torch.norm, tensor=lambda x: x.norm(), p1=lambda x: torch.norm(x, 1, dim=0))
case("frobenius_norm", (M,), torch=lambda x: torch.frobenius_norm(x, (0, 1)))
case("frobenius_norm.dim", (M,), torch=lambda x: torch.frobenius_norm(x, (0, 1)))
case("renorm", (M,), torch=lambda x: torch.renorm(x, 2, 0, 0.5), tensor=lambda x: x.renorm(2, 0, 0.5))
case("cross", (rand(4, 3), rand(4, 3)), torch=torch.cross, tensor=torch.Tensor.cross, linalg=torch.linalg.cross)
case("cosine_similarity", (M, N), torch=torch.cosine_similarity, functional=F.cosine_similarity)

# activations
functional((M,), "relu", "softplus")
case("relu6", (M,), functional=F.relu6, c=torch._C._nn.relu6)
case("leaky_relu", (M,), functional=F.leaky_relu, c=torch._C._nn.leaky_relu)
case("gelu", (M,), functional=F.gelu, tanh=lambda x: F.gelu(x, approximate="tanh"))
case("silu", (M,), functional=F.silu, c=torch._C._nn.silu)
case("prelu", (I2, rand(4)), torch=torch.prelu, functional=F.prelu, tensor=torch.Tensor.prelu)
for _name in ("softmax", "log_softmax"):
    _owners = {"torch": torch, "functional": F, "tensor": torch.Tensor, "special": torch.special}
    case(_name, (M, -1), **{form: getattr(owner, _name) for form, owner in _owners.items()})
case("softmin", (M,), functional=lambda x: F.softmin(x, -1))
case("normalize", (M,), functional=F.normalize, keyword=lambda x: F.normalize(input=x, dim=0))

# dropout
case("dropout", (M,), torch=lambda x: torch.dropout(x, 0.5, True), functional=lambda x: F.dropout(x, 0.5))
for _n, _input in ((1, I1), (2, I2), (3, I3)):
    functional((_input, 0.5), f"dropout{_n}d")
case("feature_dropout", (I2,), torch=lambda x: torch.feature_dropout(x, 0.5, True))

# norms: a CPU's kernels need float32 weights if the input is in lower precision
case("rms_norm", (M, V), functional=lambda x, w: F.rms_norm(x, (4,), w), torch=lambda x, w: torch.rms_norm(x, (4,), w))
case(
    "layer_norm",
    (M, V, W),
    (1, 2),
    functional=lambda x, w, b: F.layer_norm(x, (4,), w, b),
    torch=lambda x, w, b: torch.layer_norm(x, (4,), w, b),
    keyword=lambda x, w, b: torch.layer_norm(input=x, normalized_shape=(4,), bias=b, weight=w),
    bare=lambda x, w, b: F.layer_norm(x, (4,)),
)
case(
    "group_norm",
    (I2, V, W),
    (1, 2),
    functional=lambda x, w, b: F.group_norm(x, 2, w, b),
    torch=lambda x, w, b: torch.group_norm(x, 2, w, b),
    bare=lambda x, w, b: F.group_norm(x, 2),
)
case(
    "batch_norm",
    (I2, V, W, rand(4), rand(4)),
    (1, 2, 3, 4),
    functional=lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b),
    torch=lambda x, w, b, m, v: torch.batch_norm(x, w, b, m, v, False, 0.1, 1e-5, False),
)
case(
    "instance_norm",
    (I2, V, W),
    (1, 2),
    functional=lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
    bare=lambda x, w, b: F.instance_norm(x),
)

# embeddings
case("embedding", (LABELS, M), functional=F.embedding, torch=lambda i, w: torch.embedding(w, i))
case("embedding_bag", (LABELS, M), functional=lambda i, w: F.embedding_bag(i, w, torch.tensor([0, 2])))

# losses
functional((M, N), "binary_cross_entropy", "huber_loss", "l1_loss", "poisson_nll_loss", "smooth_l1_loss")
functional((M, N, SIGNS), "cosine_embedding_loss")
functional((M, LABELS), "cross_entropy", "multi_margin_loss")
functional((M, SIGNS), "hinge_embedding_loss")
functional((V, W, SIGNS), "margin_ranking_loss")
functional((V, SIGNS), "soft_margin_loss")
functional((M, N, M * 0.5), "triplet_margin_loss")
case(
    "binary_cross_entropy_with_logits",
    (M, N),
    functional=F.binary_cross_entropy_with_logits,
    torch=lambda x, y: torch.binary_cross_entropy_with_logits(x, y).mean(),
)
case("cross_entropy_loss", (M, LABELS), functional=F.cross_entropy, c=torch._C._nn.cross_entropy_loss)
case("kl_div", (M, N), functional=lambda x, y: F.kl_div(x, y, reduction="sum"), torch=torch.kl_div)
case("mse_loss", (M, N), functional=F.mse_loss, c=torch._C._nn.mse_loss)
for _name in ("multilabel_margin_loss", "multilabel_margin_loss_forward"):
    case(_name, (M, torch.tensor([[1, 2, -1, 0]] * 4)), functional=F.multilabel_margin_loss)
case("nll_loss", (M, LABELS), functional=F.nll_loss, c=torch._C._nn.nll_loss)
case("nll_loss2d", (I2, torch.zeros(2, 8, 8, dtype=torch.long)), c=torch._C._nn.nll_loss2d)
case("nll_loss_nd", (M, LABELS), functional=F.nll_loss, c=torch._C._nn.nll_loss_nd)
case(
    "ctc_loss",
    (rand(6, 2, 5).log(), torch.tensor([[1, 2], [2, 3]]), torch.tensor([6, 6]), torch.tensor([2, 2])),
    functional=F.ctc_loss,
    torch=torch.ctc_loss,
)

# pooling, padding, sampling
functional((I2, 2), "avg_pool2d", "max_pool2d")
functional((I3, 2), "avg_pool3d", "adaptive_avg_pool3d", "adaptive_max_pool3d", "max_pool3d")
case("max_pool2d", (I2,), indices=lambda x: F.max_pool2d(x, 2, return_indices=True))
case("max_pool2d_with_indices", (I2,), functional=lambda x: F.max_pool2d(x, 2, return_indices=True))
_POOLED2, _WHERE2 = F.max_pool2d(I2, 2, return_indices=True)
_POOLED3, _WHERE3 = F.max_pool3d(I3, 2, return_indices=True)
case("max_unpool2d", (_POOLED2, _WHERE2), functional=lambda x, i: F.max_unpool2d(x, i, 2))
case("max_unpool3d", (_POOLED3, _WHERE3), functional=lambda x, i: F.max_unpool3d(x, i, 2))
_SAMPLES2, _SAMPLES3 = rand(2, 4, 2), rand(2, 4, 3)
case("fractional_max_pool2d", (I2, _SAMPLES2), c=lambda x, s: torch._C._nn.fractional_max_pool2d(x, (2, 2), (4, 4), s))
case(
    "fractional_max_pool3d",
    (I3, _SAMPLES3),
    c=lambda x, s: torch._C._nn.fractional_max_pool3d(x, (2,) * 3, (3,) * 3, s),
)
case("reflection_pad1d", (I1,), c=lambda x: torch._C._nn.reflection_pad1d(x, (1, 1)))
case("reflection_pad2d", (I2,), c=lambda x: torch._C._nn.reflection_pad2d(x, (1, 1, 1, 1)))
case("replication_pad1d", (I1,), c=lambda x: torch._C._nn.replication_pad1d(x, (1, 1)))
case("replication_pad2d", (I2,), c=lambda x: torch._C._nn.replication_pad2d(x, (1, 1, 1, 1)))
case("replication_pad3d", (I3,), c=lambda x: torch._C._nn.replication_pad3d(x, (1, 1, 1, 1, 1, 1)))
_GRID2, _GRID3 = rand(2, 3, 3, 2), rand(2, 3, 3, 3, 3)
for _name in ("grid_sample", "grid_sampler"):
    case(_name, (I2, _GRID2), functional=lambda x, g: F.grid_sample(x, g, align_corners=False))
    case(_name, (I2, _GRID2), torch=lambda x, g: torch.grid_sampler(x, g, 0, 0, False))
case("grid_sampler_2d", (I2, _GRID2), torch=lambda x, g: torch.grid_sampler_2d(x, g, 0, 0, False))
case("grid_sampler_3d", (I3, _GRID3), torch=lambda x, g: torch.grid_sampler_3d(x, g, 0, 0, False))
case(
    "_grid_sampler_2d_cpu_fallback",
    (I2, _GRID2),
    torch=lambda x, g: torch._grid_sampler_2d_cpu_fallback(x, g, 0, 0, False),
)

# recurrent layers and cells
case("gru", (nn.GRU(4, 3), M), module=lambda m, x: m(x))
case("rnn_tanh", (nn.RNN(4, 3), M), module=lambda m, x: m(x))
case("rnn_relu", (nn.RNN(4, 3, nonlinearity="relu"), M), module=lambda m, x: m(x))
case("LSTMCell", (nn.LSTMCell(4, 3), M), module=lambda m, x: m(x))
case("GRUCell", (nn.GRUCell(4, 3), M), module=lambda m, x: m(x))
case("gru_cell", (nn.GRUCell(4, 3), M), module=lambda m, x: m(x))
case("_thnn_fused_gru_cell", (nn.GRUCell(4, 3), M), module=lambda m, x: m(x))
case("RNNCell", (nn.RNNCell(4, 3), M), module=lambda m, x: m(x))

# joining, looking up, sorting, views
case("cat", ([M, N],), torch=torch.cat, concat=torch.concat, keyword=lambda x: torch.cat(tensors=x, dim=1))
case("stack", ([M, N],), torch=torch.stack, tuple=lambda x: torch.stack(tuple(x)))
case(
    "index_add",
    (M, N),
    torch=lambda x, y: torch.index_add(x, 0, INDEX, y),
    tensor=lambda x, y: x.index_add(0, INDEX, y),
)
case("index_copy", (M, N), torch=lambda x, y: torch.index_copy(x, 0, INDEX, y))
case("index_fill", (M,), torch=lambda x: torch.index_fill(x, 0, INDEX[:2], 2.0))
case("index_put", (M, N), torch=lambda x, y: torch.index_put(x, (INDEX,), y))
case("scatter_add", (M, N), torch=lambda x, y: torch.scatter_add(x, 0, INDEX[None].expand(4, 4), y))
case("gather", (M,), torch=lambda x: torch.gather(x, 0, INDEX[None]), tensor=lambda x: x.gather(0, INDEX[None]))
case("sort", (M,), torch=torch.sort, tensor=torch.Tensor.sort)
case("topk", (M,), torch=lambda x: torch.topk(x, 2), tensor=lambda x: x.topk(2))

# operations that return a view are never cast, whatever a list says
VIEWS_FROM = len(CASES)
unary("t")
case("expand", (V,), tensor=lambda x: x.expand(1, 4))
case("squeeze", (M[None],), torch=torch.squeeze, tensor=torch.Tensor.squeeze)
case("unsqueeze", (M,), torch=lambda x: torch.unsqueeze(x, 0), tensor=lambda x: x.unsqueeze(0))
case("view", (M,), tensor=lambda x: x.view(16))
case("transpose", (M,), torch=lambda x: torch.transpose(x, 0, 1), tensor=lambda x: x.transpose(0, 1))
case("permute", (M,), torch=lambda x: torch.permute(x, (1, 0)))
case("reshape", (M,), torch=lambda x: torch.reshape(x, (16,)), tensor=lambda x: x.reshape(2, 8))
case("contiguous", (M,), tensor=torch.Tensor.contiguous)
case("chunk", (M,), torch=lambda x: torch.chunk(x, 2), tensor=lambda x: x.chunk(2, 1))
case("unbind", (M,), torch=torch.unbind)
case("narrow", (M,), torch=lambda x: torch.narrow(x, 0, 0, 4))
case("unfold", (M,), tensor=lambda x: x.unfold(0, 2, 2))
case("atleast_3d", (M,), torch=torch.atleast_3d)
case("broadcast_tensors", (M,), torch=torch.broadcast_tensors)
case("unsafe_chunk", (M,), torch=lambda x: torch.unsafe_chunk(x, 2))
case("unsafe_split", (M,), tensor=lambda x: x.unsafe_split(2))
case("unsafe_split_with_sizes", (M,), torch=lambda x: torch.unsafe_split_with_sizes(x, [1, 3]))
case("as_subclass", (M,), tensor=lambda x: x.as_subclass(torch.Tensor))
case("asarray", (M,), torch=torch.asarray)
case("cartesian_prod", (V,), torch=torch.cartesian_prod)
case("conj_physical", (M,), torch=torch.conj_physical)
case("einsum", (M,), torch=lambda x: torch.einsum("ij->ji", x))
case("flatten_dense_tensors", (V,), c=lambda x: torch._C._nn.flatten_dense_tensors([x]))
case("sum_to_size", (M,), tensor=lambda x: x.sum_to_size(4, 4))
case("to_dense", (M,), tensor=torch.Tensor.to_dense)
case("unflatten_dense_tensors", (V,), c=lambda x: torch._C._nn.unflatten_dense_tensors(x, [x[1:], x[:1]]))
VIEWS = CASES[VIEWS_FROM:]
del CASES[VIEWS_FROM:]

# no kernel for the lower precisions: these run in float32 whatever a list says
NO_KERNEL_FROM = len(CASES)
case("_upsample_bilinear2d_aa", (I2,), c=resized("_upsample_bilinear2d_aa", False))
case("_upsample_bicubic2d_aa", (I2,), c=resized("_upsample_bicubic2d_aa", False))
case("cdist", (M, N), torch=torch.cdist)
case("pdist", (M,), torch=torch.pdist, functional=F.pdist)
case("complex", (M, N), torch=torch.complex)
case("polar", (M, N), torch=torch.polar)
case("view_as_complex", (rand(4, 2),), torch=torch.view_as_complex)
case("stft", (rand(64),), torch=lambda x: torch.stft(x, 16, return_complex=True, window=None, center=False))
for _name in ("fft", "fft2", "fftn", "hfft", "ifft", "ifft2", "ifftn", "ihfft", "irfft", "irfft2", "irfftn"):
    case(f"fft_{_name}", (M,), fft=getattr(torch.fft, _name))
for _name in ("rfft", "rfft2", "rfftn"):
    case(f"fft_{_name}", (M,), fft=getattr(torch.fft, _name))
if hasattr(torch._C._VariableFunctions, "cholesky"):  # torch 2.14 has neither
    case("cholesky", (P,), torch=torch._C._VariableFunctions.cholesky, tensor=torch.Tensor.cholesky)
    case("qr", (P,), torch=torch._C._VariableFunctions.qr)
case("cholesky_inverse", (P,), torch=torch.cholesky_inverse)
case("cholesky_solve", (M, P), torch=torch.cholesky_solve)
case("geqrf", (M,), torch=torch.geqrf)
case("inverse", (P,), torch=torch.inverse, tensor=torch.Tensor.inverse, linalg=torch.linalg.inv)
case("lu_solve", (M, P, torch.tensor([1, 2, 3, 4], dtype=torch.int32)), torch=torch.lu_solve)
case("_lu_with_info", (P,), torch=torch._C._VariableFunctions._lu_with_info)
case("orgqr", (M, V), torch=torch.orgqr)
case("ormqr", (M, V, N), torch=torch.ormqr)
case("pinverse", (P,), torch=torch.pinverse)
case("quantile", (M,), torch=lambda x: torch.quantile(x, 0.5))
case("nanquantile", (M,), torch=lambda x: torch.nanquantile(x, 0.5))
case("nuclear_norm", (P,), torch=torch.nuclear_norm)
case("nuclear_norm.dim", (P,), torch=lambda x: torch.nuclear_norm(x, (0, 1)))
case("svd", (P,), torch=torch.svd)
case("triangular_solve", (M, P), torch=torch.triangular_solve)
for _name in ("cholesky", "cholesky_ex", "cond", "eig", "eigh", "eigvals", "eigvalsh", "inv", "inv_ex", "matrix_rank"):
    case(f"linalg_{_name}", (P,), linalg=getattr(torch.linalg, _name))
for _name in ("matrix_sqrth", "polar"):
    if hasattr(torch.linalg, _name):  # since torch 2.14
        case(f"linalg_{_name}", (P,), linalg=getattr(torch.linalg, _name))
for _name in ("qr", "svd", "svdvals"):
    case(f"linalg_{_name}", (P,), linalg=getattr(torch.linalg, _name))
case("linalg_householder_product", (M, V), linalg=torch.linalg.householder_product)
case("linalg_lstsq", (P, M), linalg=lambda a, b: torch.linalg.lstsq(a, b).solution)
case("linalg_solve", (P, M), linalg=torch.linalg.solve)
case("linalg_tensorinv", (P.reshape(2, 2, 4),), linalg=torch.linalg.tensorinv)
case("linalg_tensorsolve", (P.reshape(2, 2, 2, 2), rand(2, 2)), linalg=torch.linalg.tensorsolve)

NO_KERNEL = {one.name for one in CASES[NO_KERNEL_FROM:]} | {
    "_grid_sampler_2d_cpu_fallback",
    *("grid_sample", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d"),
    *("adaptive_avg_pool3d", "avg_pool3d"),
    "binary_cross_entropy_with_logits",
    "ctc_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_margin_loss_forward",
}

#: Operations that sum in float32 and round the result (rule 8).
ADDED_UP = {"embedding_bag", "index_add"}

#: Operations without a kernel for the lower precisions in some releases, where they run in float32 too (rule 8).
LATE_KERNELS = {"max_unpool2d", "max_unpool3d", "mse_loss", "trace"}

#: Names in shipped lists that have no case, and the reasons.
WITHOUT_CASE = {
    "embedding_bag_sum_fwd": "means nothing in this torch",
    "embedding_bag_sum_bwd": "means nothing in this torch",
    "mkldnn_rnn_layer": "the LSTM of a build with oneDNN: see test_modules.py",
    "_native_multi_head_attention": "takes eighteen arguments that only a module in eval mode has",
    "fake_quantize_per_tensor_affine": "float32 only by design of quantization",
    "iadd": "in place: see the tests of rule 3",
    "nonzero": "its result is integer",
}

#: Operations whose results differ from call to call in plain torch.
CLOSE = {"linalg_lstsq"}


def differing(given: list[tuple[Case, tuple[Any, ...], Any]]) -> dict[str, str]:
    """Returns the cases whose result is not the expected one, with the start of the error. A product in lower precision
    may also be the float32 sum of the operands in that precision, rounded once."""
    failed = {}
    for case, inputs, expected in given:
        try:
            result = case.run(inputs)
            with contextlib.suppress(AssertionError):
                assert_same(result, expected, close=case.name in CLOSE)
                continue
            assert is_rounded_once(case, inputs, result)
        except (AssertionError, RuntimeError) as error:
            failed[str(case)] = str(error).splitlines()[0][:100]
    return failed


def is_product(case: Case) -> bool:
    names = ops.resolve(case.name)
    return names is not None and any(ops.row_of(one).product_form for one in names.exact)


def is_rounded_once(case: Case, inputs: tuple[Any, ...], result: Any) -> bool:
    if not is_product(case) or not isinstance(result, torch.Tensor) or result.dtype is torch.float32:
        return False
    with hmp.disable_casts():
        operands = cast(inputs, result.dtype)
        return torch.equal(cast(case.run(cast(operands, torch.float32)), result.dtype), result)
