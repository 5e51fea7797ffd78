"""Ways in which the weight of a layer can change, as data: each changes it once each time that it is called.

A way is made for one layer (an ``nn.Linear`` of 16 to 16), perhaps takes an alias of its weight, and is then called
with 1 or 2: through an alias, 1 changes all elements and 2 a single one.
"""

from __future__ import annotations

import copy
import ctypes
import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import tvm_ffi
from numpy.lib.stride_tricks import as_strided
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.optim.swa_utils import AveragedModel
from torch.utils import dlpack
from torch.utils._pytree import tree_map

from habana_mp import hmp

SIZE = 48
# Not among a few evenly spread elements.
ROW, COLUMN = 5, 6

Change = Callable[[int], Any]
Way = Callable[[nn.Linear], Change]

# Names that somebody took before `convert`.
DATA, GRADLESS_DATA = torch.Tensor.data, torch._C.TensorBase.data
GET_DATA, SET_DATA = DATA.__get__, DATA.__set__
NUMPY, STORAGE, DATA_PTR = torch.Tensor.numpy, torch.Tensor.untyped_storage, torch.Tensor.data_ptr


def layer() -> nn.Linear:
    return nn.Linear(SIZE, SIZE)


def noise(*shape: int) -> torch.Tensor:
    return torch.empty(shape or (SIZE, SIZE)).uniform_(0.1, 1.0)


def floats_at(address: int) -> Any:
    """An array over raw memory, which owns nothing."""
    return np.ctypeslib.as_array((ctypes.c_float * (SIZE * SIZE)).from_address(address))


@tvm_ffi.convert
def foreign(weight: Any, n: int) -> None:
    """A function of another language, which is lent the memory of its arguments."""
    write(torch.from_dlpack(weight), n)


def write(alias: Any, n: int) -> None:
    """Through an alias that is indexed as an array: all elements, or one."""
    with torch.no_grad():
        alias[... if n == 1 else np.unravel_index(ROW * SIZE + COLUMN, alias.shape)] += 1


def write_at(address: int, n: int) -> None:
    floats_at(address)[ROW * SIZE + COLUMN] += n


# ---- in place --------------------------------------------------------------------------------------------------------

ONE_ELEMENT = torch.zeros(SIZE, SIZE)
ONE_ELEMENT[ROW, COLUMN] = 1
CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
ROWS = torch.tensor([1, 3, 3 + ROW])
INDEX = torch.arange(SIZE * SIZE).reshape(SIZE, SIZE) % SIZE


def _set_all(w: torch.Tensor, n: int) -> None:
    w[...] = noise()


def _set_masked(w: torch.Tensor, n: int) -> None:
    w[w > 0] = n


def _set_one(w: torch.Tensor, n: int) -> None:
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


# These tell no version counter.


def fused_sgd(w: torch.Tensor, gradient: torch.Tensor) -> None:
    options: dict[str, Any] = {"dampening": 0.0, "nesterov": False, "maximize": False, "is_first_step": True}
    torch._fused_sgd_([w], [gradient], [], weight_decay=0.0, momentum=0.0, lr=0.5, **options)


def fused_adamw(w: torch.Tensor, gradient: torch.Tensor, decay: float, step: Any = torch._fused_adamw_) -> None:
    options: dict[str, Any] = {"weight_decay": decay, "eps": 1e-8, "amsgrad": False, "maximize": False}
    state = [[torch.zeros_like(w)], [torch.zeros_like(w)], [], [torch.tensor(1.0)]]
    step([w], [gradient], *state, lr=0.5, beta1=0.9, beta2=0.99, **options)


def unscale(w: torch.Tensor) -> None:
    torch._amp_foreach_non_finite_check_and_unscale_([w], torch.zeros(1), torch.tensor(3.0))


