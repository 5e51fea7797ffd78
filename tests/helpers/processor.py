"""Finds out abilities of this processor, and of plain torch on it, by trying, never by the processor's name.

The core's own trials of products are not used here, since the tests check what these trials decide.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F

from habana_mp import _core, hmp
from habana_mp.patches.torch.weight_cache import packing_operators
from helpers.comparing import tensors

#: Takes rows, a weight and a bias, which may be None if it is not added.
Call = Callable[[torch.Tensor, torch.Tensor, Any], torch.Tensor]

#: What computes products with weights: torch's CPU library from packed weights (only linear layers), the package's
#: kernels if they give torch's bits, or these kernels even if they give other bits.
Form = Literal["library", "own", "own in any order"]

_BLOCKS = (256, 512, 1024, 2048)
_TILE = 32
#: Torch may sum a product of at most this many numbers in its own loop.
_SMALL_PRODUCT = 1 << 14
#: The package's kernels compute products with weights of at least so many elements, and at most so many rows: with AMX
#: fewer, unless the weight or the product is small.
_FEWEST_ELEMENTS = 1 << 6
_MOST_ROWS = 512
_MOST_ROWS_WITH_TILES = 32
_SMALL_WEIGHT = 1 << 16

_SEEDS = 4

#: A weight with fewer elements is not packed by torch's library.
_FEWEST_OF_LIBRARY = 1 << 14

_assumed: list[Form] = []

_found_out: dict[Any, bool] = {}


def assume_products(form: Form) -> None:
    """Computes products with weights in this way, without measuring the speed."""
    _assumed[:] = [form]
    if "products" in _core.accelerators:
        _core.weights_assume_products("measured" if form == "own" else form)


def measure_products() -> None:
    _assumed.clear()
    if "products" in _core.accelerators:
        _core.weights_assume_products("measured")


def own_kernels_serve(call: Call, like: torch.Tensor, shape: tuple[int, int], *, turned: bool, bias: bool) -> bool:
    """True if the package's kernels must compute such calls here, as assumed. The weight has shape (outer, inner)."""
    outer, inner = shape
    if _assumed == ["library"] or not _core.kernels_can_multiply() or not _is_worth_it(like, outer, inner):
        return False
    return _assumed == ["own in any order"] or kernels_sum_as(call, like, outer, turned=turned, bias=bias)


def _is_worth_it(like: torch.Tensor, outer: int, inner: int) -> bool:
    rows, elements = like.numel() // inner, outer * inner
    is_small = elements <= _SMALL_WEIGHT or rows * elements <= _SMALL_PRODUCT
    most = _MOST_ROWS_WITH_TILES if _core.kernels_path() == "amx" and not is_small else _MOST_ROWS
    return inner % 2 == 0 and elements >= _FEWEST_ELEMENTS and rows <= most


def library_serves(layer: torch.nn.Linear, like: torch.Tensor) -> bool:
    """True if torch's CPU library must compute such calls of the layer from a packed weight here, if it is assumed."""
    is_large = layer.weight.numel() >= _FEWEST_OF_LIBRARY
    return is_large and library_sums_as_linear(like, layer.out_features, bias=layer.bias is not None)


def _bits(values: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint16]]:
    return values.contiguous().view(torch.int16).numpy().view(np.uint16)


def kernels_product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, order: str = "pairs", block: int | None = None
) -> torch.Tensor:
    """Returns the product of bfloat16 rows, a weight [outer][inner] and a bias, computed by the package's kernels. The
    default is to sum in pairs, in one block."""
    rows = x.reshape(-1, x.shape[-1])
    result = np.empty((rows.shape[0], weight.shape[0]), np.uint16)
    _core.kernels_multiply(
        _bits(rows),
        _bits(weight),
        None if bias is None else _bits(bias),
        result,
        order,
        weight.shape[1] if block is None else block,
        1,
    )
    made = torch.from_numpy(result.view(np.int16)).view(torch.bfloat16)
    return made.view(*x.shape[:-1], weight.shape[0])


def _noise(generator: torch.Generator, *shape: int) -> torch.Tensor:
    exponents = torch.randint(-8, 0, shape, generator=generator)
    return (torch.empty(shape).normal_(generator=generator) * 2.0**exponents).bfloat16()


