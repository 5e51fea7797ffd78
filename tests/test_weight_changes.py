"""However a weight changes, the next call sees it: results and gradients are those of casting by hand."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import BACKENDS, assert_same, needs_fully_shard, packed, tensors
from processor import kernels_product
from torch import distributed as dist
from torch import nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations, parametrize
from weight_changes import (
    AT_ONCE,
    COLUMN,
    MAIN,
    POINTERS,
    PREPARED,
    ROW,
    SIZE,
    WAYS,
    Change,
    layer,
    noise,
    steps,
    write,
)

from habana_mp import _core, _weights, hmp

BF16, FP16 = torch.bfloat16, torch.float16
MODES: dict[str, Callable[[], Any]] = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}
X = torch.randn(4, SIZE, generator=torch.Generator().manual_seed(1))

Use = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings(
        "ignore:torch.autocast is enabled", "ignore:TypedStorage is deprecated", "ignore:`torch.jit.script"
    ),
]
every_mode = pytest.mark.parametrize("mode", MODES)
main_ways = pytest.mark.parametrize("way", MAIN)


@pytest.fixture(autouse=True)
def alike() -> None:
    torch.manual_seed(0)


def backward(result: torch.Tensor) -> None:
    result.backward(torch.linspace(-1, 1, result.numel()).reshape(result.shape).to(result.dtype))


def used(of: nn.Linear, mode: str, use: Use | None = None, x: torch.Tensor = X) -> torch.Tensor:
    """What the layer gives, after its backward."""
    of.zero_grad()
    with MODES[mode]():
        result = of(x) if use is None else use(x, of.weight, of.bias)
    if result.requires_grad:
        backward(result)
    return result.detach()


def as_by_hand(
    of: nn.Linear,
    mode: str,
    dtype: torch.dtype = BF16,
    use: Use | None = None,
    hand: Use | None = None,
    kernels: Use | None = None,
) -> torch.Tensor:
    """What the layer gives, after seeing that it, and its gradients, are those of casting its weight now.

    Or that it is what our ``kernels`` make of that cast, which may sum in another order than torch."""
    x, mine = X.clone().requires_grad_(), X.clone().requires_grad_()
    result = used(of, mode, use, x)
    weight, bias = (one.detach().clone().requires_grad_(one.requires_grad) for one in (of.weight, of.bias))
    with MODES[mode](), hmp.disable_casts():
        wanted = (hand or use or F.linear)(mine.to(dtype), weight.to(dtype), bias.to(dtype))
        ours = None if kernels is None else kernels(*(one.detach().to(dtype) for one in (mine, weight, bias)))
    if ours is None or not torch.equal(result, ours):
        assert_same(result, wanted.detach())
    if mode == "grad":
        backward(wanted)
        for one, other in ((x, mine), (of.weight, weight), (of.bias, bias)):
            if other.grad is not None and one.is_leaf:
                assert_same(one.grad, other.grad)
        assert mine.grad is not None
    return result


def assert_seen(
    of: nn.Linear,
    change: Change,
    mode: str,
    n: int = 1,
    use: Use | None = None,
    then: str = "",
    *,
    in_part: bool = False,
    times: int = 3,
    **options: Any,
) -> None:
    """Used a few times, changed (perhaps in another part than the one that is used), and used again."""
    for _ in range(times):
        before = used(of, mode, use)
    change(n)
    now = as_by_hand(of, then or mode, use=use, **options)
    assert in_part or not torch.equal(now, before)


def assert_seen_in_all_modes(way: str, make: Callable[[], nn.Linear] = layer, **options: Any) -> None:
    for mode in MODES:
        of = make()
        change = WAYS[way](of)
        for n in (2, 1) if way in PREPARED else (1, 2):
            assert_seen(of, change, mode, n, **options)


@pytest.mark.parametrize("way", AT_ONCE)
def test_a_change_is_seen(way: str) -> None:
    hmp.convert()
    assert_seen_in_all_modes(way)


ORDERS = list(itertools.product(MODES, ((1, 2), (2, 1))))  # all elements first, or a single one


@pytest.mark.parametrize("way", PREPARED)
def test_a_change_prepared_before_convert_is_seen(way: str) -> None:
    layers = [layer() for _ in ORDERS]
    changes = [WAYS[way](of) for of in layers]
    hmp.convert()
    for of, change, (mode, order) in zip(layers, changes, ORDERS, strict=True):
        for n in (1, 1) if way in POINTERS else order:
            assert_seen(of, change, mode, n)


@pytest.mark.parametrize("way", PREPARED)
def test_a_change_prepared_before_or_after_the_first_calls_is_seen(way: str) -> None:
    hmp.convert()
    for before, (mode, order) in itertools.product((0, 3), ORDERS):
        of = layer()
        for _ in range(before):
            used(of, mode)
        change = WAYS[way](of)
        for n in order:
            assert_seen(of, change, mode, n)


#: Torch resizes no storage that it loaded.
LOADABLE = [one for one in WAYS if one not in ("storage emptied", "storage grown")]


@pytest.fixture(params=["torch.load", "torch.load, mapped"])
def loaded(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], nn.Linear]:
    """Makes a layer whose weights are the tensors out of a file."""
    torch.save(layer().state_dict(), tmp_path / "layer.pt")

    def load() -> nn.Linear:
        of = layer()
        of.load_state_dict(torch.load(tmp_path / "layer.pt", mmap="mapped" in request.param), assign=True)
        return of

    return load


@pytest.mark.parametrize("way", LOADABLE)
def test_a_change_of_a_loaded_weight_is_seen(way: str, loaded: Callable[[], nn.Linear]) -> None:
    hmp.convert()
    assert_seen_in_all_modes(way, loaded)


@pytest.mark.parametrize("way", PREPARED)
def test_a_change_of_a_loaded_weight_prepared_before_convert_is_seen(way: str, loaded: Callable[[], nn.Linear]) -> None:
    layers = [loaded() for _ in ORDERS]
    changes = [WAYS[way](of) for of in layers]
    hmp.convert()
    for of, change, (mode, order) in zip(layers, changes, ORDERS, strict=True):
        for n in (1, 1) if way in POINTERS or way == "alias: __array_interface__" else order:
            assert_seen(of, change, mode, n)


VIEWED: dict[str, Use] = {
    "all of it": lambda x, w, b: F.linear(x, w.view_as(w), b),
    "transposed": lambda x, w, b: torch.addmm(b, x, w.T),
    "a part": lambda x, w, b: F.linear(x, w[: SIZE // 2], b[: SIZE // 2]),
}


@pytest.fixture
def parts_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_weights, "LEAST_PART", 1)


#: These act when the module is called, which a use of its weight is not.
IN_CALLS = ("pruned", "forward pre-hook")


@pytest.mark.usefixtures("parts_of_any_size")
@pytest.mark.parametrize("way", [one for one in AT_ONCE if one not in IN_CALLS])
def test_a_change_is_seen_by_views(way: str) -> None:
    hmp.convert()
    for name, use in VIEWED.items():
        assert_seen_in_all_modes(way, use=use, in_part=name == "a part")


@pytest.mark.usefixtures("parts_of_any_size")
@pytest.mark.parametrize("way", [one for one in PREPARED if one not in IN_CALLS])
def test_a_prepared_change_is_seen_by_views(way: str) -> None:
    hmp.convert()
    for (name, use), before, (mode, order) in itertools.product(VIEWED.items(), (0, 3), ORDERS):
        of = layer()
        for _ in range(before):
            used(of, mode, use)
        change = WAYS[way](of)
        for n in order:
            assert_seen(of, change, mode, n, use=use, in_part=name == "a part")


# ---- packed ----------------------------------------------------------------------------------------------------------

#: What runs from a packed weight, in the two ways in which it may lie and by its transposed view, and as our kernels
#: make it.
PACKED: dict[str, tuple[Use, Use]] = {
    "linear": (F.linear, kernels_product),
    "addmm": (lambda x, w, b: torch.addmm(b, x, w), lambda x, w, b: kernels_product(x, w.T, b)),
    "@ of a view": (lambda x, w, b: x @ w.T, lambda x, w, b: kernels_product(x, w, None)),
}
if not _core.kernels_can_multiply():  # then nothing is packed, and all is as torch makes it
    PACKED = {name: (use, use) for name, (use, _) in PACKED.items()}
#: So often a weight is used before it is packed, and once more.
OFTEN = 8


@pytest.fixture
def packs_whatever_it_can() -> Iterator[None]:
    """With our kernels wherever they run: what is about changes does not depend on the order of their sums."""
    _core.weights_assume_packing("panels in any order")
    yield
    _core.weights_assume_packing("measured")


@pytest.mark.processor
@pytest.mark.usefixtures("parts_of_any_size", "packs_whatever_it_can")
@pytest.mark.parametrize("way", [one for one in AT_ONCE if one not in IN_CALLS])
def test_a_change_of_a_packed_weight_is_seen(way: str) -> None:
    hmp.convert()
    layers = []  # a new weight where a pointer led to an old one is none that is packed
    for (use, kernels), mode in itertools.product(PACKED.values(), ("no_grad", "inference")):
        of = layer()
        layers.append(of)
        before = packed()
        for _ in range(OFTEN):
            used(of, mode, use)
        assert packed() == before + _core.kernels_can_multiply()
        change = WAYS[way](of)
        for n in (1, 2):
            assert_seen(of, change, mode, n, use=use, times=OFTEN, kernels=kernels)


@pytest.mark.processor
@pytest.mark.usefixtures("parts_of_any_size", "packs_whatever_it_can")
@pytest.mark.parametrize("way", [one for one in PREPARED if one not in IN_CALLS])
def test_a_prepared_change_of_a_packed_weight_is_seen(way: str) -> None:
    hmp.convert()
    for (use, kernels), mode, before in itertools.product(PACKED.values(), ("no_grad", "inference"), (0, OFTEN)):
        of = layer()
        for _ in range(before):
            used(of, mode, use)
        change = WAYS[way](of)
        for n in (1, 1) if way in POINTERS else (2, 1):
            assert_seen(of, change, mode, n, use=use, times=OFTEN, kernels=kernels)


# ---- wherever, whenever ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [one for one in MAIN if not one.startswith(("step", "by a thread"))])
def test_a_change_within_a_region_is_seen_outside(way: str) -> None:
    hmp.convert()
    regions: list[Callable[[], Any]] = [
        torch.no_grad,
        torch.inference_mode,
        hmp.disable_casts,
        lambda: torch.autocast("cpu", dtype=BF16),
        lambda: torch.autocast("cpu", enabled=False),
    ]
    for region, mode in itertools.product(regions, MODES):
        of = layer()
        change = WAYS[way](of)

        def inside(n: int, region: Any = region, change: Change = change) -> None:
            with region():
                change(n)

        for n in (2, 1):
            assert_seen(of, inside, mode, n)


@main_ways
def test_a_change_is_seen_in_the_other_modes(way: str) -> None:
    hmp.convert()
    of = layer()
    change = WAYS[way](of)
    for n, (mode, then) in enumerate(itertools.permutations(MODES, 2)):
        used(of, then)
        assert_seen(of, change, mode, 1 + n % 2, then=then)
        as_by_hand(of, mode)


@main_ways
def test_a_change_is_seen_in_a_region_held_open(way: str) -> None:
    hmp.convert()
    with torch.autocast("cpu", dtype=BF16):
        assert_seen_in_all_modes(way)


@pytest.mark.parametrize("policy", [{"opt_level": "O2"}, {"dtype": FP16}], ids=["O2", "float16"])
@main_ways
def test_a_change_is_seen_under_another_policy(way: str, policy: dict[str, Any]) -> None:
    hmp.convert(**policy)
    assert_seen_in_all_modes(way, dtype=policy.get("dtype", BF16))


@main_ways
def test_a_change_between_two_policies_is_seen(way: str) -> None:
    of = layer()
    change = WAYS[way](of)
    for dtype in (BF16, FP16, BF16):
        hmp.convert(dtype=dtype)
        assert_seen(of, change, "grad", dtype=dtype)
        hmp.restore()
        change(2)


@every_mode
def test_a_thread_sees_the_change_of_another(mode: str) -> None:
    hmp.convert()
    of = layer()
    seen: list[torch.Tensor] = []

    def run() -> None:
        torch.set_num_threads(1)
        seen.append(as_by_hand(of, mode))

    for n in (1, 2, 1):
        write(of.weight, n)
        as_by_hand(of, mode)
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert len(seen) == 3
    assert not torch.equal(seen[0], seen[2])


@pytest.mark.parametrize("again", ["not used again", *MODES])
@main_ways
def test_a_pending_backward_is_of_the_old_weight(way: str, again: str) -> None:
    """Or raises, but only where it does without casts."""

    def gradient() -> tuple[torch.Tensor, torch.Tensor] | None:
        of = layer()
        change = WAYS[way](of)
        for _ in range(3):
            used(of, "grad")
        x = X.clone().requires_grad_()
        result = of(x)
        old = of.weight.detach().clone()
        try:
            change(2)
            if again in MODES:
                with MODES[again]():
                    of(X)
            backward(result)
        except RuntimeError:
            return None
        return x.grad, old

    plain = gradient()
    hmp.convert()
    ours = gradient()
    if ours is None:
        assert plain is None
    else:
        mine = X.clone().requires_grad_()
        backward(F.linear(mine.bfloat16(), ours[1].bfloat16()))
        assert_same(ours[0], mine.grad)


# ---- other operations ------------------------------------------------------------------------------------------------

USES: dict[str, tuple[tuple[int, ...], Use]] = {
    "matmul": ((SIZE, SIZE), lambda x, w, b: torch.matmul(x, w)),
    "@": ((SIZE, SIZE), lambda x, w, b: x @ w),
    "mm of a transposed weight": ((SIZE, SIZE), lambda x, w, b: torch.mm(x, w.transpose(0, 1))),
    "addmm": ((SIZE, SIZE), lambda x, w, b: torch.addmm(b, x, w)),
    "mv": ((SIZE, SIZE), lambda x, w, b: torch.mv(w, x[0])),
    "bmm": ((2, SIZE, SIZE // 2), lambda x, w, b: torch.bmm(x.view(2, 2, SIZE), w)),
    "conv1d": ((SIZE, SIZE, 1), lambda x, w, b: F.conv1d(x.view(4, SIZE, 1), w, b)),
    "conv2d": ((SIZE, 3, 4, 4), lambda x, w, b: F.conv2d(x.view(1, 3, 8, 8), w, b)),
    "conv_transpose2d": ((3, SIZE, 4, 4), lambda x, w, b: F.conv_transpose2d(x.view(1, 3, 8, 8), w, b)),
}
OF_ANY_SHAPE = (
    *("add_", "uniform_", "data.add_", "alias: data", "alias: numpy", "alias: from_dlpack", "alias: data_ptr"),
    *("alias: view", "alias: detach", "storage[i] = byte", "version kept", "by float64", "by a thread"),
)


@every_mode
@pytest.mark.parametrize("use", USES)
def test_a_change_is_seen_by_another_operation(use: str, mode: str) -> None:
    shape, call = USES[use]
    hmp.convert()
    for way in OF_ANY_SHAPE:
        of = layer()
        of.weight = nn.Parameter(of.weight.detach().clone().view(shape))
        change = WAYS[way](of)
        for n in (2, 1):
            assert_seen(of, change, mode, n, use=call)


@pytest.mark.parametrize("way", ["add_", "uniform_", "data.add_", "alias: numpy", "alias: data", "by float64"])
def test_a_change_of_a_bias_is_seen(way: str) -> None:
    hmp.convert()
    for mode in MODES:
        of, other = layer(), layer()
        other.weight = of.bias
        change = WAYS[way](other)

        def change_bias(n: int, of: nn.Linear = of, other: nn.Linear = other, change: Change = change) -> None:
            change(n)
            of.bias = other.weight

        for _ in range(2):
            assert_seen(of, change_bias, mode)


@main_ways
def test_a_change_is_seen_where_a_weight_is_used_twice(way: str) -> None:
    """The two gradients are summed where one cast, or each its own, sums them."""
    hmp.convert()
    of = layer()
    change = WAYS[way](of)
    for n in (1, 2, 1):
        for _ in range(3):
            before = used(of, "grad", lambda x, w, b: F.linear(F.linear(x, w, b), w))
        change(n)
        of.zero_grad()
        result = F.linear(F.linear(X, of.weight, of.bias), of.weight)
        weight = of.weight.detach().clone().requires_grad_()
        gradients = []
        for once in (weight.bfloat16(), None):
            lowered = [weight.bfloat16() if once is None else once for _ in range(2)]
            with hmp.disable_casts():
                wanted = F.linear(F.linear(X.bfloat16(), lowered[0], of.bias.detach().bfloat16()), lowered[1])
            assert_same(result, wanted)
            backward(wanted)
            gradients.append(weight.grad)
            weight.grad = None
        assert not torch.equal(result, before)
        backward(result)
        assert any(torch.equal(of.weight.grad, one) for one in gradients)


# ---- many weights, copies, other owners ------------------------------------------------------------------------------


@every_mode
def test_a_weight_in_the_place_of_a_dead_one_is_its_own(mode: str) -> None:
    """Alike but for one element, so that objects, memory and all but one value come again."""
    hmp.convert()
    x, values = X.bfloat16(), torch.rand(SIZE, SIZE)
    objects = set()
    for n in range(2000):
        values[ROW, COLUMN] = n % 200
        weight = nn.Parameter(values.clone())
        objects.add(id(weight))
        with MODES[mode]():
            results = [F.linear(X, weight) for _ in range(2)]
        del weight
        with hmp.disable_casts():
            wanted = F.linear(x, values.bfloat16())
        assert_same(results, [wanted, wanted])
        del results
    assert len(objects) < 100


@every_mode
def test_layers_made_and_dropped_are_their_own(mode: str) -> None:
    hmp.convert()
    for n in range(200):
        of = layer()
        write(of.weight, 1 + n % 2)
        as_by_hand(of, mode)
        as_by_hand(of, mode)
        if n % 3:
            of.weight = nn.Parameter(noise())
            as_by_hand(of, mode)


def saved_and_loaded(of: nn.Linear) -> Any:
    file = io.BytesIO()
    torch.save(of, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES: dict[str, Callable[[nn.Linear], nn.Linear]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda of: pickle.loads(pickle.dumps(of)),
    "save and load": saved_and_loaded,
}


@every_mode
@pytest.mark.parametrize("way", COPIES)
def test_a_copy_and_its_original_are_two(way: str, mode: str) -> None:
    hmp.convert()
    for which in (0, 1):
        original = layer()
        before = [used(original, mode) for _ in range(3)][-1]
        both = (original, COPIES[way](original))
        assert torch.equal(as_by_hand(both[1], mode), before)
        for n in (1, 2):
            write(both[which].weight, n)
            assert torch.equal(as_by_hand(both[1 - which], mode), before)
            assert not torch.equal(as_by_hand(both[which], mode), before)


def test_a_weight_born_in_inference_mode_is_seen_to_change() -> None:
    hmp.convert()
    with torch.inference_mode():
        of = layer().requires_grad_(False)
    for n in (1, 2, 1, 2):
        for mode, entered in MODES.items():
            for _ in range(3):
                before = used(of, mode)
            with torch.inference_mode():
                write(of.weight, n)
            with entered():
                result = of(X)
            with hmp.disable_casts():
                wanted = F.linear(X.bfloat16(), of.weight.bfloat16(), of.bias.bfloat16())
            assert_same(result, wanted)
            assert not torch.equal(result, before)


class Doubled(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return torch.mm(weight, 2 * torch.eye(SIZE))


def doubled(of: nn.Linear) -> nn.Linear:
    parametrize.register_parametrization(of, "weight", Doubled())
    return of


PARAMETRIZATIONS: dict[str, Callable[[nn.Linear], Any]] = {
    "weight_norm": parametrizations.weight_norm,
    "weight_norm, in a hook": nn.utils.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "a product": doubled,
}


@every_mode
@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
@pytest.mark.parametrize("way", PARAMETRIZATIONS)
def test_a_change_of_what_a_weight_is_made_of_is_seen(way: str, mode: str) -> None:
    """As a new layer with the same state has it."""
    hmp.convert()
    of = PARAMETRIZATIONS[way](layer()).eval()
    for change in (lambda p: p.add_(0.5), lambda p: p.data.add_(0.5), lambda p: p.detach().numpy().__iadd__(0.5)):
        for _ in range(3):
            before = used(of, mode)
        with torch.no_grad():
            for one in of.parameters():
                change(one)
        result = used(of, mode)
        twin = PARAMETRIZATIONS[way](layer()).eval()
        twin.load_state_dict({name: value.clone() for name, value in of.state_dict().items()})
        assert_same(result, used(twin, mode))
        if mode == "grad":
            assert_same([one.grad for one in of.parameters()], [one.grad for one in twin.parameters()])
        assert not torch.equal(result, before)


@every_mode
def test_a_functional_call_and_the_layer_have_each_their_weight(mode: str) -> None:
    hmp.convert()
    of, weights = layer(), [nn.Parameter(noise()) for _ in range(3)]
    for _ in range(3):
        for weight in weights:
            with MODES[mode]():
                result = torch.func.functional_call(of, {"weight": weight}, X)
            with hmp.disable_casts():
                assert_same(result, F.linear(X.bfloat16(), weight.bfloat16(), of.bias.bfloat16()))
            as_by_hand(of, mode)
            write(weight, 2)
        write(of.weight, 1)


def nonlinear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w).float().square()


Transform = Callable[[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], torch.Tensor], Any]
TRANSFORMS: dict[str, Transform] = {
    "grad": lambda f, w: torch.func.grad(lambda w: f(X, w).sum())(w),
    "vjp": lambda f, w: torch.func.vjp(lambda w: f(X, w), w)[1](torch.ones(4, SIZE)),
    "jvp": lambda f, w: torch.func.jvp(lambda w: f(X, w), (w,), (torch.ones_like(w),)),
    "jvp of the input": lambda f, w: torch.func.jvp(lambda x: f(x, w), (X,), (torch.ones_like(X),)),
    "vmap": lambda f, w: torch.vmap(lambda x: f(x, w))(X),
    "jacrev": lambda f, w: torch.func.jacrev(lambda x: f(x, w))(X[0]),
    "functionalize": lambda f, w: torch.func.functionalize(lambda w: f(X, w))(w),
}


@pytest.mark.parametrize("way", TRANSFORMS)
def test_a_change_is_seen_under_a_transform(way: str) -> None:
    hmp.convert()
    of = layer()
    for n, change in itertools.product((1, 2), (lambda w, n: write(w, n), lambda w, n: write(w.data, n))):
        for _ in range(2):
            used(of, "grad")
            before = TRANSFORMS[way](nonlinear, of.weight)
        change(of.weight, n)
        result = TRANSFORMS[way](nonlinear, of.weight)
        weight = of.weight.detach().clone().requires_grad_()
        with hmp.disable_casts():
            wanted = TRANSFORMS[way](lambda x, w: nonlinear(x.bfloat16(), w.bfloat16()), weight)
        assert_same(result, wanted)
        assert not all(torch.equal(one, other) for one, other in zip(tensors(result), tensors(before), strict=True))
        as_by_hand(of, "grad")


# ---- compiled --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.parametrize("mode", ["grad", "no_grad"])
def test_compiled_code_sees_changes(mode: str) -> None:
    hmp.convert()

    @torch.compile(backend="aot_eager")
    def run(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w, b)

    for way in MAIN:
        of = layer()
        change = WAYS[way](of)
        for n in (2, 1):
            assert_seen(of, change, mode, n, use=run, hand=F.linear)
            as_by_hand(of, mode)  # the same weight outside


@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.parametrize(
    "way", ["add_", "data.add_", "alias: numpy", "alias: data", "data = x", "step: AdamW, foreach"]
)
def test_a_compiled_layer_sees_changes(way: str) -> None:
    hmp.convert()
    of = layer()
    change = WAYS[way](of)
    compiled = torch.compile(of, backend="aot_eager")
    for mode in ("grad", "no_grad"):
        for n in (2, 1):
            assert_seen(of, change, mode, n, use=lambda x, w, b: compiled(x), hand=F.linear)


@pytest.mark.usefixtures("compiled_anew")
def test_the_step_of_a_compiled_optimizer_is_seen() -> None:
    hmp.convert()
    of = layer()

    class Compiled(torch.optim.Adam):
        pass

    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = Compiled(parameters, lr=0.1, foreach=True)
        optimizer.step = torch.compile(optimizer.step, backend="aot_eager")  # type: ignore[method-assign]
        return optimizer

    change = steps(make, of)
    for mode in MODES:
        for n in (1, 2):
            assert_seen(of, change, mode, n)


def add_without_grad(weight: torch.Tensor, by: torch.Tensor) -> None:
    with torch.no_grad():
        weight.add_(by)


def copy_part_without_grad(weight: torch.Tensor, by: torch.Tensor) -> None:
    with torch.no_grad():
        weight[3] = weight[3] + by[3]


WRITTEN_IN_GRAPHS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "no_grad": add_without_grad,
    "a part": copy_part_without_grad,
    "data": lambda weight, by: weight.data.add_(by),
    "detached": lambda weight, by: weight.detach().add_(by),
    "data.copy_": lambda weight, by: weight.data.copy_(weight.data + by),
}


@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.parametrize("mode", ["grad", "no_grad"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("write_in_graph", WRITTEN_IN_GRAPHS.values(), ids=WRITTEN_IN_GRAPHS)
def test_what_compiled_code_writes_is_seen(
    write_in_graph: Callable[[torch.Tensor, torch.Tensor], Any], backend: str, mode: str
) -> None:
    """Inductor's code counts no version up in older releases."""
    hmp.convert()
    of, other = layer(), layer()

    @torch.compile(backend=backend)
    def change(weight: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        result = other(X).sum()
        write_in_graph(weight, by)
        return result

    by = torch.zeros(SIZE, SIZE)
    by[3, 5] = 1.0  # none of those that are compared
    for _ in range(3):
        for _ in range(2):
            used(of, "no_grad")
        with MODES[mode]():
            change(of.weight, by)
        as_by_hand(of, "no_grad")


@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.parametrize("mode", ["grad", "no_grad"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_code_that_writes_while_a_thread_uses_the_weight_is_seen(backend: str, mode: str) -> None:
    """Inductor's counts the version up before it writes."""
    hmp.convert()
    of = layer()

    # Older releases read no annotations that are text.
    @torch.library.custom_op("habana_mp_test::used_meanwhile", mutates_args=(), schema="(Tensor x) -> Tensor")
    def used_meanwhile(x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=used, args=(of, mode))
        thread.start()
        thread.join()
        return x.clone()

    used_meanwhile.register_fake(torch.empty_like)

    @torch.compile(backend=backend)
    def change(weight: torch.Tensor, by: torch.Tensor) -> None:
        weight.add_(used_meanwhile(by))

    by = torch.zeros(SIZE, SIZE)
    by[3, 5] = 1.0  # none of those that are compared
    for _ in range(3):
        used(of, mode)
        with torch.no_grad():
            change(of.weight, by)
        as_by_hand(of, mode)
    assert hmp.report(show=False).weights.weights == 2  # with the bias


# ---- distributed -----------------------------------------------------------------------------------------------------


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_a_change_in_data_parallel_training_is_seen() -> None:
    hmp.convert()
    of = layer()
    wrapped = DistributedDataParallel(of)
    changes = [
        steps(lambda parameters: torch.optim.AdamW(parameters, lr=0.1), of),
        lambda n: wrapped.load_state_dict({"module.weight": noise(), "module.bias": noise(SIZE)}),
        lambda n: dist.broadcast(of.weight.data.add_(n), 0),
        lambda n: dist.all_reduce(of.weight.detach().mul_(n + 1)),
    ]
    for mode, change in itertools.product(MODES, changes):
        assert_seen(of, change, mode, use=lambda x, w, b: wrapped(x), hand=F.linear)


@needs_fully_shard
@pytest.mark.usefixtures("alone")
def test_a_change_of_a_sharded_weight_is_seen() -> None:
    hmp.convert()
    of = fsdp.fully_shard(layer(), mesh=init_device_mesh("cpu", (1,)))
    optimizer = torch.optim.SGD(of.parameters(), lr=0.5)
    changes: list[Callable[[], Any]] = [
        optimizer.step,
        lambda: write(of.weight.to_local(), 2),
        lambda: of.weight.to_local().detach().numpy().__iadd__(1),
        lambda: of.load_state_dict({name: value * 2 for name, value in of.state_dict().items()}),
    ]
    before = torch.zeros(())
    for change in changes * 2:
        for mode, entered in MODES.items():
            of.zero_grad()
            with entered():
                result = of(X)
            if mode == "grad":
                backward(result)
            of.reshard()
            weight, bias = (one.full_tensor().detach().clone().requires_grad_() for one in (of.weight, of.bias))
            with hmp.disable_casts():
                wanted = F.linear(X.bfloat16(), weight.bfloat16(), bias.bfloat16())
            assert_same(result, wanted)
            if mode == "grad":
                backward(wanted)
                assert_same(of.weight.grad.full_tensor(), weight.grad)
                gradient = of.weight.grad
        assert not torch.equal(result, before)
        before = result
        of.weight.grad = gradient
        change()