IN_PLACE: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "add_": lambda w, n: w.add_(n),
    "sub_": lambda w, n: w.sub_(noise()),
    "mul_": lambda w, n: w.mul_(n + 1),
    "div_": lambda w, n: w.div_(n + 1),
    "+=": _augmented,
    "copy_": lambda w, n: w.copy_(noise()),
    "copy_ of float64": lambda w, n: w.copy_(noise().double(), non_blocking=True),
    "fill_": lambda w, n: w.fill_(n),
    "zero_": lambda w, n: w.normal_().div_(n) if n == 1 else w.zero_(),
    "uniform_": lambda w, n: w.uniform_(),
    "normal_": lambda w, n: w.normal_(),
    "bernoulli_": lambda w, n: w.bernoulli_(),
    "exponential_": lambda w, n: w.exponential_(),
    "random_": lambda w, n: w.random_(0, 9),
    "neg_": lambda w, n: w.neg_(),
    "tanh_": lambda w, n: w.tanh_(),
    "exp_": lambda w, n: w.exp_(),
    "relu_ and more": lambda w, n: w.relu_().sub_(n),
    "pow_": lambda w, n: w.add_(2).pow_(2),
    "clamp_": lambda w, n: w.clamp_(min=0.1 * n),
    "lerp_": lambda w, n: w.lerp_(noise(), 0.5),
    "addcmul_": lambda w, n: w.addcmul_(noise(), noise(), value=0.5),
    "addcdiv_": lambda w, n: w.addcdiv_(noise(), noise(), value=0.5),
    "addmm_": lambda w, n: w.addmm_(noise(), noise()),
    "addr_": lambda w, n: w.addr_(noise(SIZE), noise(SIZE)),
    "masked_fill_": lambda w, n: w.masked_fill_(torch.eye(SIZE, dtype=torch.bool), n),
    "masked_scatter_": lambda w, n: w.masked_scatter_(torch.eye(SIZE, dtype=torch.bool), noise()),
    "fill_diagonal_": lambda w, n: w.fill_diagonal_(n),
    "index_add_": lambda w, n: w.index_add_(0, ROWS, noise(3, SIZE)),
    "index_copy_": lambda w, n: w.index_copy_(0, ROWS, noise(3, SIZE)),
    "index_fill_": lambda w, n: w.index_fill_(1, ROWS, n),
    "index_put_": lambda w, n: w.index_put_((torch.tensor([ROW]), torch.tensor([COLUMN])), torch.tensor([1.0 * n])),
    "put_": lambda w, n: w.put_(torch.tensor([ROW * SIZE + COLUMN]), torch.tensor([1.0 * n])),
    "scatter_": lambda w, n: w.scatter_(0, INDEX, noise()),
    "scatter_add_": lambda w, n: w.scatter_add_(0, INDEX, noise()),
    "scatter_reduce_": lambda w, n: w.scatter_reduce_(1, INDEX, noise(), "prod"),
    "renorm_": lambda w, n: w.renorm_(2, 0, 0.5 / n),
    "tril_": lambda w, n: w.add_(n).tril_(),
    "t_": lambda w, n: w.t_(),
    "swapaxes_ and more": lambda w, n: w.swapaxes_(0, 1).mul_(n + 1),
    "as_strided_": lambda w, n: w.as_strided_((SIZE, SIZE), (1, SIZE))
    if n == 1
    else w.as_strided_((SIZE, SIZE), (SIZE, 1)),
    "w[...] = x": _set_all,
    "w[mask] = x": _set_masked,
    "w[i, j] = x": _set_one,
    "out=": lambda w, n: torch.add(w, n, out=w),
    "randn(out=)": lambda w, n: torch.randn(SIZE, SIZE, out=w.detach()),
    "mm(out=)": lambda w, n: torch.mm(noise(), noise(), out=w),
    "cat(out=)": lambda w, n: torch.cat([noise(8, SIZE), noise(SIZE - 8, SIZE)], out=w),
    "relu(inplace=True)": lambda w, n: F.relu(w.sub_(0.1), inplace=True),
    "dropout(inplace=True)": lambda w, n: F.dropout(w, inplace=True),
    "normalize(out=)": lambda w, n: F.normalize(w, p=n + 1, out=w),
    "embedding(max_norm=)": lambda w, n: F.embedding(torch.arange(8), w, max_norm=0.5 / n),
    "aten.add_": lambda w, n: torch.ops.aten.add_.Tensor(w, noise()),
    "aten.copy_": lambda w, n: torch.ops.aten.copy_.default(w, noise()),
    "aten._foreach_mul_": lambda w, n: torch.ops.aten._foreach_mul_.Scalar([w], n + 1),
    "_foreach_add_": lambda w, n: torch._foreach_add_([w], 1.0),
    "_foreach_copy_": lambda w, n: torch._foreach_copy_([w], [noise()]),
    "_foreach_lerp_": lambda w, n: torch._foreach_lerp_([w], [noise()], 0.5),
    "_foreach_addcdiv_": lambda w, n: torch._foreach_addcdiv_([w], [noise()], [noise()], 0.5),
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
    "init.uniform_": lambda w, n: nn.init.uniform_(w),
    "init.normal_": lambda w, n: nn.init.normal_(w),
    "init.trunc_normal_": lambda w, n: nn.init.trunc_normal_(w),
    "init.constant_": lambda w, n: nn.init.constant_(w, n),
    "init.ones_": lambda w, n: nn.init.ones_(w.mul_(n)) if n == 1 else nn.init.zeros_(w),
    "init.eye_": lambda w, n: nn.init.eye_(w) if n == 1 else nn.init.dirac_(w.view(SIZE, SIZE, 1)).mul_(2),
    "init.xavier_uniform_": lambda w, n: nn.init.xavier_uniform_(w),
    "init.xavier_normal_": lambda w, n: nn.init.xavier_normal_(w),
    "init.kaiming_uniform_": lambda w, n: nn.init.kaiming_uniform_(w),
    "init.kaiming_normal_": lambda w, n: nn.init.kaiming_normal_(w),
    "init.orthogonal_": lambda w, n: nn.init.orthogonal_(w),
    "init.sparse_": lambda w, n: nn.init.sparse_(w, 0.5),
    "set_": lambda w, n: w.set_(noise()),
    "set_ of a storage": lambda w, n: w.set_(noise().untyped_storage(), 0, (SIZE, SIZE), (SIZE, 1)),
    "set_ to another offset": lambda w, n: w.set_(noise(SIZE + 1, SIZE).untyped_storage(), n, (SIZE, SIZE), (SIZE, 1)),
}