def sums_of_rounding(x: torch.Tensor, outer: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns values for rows with the layout of ``x``, a weight and a bias. The second half of each sum cancels the
    first half, in another order: only rounding errors remain, and these show the order. The bias is equally small."""
    generator = torch.Generator().manual_seed(seed)
    inner = x.shape[-1]
    half = inner // 2
    order = torch.randperm(half, generator=generator)
    rows = torch.zeros(*x.shape[:-1], inner, dtype=torch.bfloat16)
    weight = torch.zeros(outer, inner, dtype=torch.bfloat16)
    rows[..., :half] = _noise(generator, *x.shape[:-1], half)
    weight[:, :half] = _noise(generator, outer, half)
    rows[..., half : 2 * half] = -rows[..., order]
    weight[:, half : 2 * half] = weight[:, order]
    bias = (_noise(generator, outer).float() * 2.0**-20).bfloat16()
    return torch.empty_like(x, dtype=torch.bfloat16).copy_(rows), weight, bias


def _denormals(x: torch.Tensor) -> torch.Tensor:
    """Makes denormals of the values, without signs, so that they do not cancel."""
    return (x.view(torch.int16) & 0x7F).view(torch.bfloat16)


def _all_alike(call: Call, ways: list[Call], like: torch.Tensor, outer: int, *, turned: bool, bias: bool) -> list[Call]:
    """Returns the ways that give the bits of ``call`` for values that distinguish the orders of sums."""
    with hmp.disable_casts(), torch.no_grad():
        for seed in range(_SEEDS):
            x, weight, small = sums_of_rounding(like, outer, seed)
            given = weight.t().contiguous() if turned else weight
            # A layer's weight requires a gradient. Without one, torch makes some products in another way.
            given.requires_grad_()
            for rows, added in ((x, small), (_denormals(x), torch.zeros_like(small))):
                b = added if bias else None
                expected = _bits(call(rows, given, b).detach())
                ways = [way for way in ways if np.array_equal(_bits(way(rows, weight, b)), expected)]
    return ways


def kernels_sum_as(call: Call, like: torch.Tensor, outer: int, *, turned: bool = False, bias: bool = True) -> bool:
    """True if the package's kernels run here and give the bits of torch's function for such rows and weights.

    ``call`` takes a weight [inner][outer] if ``turned`` is true."""
    if not _core.kernels_can_multiply():
        return False
    ways: list[Call] = [
        functools.partial(kernels_product, order=order, block=block) for order, block in _sums(like, outer)
    ]
    return _found_out_once(
        "kernels",
        call,
        like,
        outer,
        turned,
        bias,
        lambda: bool(_all_alike(call, ways, like, outer, turned=turned, bias=bias)),
    )


def _sums(like: torch.Tensor, outer: int) -> list[tuple[str, int]]:
    """Returns the orders and blocks in which the package's kernels may sum such rows with ``outer`` outputs here."""
    inner = like.shape[-1]
    rows = like.numel() // inner
    sums = [("pairs", inner), *(("pairs", block) for block in _BLOCKS if block < inner)]
    if rows == 1:
        sums.append(("lanes", inner))
    if rows * inner * outer <= _SMALL_PRODUCT:
        sums.append(("dots", inner))
    if _core.kernels_path() == "amx" and "tiles" in _core.kernels_orders():
        most_parts = inner // _BLOCKS[0] + 1
        blocks = {math.ceil(inner / (parts * _TILE)) * _TILE for parts in range(2, most_parts + 1)}
        # A block of one tile is added like the tile itself.
        sums += [("tiles", inner), *(("tiles", block) for block in blocks if block < inner - _TILE)]
    return sums


def library_sums_as_linear(like: torch.Tensor, outer: int, *, bias: bool = True) -> bool:
    """True if torch's CPU library packs weights here, and gives the bits of the plain layer from them."""
    operators = packing_operators()
    if not operators:
        return False
    pack, run = operators["linear"]

    def from_packed(x: torch.Tensor, weight: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
        return run(x, pack(weight, None), b, "none", [], "")  # type: ignore[no-any-return]  # a tensor

    return _found_out_once(
        "library",
        F.linear,
        like,
        outer,
        False,
        bias,
        lambda: bool(_all_alike(F.linear, [from_packed], like, outer, turned=False, bias=bias)),
    )


def _found_out_once(
    who: str, call: Call, like: torch.Tensor, outer: int, turned: bool, bias: bool, find: Callable[[], bool]
) -> bool:
    # A torch function may be wrapped anew at each access, so the key has its name.
    name = call.__code__ if call.__name__ == "<lambda>" else call.__name__
    key = (who, name, like.shape, like.stride(), outer, turned, bias, torch.get_num_threads())
    if key not in _found_out:
        _found_out[key] = find()
    return _found_out[key]


def library_packs_convolutions() -> bool:
    return bool(packing_operators())


def library_sums_as_convolution(layer: torch.nn.Conv2d, like: torch.Tensor) -> bool:
    """The same for a convolution of images in channels-first order. Its packed form needs channels-last order."""
    operators = packing_operators()
    if not operators:
        return False
    pack, run = operators["conv2d"]
    stride, padding, dilation, groups = layer.stride, layer.padding, layer.dilation, layer.groups
    with hmp.disable_casts(), torch.no_grad():
        for seed in range(_SEEDS):
            generator = torch.Generator().manual_seed(seed)
            x, weight = _noise(generator, *like.shape), _noise(generator, *layer.weight.shape)
            bias = None if layer.bias is None else _noise(generator, *layer.bias.shape)
            packed = pack(weight, padding, stride, dilation, groups, list(x.shape))
            last = x.contiguous(memory_format=torch.channels_last)
            made = run(last, packed, bias, padding, stride, dilation, groups, "none", [], "")
            if not torch.equal(made, F.conv2d(x, weight, bias, stride, padding, dilation, groups)):
                return False
    return True


def aot_eager_gives_the_bits_of_eager(function: Callable[..., Any], *arguments: Any) -> bool:
    """Compares the two ways in plain torch."""
    with hmp.disable_casts():
        expected = tensors(function(*arguments))
        compiled = tensors(torch.compile(function, backend="aot_eager", fullgraph=True)(*arguments))
    return all(map(torch.equal, compiled, expected))


def can_run(call: Callable[[], object]) -> bool:
    """True if plain torch has all kernels for the call here."""
    try:
        call()
    except RuntimeError as error:
        if "primitive descriptor" not in str(error):
            raise
        return False
    return True


def has_lstm(dtype: torch.dtype) -> bool:
    """True if torch's CPU library has an LSTM in that precision for this processor."""
    module, x = torch.nn.LSTM(8, 6), torch.zeros(4, 4, 8)

    def call() -> None:
        with torch.autocast("cpu", dtype):
            module(x)

    return can_run(call)
