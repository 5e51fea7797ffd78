"""A weight that changes by an operator that counts no version, or through what such a one makes, is cast again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import _core, hmp
from helpers.comparing import assert_same
from helpers.each import each
from helpers.lists import Converter
from helpers.processes import in_threads
from helpers.seeing_changes import MODES
from helpers.weights import cached

SIZE = 256
#: An element that the core does not compare.
PLACE = (5, 6)
#: With these inputs each element of a weight is an element of the result.
X = torch.eye(SIZE)

ATEN: Any = torch.ops.aten
CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script`", "ignore:Sparse"),
]


def weight() -> nn.Parameter:
    return nn.Parameter(torch.rand(SIZE, SIZE) + 0.5, requires_grad=False)


def put(tensor: torch.Tensor) -> None:
    tensor[PLACE] = 77.0


def cell(w: torch.Tensor) -> torch.Tensor:
    row, column = PLACE
    return w[row : row + 1, column : column + 1]


def assert_seen(change: Callable[[torch.Tensor], Any], w: nn.Parameter | None = None) -> None:
    w = weight() if w is None else w
    for _ in range(2):
        hits = _core.weights_statistics()["hits"]
        before = F.linear(X, w)
    assert _core.weights_statistics()["hits"] == hits + 1
    change(w)
    result = F.linear(X, w)
    with hmp.disable_casts():
        expected = F.linear(X.bfloat16(), w.detach().clone().bfloat16())
    assert_same(result, expected)
    assert not torch.equal(result, before)


def _scripted_data(w: torch.Tensor) -> torch.Tensor:
    return w.data


def _scripted_set(w: torch.Tensor) -> torch.Tensor:
    return torch.empty(0).set_(w)


def _scripted_of_dict(values: dict[str, torch.Tensor]) -> torch.Tensor:
    return values["w"].data


def _scripted_of_list(values: list[torch.Tensor]) -> torch.Tensor:
    return values[0].data


class Holder:
    def __init__(self, held: torch.Tensor) -> None:
        self.held = held


def _scripted_of_object(holder: Holder) -> torch.Tensor:
    return holder.held.data


class Module(torch.nn.Module):
    def __init__(self, held: torch.nn.Parameter) -> None:
        super().__init__()
        self.held = held

    def forward(self) -> torch.Tensor:
        return self.held.data


def _sparse(w: torch.Tensor) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.arange(SIZE)[None], w, (SIZE, SIZE), is_coalesced=True)


_OF_DICT: Any = torch.jit.script(_scripted_of_dict)
_HOLDER: Any = torch.jit.script(Holder)


ALIASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "set_.source_Tensor by keyword": lambda w: ATEN.set_.source_Tensor(torch.empty(0), source=w),
    "Tensor.set_": lambda w: torch.empty(0).set_(w.detach()),
    "Tensor.set_ by keyword": lambda w: torch.empty(0).set_(source=w.detach()),
    "unsafe_chunk": lambda w: torch.unsafe_chunk(w, 1)[0],
    "Tensor.unsafe_split": lambda w: w.unsafe_split(SIZE)[0],
    "redispatch": lambda w: ATEN.detach.default.redispatch(CPU, w),
    "a kernel's own builtin": lambda w: ATEN.view.default._op_dk(torch._C.DispatchKey.CPU, w, [SIZE, SIZE]),
    "values of a sparse tensor": lambda w: _sparse(w)._values(),
    "data in a script": torch.jit.script(_scripted_data),
    "set_ in a script": torch.jit.script(_scripted_set),
    "data in a script that gets a dict": lambda w: _OF_DICT({"w": w}),
    "data in a script that gets a dict of scripts": lambda w: _OF_DICT(torch.jit.script({"w": w})),
    "data in a script that gets a list of scripts": lambda w: torch.jit.script(_scripted_of_list)(
        torch.jit.script([w])
    ),
    "data in a script that gets an object": lambda w: torch.jit.script(_scripted_of_object)(_HOLDER(w)),
    "data in a scripted module": lambda w: torch.jit.script(Module(w))(),
}


@each("mode", ["no_grad", "inference"])
@each("way", ALIASES)
def test_a_write_through_an_alias_with_a_version_of_its_own_is_seen(way: str, mode: str) -> None:
    hmp.convert()
    w = weight()
    with MODES[mode]():
        assert_seen(lambda w: put(ALIASES[way](w)), w)


WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "redispatch": lambda w: ATEN.fill_.Scalar.redispatch(CPU, cell(w), 77.0),
    "a kernel's own builtin": lambda w: ATEN.fill_.Scalar._op_dk(torch._C.DispatchKey.CPU, cell(w), 77.0),
    "kron.out": lambda w: ATEN.kron.out(torch.full((1, 1), 11.0), torch.full((1, 1), 7.0), out=cell(w)),
    "rrelu_with_noise": lambda w: torch._C._nn.rrelu_with_noise(-torch.ones(1, 1), cell(w), 0.1, 0.3, True),
    "statistics of batch_norm": lambda w: ATEN.native_batch_norm(
        torch.rand(4, 1) + 9, None, None, cell(w)[0], torch.ones(1), True, 0.5, 1e-5
    ),
    "statistics of fake quantization": lambda w: torch.fused_moving_avg_obs_fake_quant(
        *(torch.zeros(1, 1), torch.ones(1, dtype=torch.int64), torch.ones(1, dtype=torch.int64)),
        *(cell(w)[0], torch.ones(1), torch.ones(1), torch.zeros(1, dtype=torch.int32), 0.5, 0, 255, 0),
    ),
    "view.dtype": lambda w: ATEN.view.dtype(w, torch.int32).__setitem__(PLACE, 0x42800000),
}


@each("mode", ["no_grad", "inference"])
@each("way", WRITES)
def test_a_write_that_is_not_counted_is_seen(way: str, mode: str) -> None:
    hmp.convert()
    w = weight()
    with MODES[mode]():
        assert_seen(WRITES[way], w)


def test_the_address_of_a_weight_is_a_pointer() -> None:
    hmp.convert()
    w = weight()
    F.linear(X, w)
    hmp.reset_report()
    torch._C._data_address(w)
    F.linear(X, w)
    assert (cached().refreshes, cached().refused) == (1, 0)


# ---- operators of libraries ------------------------------------------------------------------------------------------


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    with torch.library._scoped_library("hmp_tapped", "FRAGMENT") as made:
        yield made


def define(library: torch.library.Library) -> Any:
    library.define("put(Tensor(a!) w) -> ()")
    library.impl("put", put, "CPU")
    return torch.ops.hmp_tapped.put


@pytest.mark.parametrize("overload", ["put", "put.default"])
@pytest.mark.parametrize("when", ["before convert", "after convert"])
def test_a_write_of_a_librarys_operator_is_seen(library: torch.library.Library, when: str, overload: str) -> None:
    if when == "after convert":
        hmp.convert()
    operator = define(library)
    hmp.convert()
    assert_seen(operator if overload == "put" else operator.default)


def test_a_write_of_an_operator_that_a_list_names_is_seen(library: torch.library.Library, converted: Converter) -> None:
    """The operator is tapped, covered by a list, and tapped again."""
    library.define("add_and_put(Tensor x, Tensor(a!) w) -> Tensor")
    library.impl("add_and_put", lambda x, w: (put(w), x + 1)[1], "CPU")
    operator = torch.ops.hmp_tapped.add_and_put
    for lists in ([], ["hmp_tapped::add_and_put"], [], ["hmp_tapped::add_and_put"]):
        converted(bf16=["linear", *lists])
        with torch.no_grad():
            assert operator(torch.ones(2), torch.rand(SIZE, SIZE)).dtype is (torch.bfloat16 if lists else torch.float32)
            assert_seen(lambda w: operator(torch.ones(2), w))
            assert_seen(lambda w: operator.default(torch.ones(2), w))


@pytest.mark.parametrize("name", ["aten::kron", "rrelu_with_noise"])
def test_what_is_tapped_may_stand_in_a_list(converted: Converter, name: str) -> None:
    for lists in ([], [name], []):
        converted(bf16=["linear", *lists])
        with torch.no_grad():
            assert_seen(WRITES["kron.out"])
            assert_seen(WRITES["rrelu_with_noise"])


def test_a_weight_that_is_used_while_an_operator_writes_is_cast_again_afterwards() -> None:
    """By another thread. The operator has counted before it writes."""

    @torch.library.custom_op("hmp_tapped::in_two_steps", mutates_args=("w",), schema="(Tensor(a!) w) -> ()")
    def in_two_steps(w: torch.Tensor) -> None:
        in_threads(lambda _: F.linear(X, used[0]), 1)
        put(w)

    hmp.convert()
    used = [weight()]
    with torch.no_grad():
        assert_seen(in_two_steps, used[0])


def test_an_operator_of_torch_that_gets_another_overload_stays_tapped() -> None:
    operator = ATEN._fused_sgd_
    hmp.convert()
    hmp.restore()
    fragment = torch.library.Library("aten", "FRAGMENT")
    fragment.define("_fused_sgd_.of_a_test(Tensor x) -> Tensor")
    hmp.convert()
    one = torch.ones(1, 1)

    def step(w: torch.Tensor) -> None:
        options = {"weight_decay": 0.0, "momentum": 0.0, "lr": 70.0, "dampening": 0.0, "nesterov": False}
        operator([cell(w)], [-one], [], **options, maximize=False, is_first_step=True)

    assert_seen(step)
    fragment._destroy()