# ---- through an alias ------------------------------------------------------------------------------------------------


def _rebuilt(w: torch.Tensor) -> torch.Tensor:
    return torch.empty(0).set_(w.untyped_storage(), 0, (SIZE, SIZE), (SIZE, 1))


def _address_of_buffer(array: Any) -> int:
    return ctypes.addressof((ctypes.c_float * SIZE**2).from_buffer(array))


def _iterator(array: Any) -> Any:
    return np.nditer(array, flags=["external_loop"], op_flags=[["readwrite"]])


def _record(w: torch.Tensor) -> Any:
    return w.detach().numpy().reshape(-1).view([("values", "f4", (SIZE * SIZE,))])[0]


def _sliced(w: torch.Tensor) -> torch.Tensor:
    storage = w.untyped_storage()[: 4 * SIZE * SIZE]
    return torch.empty(0).set_(storage, 0, (SIZE, SIZE), (SIZE, 1))


def _array_of_a_tensor_elsewhere(w: torch.Tensor) -> Any:
    array = w.detach().numpy()
    array.base.data = torch.zeros(1)
    return array


ALIASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "detach": lambda w: w.detach(),
    "detach, twice": lambda w: w.detach().detach(),
    "data": lambda w: w.data,
    "data of a detached one": lambda w: w.detach().data,
    "detached data": lambda w: w.data.detach(),
    "view of data": lambda w: w.data.view(-1),
    "data by a descriptor taken before": lambda w: DATA.__get__(w),
    "data by a method taken before": lambda w: GET_DATA(w),
    "data of the base class": lambda w: GRADLESS_DATA.__get__(w),
    "view": lambda w: w.view(-1),
    "reshape": lambda w: w.reshape(SIZE, SIZE),
    "flatten": lambda w: w.flatten(),
    "transpose": lambda w: w.transpose(0, 1),
    "transposed twice": lambda w: w.mT.T,
    "slice": lambda w: w[:],
    "narrow": lambda w: w.narrow(0, 0, SIZE),
    "chunk": lambda w: w.chunk(1)[0],
    "unbound": lambda w: w.unsqueeze(0).unbind(0)[0],
    "expand": lambda w: w.expand(SIZE, SIZE),
    "as_strided": lambda w: w.as_strided((SIZE, SIZE), (SIZE, 1)),
    "view_as": lambda w: w.view_as(w),
    "alias": lambda w: torch.ops.aten.alias.default(w),
    "aten.detach": lambda w: torch.ops.aten.detach.default(w),
    "bits": lambda w: w.detach().view(torch.int32).view(torch.float32),
    "another Parameter": lambda w: nn.Parameter(w),
    "another Parameter of data": lambda w: nn.Parameter(w.data),
    "as_subclass": lambda w: w.detach().as_subclass(nn.Parameter),
    "tensor of its storage": _rebuilt,
    "tensor of a storage by a method taken before": lambda w: torch.empty(0).set_(STORAGE(w), 0, (SIZE, SIZE)),
    "tensor of its typed storage": lambda w: torch.empty(0).set_(w._typed_storage(), 0, (SIZE, SIZE)),
    "numpy": lambda w: w.detach().numpy(),
    "numpy of data": lambda w: w.data.numpy(),
    "numpy by force": lambda w: w.numpy(force=True),
    "numpy by a method taken before": lambda w: NUMPY(w.detach()),
    "asarray": lambda w: np.asarray(w.detach()),
    "__array__": lambda w: w.detach().__array__(),
    "from_numpy of numpy": lambda w: torch.from_numpy(w.detach().numpy()),
    "as_tensor of numpy": lambda w: torch.as_tensor(w.detach().numpy()),
    "frombuffer of numpy": lambda w: torch.frombuffer(w.detach().numpy(), dtype=torch.float32),
    "memoryview": lambda w: np.asarray(memoryview(w.detach().numpy())),
    "ctypes buffer": lambda w: np.frombuffer((ctypes.c_float * SIZE**2).from_buffer(w.detach().numpy()), np.float32),
    "from_dlpack": lambda w: torch.from_dlpack(w.detach()),
    "utils.dlpack": lambda w: dlpack.from_dlpack(dlpack.to_dlpack(w.detach())),
    "__dlpack__": lambda w: torch.from_dlpack(w.detach().__dlpack__()),
    "DLPack's exchange of C": lambda w: torch.from_dlpack(tvm_ffi.from_dlpack(w.detach())),
    "DLPack's exchange of C, of the weight": lambda w: torch.from_dlpack(tvm_ffi.from_dlpack(w)),
    "data_ptr": lambda w: floats_at(w.data_ptr()),
    "data_ptr of a detached one": lambda w: floats_at(w.detach().data_ptr()),
    "data_ptr of a view": lambda w: floats_at(w.view(-1).data_ptr()),
    "data_ptr by a method taken before": lambda w: floats_at(DATA_PTR(w)),
    "data_ptr of the storage": lambda w: floats_at(w.untyped_storage().data_ptr()),
    "data_ptr of the typed storage": lambda w: floats_at(w._typed_storage()._data_ptr()),
    "address of numpy": lambda w: floats_at(w.detach().numpy().ctypes.data),
    "address of a view of numpy": lambda w: floats_at(w.detach().numpy()[:].reshape(-1).ctypes.data),
    "address of strides of numpy": lambda w: floats_at(as_strided(w.detach().numpy(), (3,)).ctypes.data),
    "address of from_numpy of numpy": lambda w: floats_at(torch.from_numpy(w.detach().numpy()).data_ptr()),
    "address of from_dlpack of numpy": lambda w: floats_at(torch.from_dlpack(w.detach().numpy()).data_ptr()),
    "address of a buffer": lambda w: floats_at(_address_of_buffer(w.detach().numpy())),
    "address of a matrix' buffer": lambda w: floats_at(_address_of_buffer(w.detach().numpy().view(np.matrix))),
    "address of numpy through DLPack": lambda w: floats_at(np.from_dlpack(w.detach().numpy()).ctypes.data),
    "address of an iterator over numpy": lambda w: floats_at(_iterator(w.detach().numpy())[0].ctypes.data),
    "address of a record of numpy": lambda w: floats_at(_record(w).__array_interface__["data"][0]),
    "address of a record's buffer": lambda w: floats_at(np.frombuffer(_record(w), np.float32).ctypes.data),
    "address of numpy of a slice of the storage": lambda w: floats_at(torch.from_numpy(_sliced(w).numpy()).data_ptr()),
    "address that nothing counts": _array_of_a_tensor_elsewhere,
    "address of a slice of the storage": lambda w: floats_at(w.untyped_storage()[0:8].data_ptr()),
    "__array_interface__": lambda w: floats_at(w.detach().numpy().__array_interface__["data"][0]),
    "address in a DLPack tensor": lambda w: floats_at(np.from_dlpack(w.detach()).ctypes.data),
    "address by DLPack's exchange of C": lambda w: floats_at(np.from_dlpack(tvm_ffi.from_dlpack(w)).ctypes.data),
}


def through(take: Callable[[torch.Tensor], Any], of: nn.Linear) -> Change:
    return partial(write, take(of.weight))


def _through_state_dict(of: nn.Linear, **options: Any) -> Change:
    return partial(write, of.state_dict(**options)["weight"])


def _through_storage(of: nn.Linear, change: Callable[[Any, int], Any], typed: bool = False) -> Change:
    return partial(change, of.weight._typed_storage() if typed else of.weight.untyped_storage())


def _set_byte(storage: Any, n: int) -> None:
    storage[4 * (ROW * SIZE + COLUMN) + 3] = 0x3F + n  # sign and exponent


def _set_element(storage: Any, n: int) -> None:
    storage[ROW * SIZE + COLUMN] = n


def _tied(of: nn.Linear) -> Change:
    other = layer()
    other.weight = of.weight
    return lambda n: nn.init.normal_(other.weight)


def _apply(w: torch.Tensor, n: int) -> None:
    values = iter((noise() if n == 1 else w + ONE_ELEMENT).flatten().tolist())
    w.detach().apply_(lambda _: next(values))


def _map(w: torch.Tensor, n: int) -> None:
    w.detach().map_(noise() if n == 1 else ONE_ELEMENT, lambda one, other: one + other)


def _map_two(w: torch.Tensor, n: int) -> None:
    w.detach().map2_(noise() if n == 1 else ONE_ELEMENT, noise(), lambda one, other, _: one + other)


def _in_a_graph_of_hooks(of: nn.Linear, hook: Callable[[torch.Tensor, Callable[[], None]], Any]) -> Change:
    """Written by a hook of autograd in the middle of a backward."""
    armed: list[int] = []

    def when_armed() -> None:
        if armed:
            with torch.no_grad():
                of.weight.add_(armed.pop())

    hook(of.weight, when_armed)

    def change(n: int) -> None:
        armed.append(n)
        of(noise(2, SIZE)).sum().backward()

    return change


def _by_a_forward_hook(of: nn.Linear) -> Change:
    armed: list[int] = []

    def pre_hook(module: nn.Module, _: Any) -> None:
        if armed:
            with torch.no_grad():
                of.weight.add_(armed.pop())

    of.register_forward_pre_hook(pre_hook)
    return armed.append


def _by_a_thread(of: nn.Linear) -> Change:
    def change(n: int) -> None:
        thread = threading.Thread(target=write, args=(of.weight, n))
        thread.start()
        thread.join()

    return change


# ---- memory of others ------------------------------------------------------------------------------------------------


def _over(array: Any) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(array))


def _values() -> Any:
    return np.random.default_rng(0).uniform(-0.5, 0.5, (SIZE, SIZE)).astype(np.float32)


def _from_numpy(of: nn.Linear) -> Change:
    array = _values()
    of.weight = _over(array)
    return partial(write, array)


def _from_dlpack(of: nn.Linear) -> Change:
    array = _values()
    of.weight = nn.Parameter(torch.from_dlpack(array))
    return partial(write, array)


def _from_bytes(of: nn.Linear) -> Change:
    memory = bytearray(_values().tobytes())
    of.weight = nn.Parameter(torch.frombuffer(memory, dtype=torch.float32).view(SIZE, SIZE))
    return partial(write, np.frombuffer(memory, np.float32))


def _half_of_a_tensor(of: nn.Linear) -> Change:
    whole = torch.from_numpy(np.concatenate([_values(), _values()])).clone()
    of.weight = nn.Parameter(whole[SIZE:])
    return lambda n: write(whole[SIZE:], n)


def _as_data(of: nn.Linear) -> Change:
    """`.data` was given somebody's tensor."""
    tensor = torch.from_numpy(_values()).clone()
    of.weight.data = tensor
    return partial(write, tensor)


def _memmap(of: nn.Linear) -> Change:
    file = tempfile.NamedTemporaryFile()  # noqa: SIM115  # lives as long as the map
    array = np.memmap(file, np.float32, "w+", shape=(SIZE, SIZE))
    array[:] = _values()
    of.weight = _over(array)
    return partial(write, array)


def _file(of: nn.Linear, change: Callable[[Any, int], None]) -> Change:
    """A weight in a file that others map or write too."""
    file = tempfile.NamedTemporaryFile()  # noqa: SIM115  # lives as long as the map
    file.write(_values().tobytes())
    file.flush()
    of.weight = nn.Parameter(torch.from_file(file.name, shared=True, size=SIZE * SIZE).view(SIZE, SIZE))
    return partial(change, file)


def _map_again(file: Any, n: int) -> None:
    write(np.memmap(file.name, np.float32, "r+", shape=(SIZE, SIZE)), n)


def _write_the_file(file: Any, n: int) -> None:
    os.pwrite(file.fileno(), np.float32(n).tobytes(), 4 * (ROW * SIZE + COLUMN))


def _shared(of: nn.Linear) -> Change:
    of.share_memory()

    def change(n: int) -> None:
        child = os.fork()
        if child == 0:
            try:
                floats_at(of.weight.data_ptr())[ROW * SIZE + COLUMN if n == 2 else slice(None)] += 1
            finally:
                os._exit(0)
        os.waitpid(child, 0)

    return change


def _mapped_checkpoint(of: nn.Linear) -> Change:
    with tempfile.NamedTemporaryFile() as file:
        torch.save(layer().state_dict(), file.name)
        of.load_state_dict(torch.load(file.name, mmap=True), assign=True)
    return lambda n: write(of.weight, n)


# ---- the layer -------------------------------------------------------------------------------------------------------


def _replaced(of: nn.Linear, n: int) -> None:
    of.weight = nn.Parameter(noise())


def _deleted_and_set(of: nn.Linear, n: int) -> None:
    del of.weight
    of.weight = nn.Parameter(noise())


def _set_in_the_dictionary(of: nn.Linear, n: int) -> None:
    of._parameters["weight"] = nn.Parameter(noise())


def _set_data(of: nn.Linear, n: int) -> None:
    of.weight.data = noise()


def _set_data_by_a_method_taken_before(of: nn.Linear, n: int) -> None:
    SET_DATA(of.weight, noise())


def _set_data_and_back(of: nn.Linear, n: int) -> None:
    """As one runs a model with averaged weights for a while."""
    kept = of.weight.data
    of.weight.data = noise()
    of(noise(2, SIZE))
    of.weight.data = kept.add_(n)


def _swapped(of: nn.Linear, n: int) -> None:
    torch.utils.swap_tensors(of.weight, nn.Parameter(noise()))


def _contents_exchanged(of: nn.Linear, n: int) -> None:
    other = layer()
    of.weight.data, other.weight.data = other.weight.data, of.weight.data


def _by_float64(of: nn.Linear, n: int) -> None:
    of.double().weight.data.mul_(n + 1)
    of.float()


def _by_float16(of: nn.Linear, n: int) -> None:
    of.half().weight.data.mul_(n + 1)
    of.float()


def _left_in_float16(of: nn.Linear, n: int) -> None:
    of.half().weight.data.mul_(n + 1)


def _by_the_meta_device(of: nn.Linear, n: int) -> None:
    of.to("meta").to_empty(device="cpu").reset_parameters()


def _on_conversion(of: nn.Linear, n: int, switch: Callable[[bool], None]) -> None:
    """With another way of torch to convert the parameters of a module."""
    switch(True)
    try:
        of.double()
        write(of.weight, n)
        of.float()
    finally:
        switch(False)


def _noise_state(of: nn.Linear) -> dict[str, torch.Tensor]:
    return {"weight": noise(), "bias": noise(SIZE)}


def _storage_emptied(of: nn.Linear, n: int) -> None:
    """As FSDP frees a weight between uses; the memory may come back at the same address."""
    storage = of.weight.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    storage.resize_(size)
    of.weight.data.fill_(n)


def _storage_grown(of: nn.Linear, n: int) -> None:
    of.weight.data.resize_(SIZE * (n + 1), SIZE)
    of.weight.data.mul_(n + 1)


def _toggled(of: nn.Linear, n: int) -> None:
    of.weight.requires_grad_(False)
    of.weight.mul_(n + 1)
    of.weight.requires_grad_(True)


def _frozen(of: nn.Linear, n: int) -> None:
    of.weight.requires_grad_(False).mul_(n + 1)


def _without_a_version(of: nn.Linear, n: int) -> None:
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(of.weight):
        of.weight.add_(n)


def _one_element_without_a_version(of: nn.Linear, n: int) -> None:
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(of.weight):
        of.weight[ROW, COLUMN] += n


def _set_version(w: torch.Tensor, version: int) -> None:
    set_versions = torch._C._autograd._unsafe_set_version_counter
    try:
        set_versions((w,), (version,))
    except TypeError:  # older releases take one at a time
        set_versions(w, version)


def _version_set_back(of: nn.Linear, n: int) -> None:
    version = of.weight._version
    with torch.no_grad():
        of.weight[ROW, COLUMN] += n
    _set_version(of.weight, version)


def _version_set_back_after_use(of: nn.Linear, n: int) -> None:
    version = of.weight._version
    with torch.no_grad():
        of.weight[ROW, COLUMN] += n
    of(noise(2, SIZE))
    with torch.no_grad():
        of.weight[ROW, COLUMN] += n
    _set_version(of.weight, version + 1)


class _Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, w: torch.Tensor, n: int) -> torch.Tensor:
        ctx.mark_dirty(w)
        return w.mul_(n + 1)


# The schema is written out: older releases do not read annotations that are strings.
@torch.library.custom_op("habana_mp_tests::write", mutates_args=("w",), schema="(Tensor(a!) w, int n) -> ()")
def _write(w: torch.Tensor, n: int) -> None:
    w.detach().numpy()[:] += n


def _custom_operator(of: nn.Linear, n: int) -> None:
    with torch.no_grad():
        _write(of.weight, n)


def _custom_function(of: nn.Linear, n: int) -> None:
    with torch.no_grad():
        _Dirty.apply(of.weight, n)


def _script(of: nn.Linear, n: int) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        scripted(of.weight, n)


def _add(w: torch.Tensor, n: int) -> torch.Tensor:
    return w.add_(n)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    scripted = torch.jit.script(_add)


def _pruned(of: nn.Linear, n: int) -> None:
    prune.random_unstructured(of, "weight", amount=0.4)


def _pruned_and_removed(of: nn.Linear, n: int) -> None:
    prune.l1_unstructured(of, "weight", amount=0.3 * n)
    prune.remove(of, "weight")
    write(of.weight, n)


def _parametrized_and_removed(of: nn.Linear, n: int) -> None:
    parametrizations.weight_norm(of)
    with torch.no_grad():
        of.parametrizations.weight.original0.mul_(n + 1)
    parametrize.remove_parametrizations(of, "weight")


def _from_a_vector(of: nn.Linear, n: int) -> None:
    nn.utils.vector_to_parameters(noise(SIZE * SIZE + SIZE), of.parameters())


def _averaged(of: nn.Linear) -> Change:
    average = AveragedModel(layer())
    average.module = of
    return lambda n: average.update_parameters(nn.Linear(SIZE, SIZE))


def _average_swapped_in_and_out(of: nn.Linear) -> Change:
    average = AveragedModel(of)

    def change(n: int) -> None:
        mine = copy.deepcopy(of.state_dict())
        write(average.module.weight, n)
        of.load_state_dict(average.module.state_dict())
        of(noise(2, SIZE))
        of.load_state_dict(mine)
        write(of.weight, n)

    return change


def _restored_in_place(of: nn.Linear) -> Change:
    """A context that lends other weights, and gives the old ones back changed."""

    def change(n: int) -> None:
        kept = of.weight.detach().clone()
        with torch.no_grad():
            of.weight.copy_(noise())
            of(noise(2, SIZE))
            of.weight.copy_(kept.add_(n))

    return change


def at_once(change: Callable[[nn.Linear, int], Any]) -> Way:
    return lambda of: partial(change, of)


def in_place(change: Callable[[torch.Tensor, int], Any]) -> Way:
    def changed(of: nn.Linear, n: int) -> None:
        with torch.no_grad():
            change(of.weight, n)

    return at_once(changed)


# ---- optimizers ------------------------------------------------------------------------------------------------------

Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class OldStyle(torch.optim.Optimizer):
    """Writes as optimizers did before there was `no_grad`."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def update(self, one: torch.Tensor) -> None:
        one.data.add_(one.grad.data, alpha=-0.1)

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for one in group["params"]:
                self.update(one)


class OneElement(OldStyle):
    """Writes a single element, past torch."""

    def update(self, one: torch.Tensor) -> None:
        floats_at(one.data_ptr())[ROW * SIZE + COLUMN] += 1


class HeldMemory(OldStyle):
    """Has taken the address once, at the beginning."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.memory = [floats_at(one.data_ptr()) for group in self.param_groups for one in group["params"]]

    def update(self, one: torch.Tensor) -> None:
        self.memory[0][ROW * SIZE + COLUMN] += 1


class NoOptimizer:
    """An optimizer of nobody's class."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.held = [one.data for one in parameters]
        self.parameters = parameters

    def step(self, closure: Any = None) -> None:
        for one, parameter in zip(self.held, self.parameters, strict=True):
            one.sub_(parameter.grad, alpha=0.1)


def _optimizers() -> Iterator[tuple[str, Any]]:
    optim = torch.optim
    # Rprop leaves a weight alone after a step that was too large for it.
    rates = {"Adadelta": 50.0, "SGD": 0.5, "Muon": 0.1, "Rprop": 0.01}
    found = [one for one in vars(optim).values() if isinstance(one, type) and issubclass(one, optim.Optimizer)]
    for one in found:
        if one is not optim.Optimizer:
            options = {"lr": rates.get(one.__name__, 0.1)}
            accepted = one.__init__.__code__.co_varnames
            yield one.__name__, partial(one, **options)
            for way in ("foreach", "fused"):
                if way in accepted:
                    yield f"{one.__name__}, {way}", partial(one, **options, **{way: True})
    yield "SGD with momentum", partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True, foreach=False)
    yield "AdamW with amsgrad", partial(optim.AdamW, lr=0.1, amsgrad=True, maximize=True)
    for own in (OldStyle, OneElement, HeldMemory, NoOptimizer):
        yield own.__name__, own


OPTIMIZERS: dict[str, Optimizer] = dict(_optimizers())


def steps(make: Optimizer, of: nn.Linear) -> Change:
    optimizer = make([of.weight])

    def change(n: int) -> None:
        x = noise(4, SIZE)

        def closure() -> torch.Tensor:
            of.zero_grad()
            with torch.enable_grad():
                loss = (of(x).float() - n).square().mean()
                loss.backward()
            if isinstance(optimizer, torch.optim.SparseAdam):
                of.weight.grad = of.weight.grad.to_sparse()
            return loss

        closure()
        with hmp.disable_casts():
            optimizer.step(closure if isinstance(optimizer, torch.optim.LBFGS) else None)

    return change


def _in_the_backward(of: nn.Linear) -> Change:
    """An optimizer that steps as soon as a gradient is there."""
    optimizer = torch.optim.SGD([of.weight], lr=0.5)
    armed: list[int] = []

    def step(_: torch.Tensor) -> None:
        if armed:
            armed.pop()
            optimizer.step()

    of.weight.register_post_accumulate_grad_hook(step)

    def change(n: int) -> None:
        armed.append(n)
        of(noise(2, SIZE)).sum().backward()

    return change


# ---- all of it -------------------------------------------------------------------------------------------------------

#: Ways that need nothing before they change the weight.
AT_ONCE: dict[str, Way] = {
    **{name: in_place(change) for name, change in IN_PLACE.items()},
    "storage.copy_": lambda of: lambda n: of.weight.untyped_storage().copy_(noise().untyped_storage()),
    "storage.fill_": lambda of: lambda n: of.weight.untyped_storage().fill_(0x3C + n),
    "storage[i] = byte": lambda of: lambda n: _set_byte(of.weight.untyped_storage(), n),
    "typed storage[i] = x": lambda of: lambda n: _set_element(of.weight._typed_storage(), n),
    "typed storage.fill_": lambda of: lambda n: of.weight._typed_storage().fill_(n),
    "apply_": in_place(_apply),
    "map_": in_place(_map),
    "map2_": in_place(_map_two),
    "set_": in_place(lambda w, n: torch.empty(0).set_(w.detach()).add_(n)),
    "set_ by keyword, one element": in_place(lambda w, n: _set_one(torch.empty(0).set_(source=w.detach()), n)),
    "map2_ of data, one element": in_place(lambda w, n: _map_two(w.data, 2)),
    "data.add_": at_once(lambda of, n: of.weight.data.add_(n)),
    "data.copy_": at_once(lambda of, n: of.weight.data.copy_(noise())),
    "data[i, j] = x": at_once(lambda of, n: _set_one(of.weight.data, n)),
    "row.zero_": in_place(lambda w, n: w[n].zero_()),
    "column of data": at_once(lambda of, n: of.weight.data[:, n].fill_(n)),
    "split": in_place(lambda w, n: w.split(4)[n].fill_(n)),
    "diagonal": in_place(lambda w, n: w.diagonal().fill_(n)),
    "replaced": at_once(_replaced),
    "deleted and set": at_once(_deleted_and_set),
    "set in the dictionary": at_once(_set_in_the_dictionary),
    "register_parameter": at_once(lambda of, n: of.register_parameter("weight", nn.Parameter(noise()))),
    "data = x": at_once(_set_data),
    "data = x by a method taken before": at_once(_set_data_by_a_method_taken_before),
    "data = x, and back": at_once(_set_data_and_back),
    "swap_tensors": at_once(_swapped),
    "data exchanged with another's": at_once(_contents_exchanged),
    "reset_parameters": at_once(lambda of, n: of.reset_parameters()),
    "by float64": at_once(_by_float64),
    "by float16": at_once(_by_float16),
    "left in float16": at_once(_left_in_float16),
    "by the meta device": at_once(_by_the_meta_device),
    "_apply": at_once(lambda of, n: of._apply(lambda one: one + n)),
    "_apply in place": at_once(lambda of, n: of._apply(lambda one: one.add_(n))),
    "apply": at_once(lambda of, n: of.apply(lambda one: one.weight.data.add_(n))),
    "swapped on conversion": at_once(
        partial(_on_conversion, switch=torch.__future__.set_swap_module_params_on_conversion)
    ),
    "overwritten on conversion": at_once(
        partial(_on_conversion, switch=torch.__future__.set_overwrite_module_params_on_conversion)
    ),
    "load_state_dict": at_once(lambda of, n: of.load_state_dict(_noise_state(of))),
    "load_state_dict(assign=True)": at_once(lambda of, n: of.load_state_dict(_noise_state(of), assign=True)),
    "load_state_dict(strict=False)": at_once(lambda of, n: of.load_state_dict({"weight": noise()}, strict=False)),
    "state_dict, fresh": at_once(lambda of, n: write(of.state_dict()["weight"], n)),
    "storage emptied": at_once(_storage_emptied),
    "storage grown": at_once(_storage_grown),
    "requires_grad toggled": at_once(_toggled),
    "frozen": at_once(_frozen),
    "version kept": at_once(_without_a_version),
    "version kept, one element": at_once(_one_element_without_a_version),
    "version set back": at_once(_version_set_back),
    "version set back after use": at_once(_version_set_back_after_use),
    "custom operator": at_once(_custom_operator),
    "custom function": at_once(_custom_function),
    "script": at_once(_script),
    "pruned": at_once(_pruned),
    "pruned and removed": at_once(_pruned_and_removed),
    "parametrized and removed": at_once(_parametrized_and_removed),
    "vector_to_parameters": at_once(_from_a_vector),
    "restored in place": _restored_in_place,
    "by a thread": _by_a_thread,
}

#: Ways that prepare something, perhaps long before they change the weight.
PREPARED: dict[str, Way] = {
    **{f"alias: {name}": partial(through, take) for name, take in ALIASES.items()},
    "state_dict, held": _through_state_dict,
    "state_dict(keep_vars=True), held": partial(_through_state_dict, keep_vars=True),
    "storage.copy_, held": partial(_through_storage, change=lambda held, n: held.copy_(noise().untyped_storage())),
    "storage.fill_, held": partial(_through_storage, change=lambda held, n: held.fill_(0x3C + n)),
    "storage[i] = byte, held": partial(_through_storage, change=_set_byte),
    "typed storage[i] = x, held": partial(_through_storage, change=_set_element, typed=True),
    "tied": _tied,
    "gradient hook": partial(_in_a_graph_of_hooks, hook=lambda w, write: w.register_hook(lambda grad: write())),
    "post-accumulate hook": partial(
        _in_a_graph_of_hooks, hook=lambda w, write: w.register_post_accumulate_grad_hook(lambda one: write())
    ),
    "forward pre-hook": _by_a_forward_hook,
    "from_numpy": _from_numpy,
    "from_dlpack of an array": _from_dlpack,
    "frombuffer of bytes": _from_bytes,
    "half of a tensor": _half_of_a_tensor,
    "given as data": _as_data,
    "memmap": _memmap,
    "file mapped twice": partial(_file, change=_map_again),
    "file written": partial(_file, change=_write_the_file),
    "shared with a process": _shared,
    "mapped checkpoint": _mapped_checkpoint,
    "AveragedModel": _averaged,
    "average swapped in and out": _average_swapped_in_and_out,
    "optimizer in the backward": _in_the_backward,
    **{f"step: {name}": partial(steps, make) for name, make in OPTIMIZERS.items()},
}

WAYS = {**AT_ONCE, **PREPARED}

#: One or two of each sort, where all of them would take too long.
MAIN = (
    *("add_", "copy_", "w[i, j] = x", "set_", "_foreach_copy_", "init.normal_", "data.add_", "data[i, j] = x"),
    *("data = x", "replaced", "swap_tensors", "load_state_dict", "load_state_dict(assign=True)", "storage[i] = byte"),
    *("by float64", "version kept, one element", "version set back", "storage emptied", "alias: data", "alias: numpy"),
    *(
        "alias: from_dlpack",
        "alias: data_ptr",
        "alias: tensor of its storage",
        "alias: view",
        "state_dict, held",
        "tied",
    ),
    *(
        "kron, out",
        "from_numpy",
        "memmap",
        "shared with a process",
        "step: SGD",
        "step: AdamW, foreach",
        "step: Adam, fused",
    ),
    *("step: OldStyle", "step: OneElement", "step: LBFGS", "by a thread", "map_"),
    *("_fused_sgd_, one element", "foreign function"),
)

#: Pointers. One that was taken before convert is known to nobody: a write through it is seen by the values that are
#: compared, a write of any other single element is not (docs/weights.md).
POINTERS = frozenset(f"alias: {name}" for name in ALIASES if name.startswith(("data_ptr", "address")))
