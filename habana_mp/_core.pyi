"""The C++ core. Signatures and docstrings of what it offers to the Python layer; nothing here is public."""

import types
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

# ---- kernels ----
def kernels_cast(
    array: NDArray[Any], dtype: np.dtype[Any], out: NDArray[Any] | None = None, threads: int | None = None
) -> NDArray[Any]: ...
def kernels_cast_with(
    array: NDArray[Any],
    dtype: np.dtype[Any],
    out: NDArray[Any] | None,
    threads: int | None,
    path: str,
    stream: bool,
) -> NDArray[Any]:
    """For tests: obeys path, threads and stream literally."""

def kernels_cast_many(
    sources: Sequence[NDArray[Any]], outs: Sequence[NDArray[Any]], threads: int | None = None
) -> None: ...
def kernels_cast_many_with(
    sources: Sequence[NDArray[Any]], outs: Sequence[NDArray[Any]], threads: int | None, path: str, stream: bool
) -> None:
    """For tests: obeys path, threads and stream literally."""

def kernels_cast_stochastically(
    array: NDArray[Any],
    dtype: np.dtype[Any],
    seed: int,
    out: NDArray[Any] | None = None,
    threads: int | None = None,
    path: str | None = None,
) -> NDArray[Any]:
    """`path` is for tests."""

def kernels_can_multiply() -> bool:
    """Are there kernels here for products with weights?"""

def kernels_arrange(weight: NDArray[np.uint16], threads: int, inner_first: bool = False) -> NDArray[np.uint16]:
    """For tests, as the next one: the bits of a bfloat16 weight in these kernels' order. Of an `inner_first` one the
    columns are what a linear layer has for rows."""

def kernels_multiply(
    input: NDArray[np.uint16],
    arranged: NDArray[np.uint16],
    bias: NDArray[np.uint16] | None,
    result: NDArray[np.uint16],
    order: str,
    block: int,
    threads: int,
) -> None:
    """`order` is one of those of kernels_orders(); of "lanes" the block says nothing."""

def kernels_orders() -> list[str]:
    """In which orders kernels here can sum: of "pairs", "lanes", "tiles" and "tiles by FMA", which are the same sums.
    Where the processor has tiles, the operating system is asked for the leave to use them."""

def kernels_path() -> str: ...
def kernels_paths() -> list[str]: ...

# ---- log ----
def log_to(
    kind: Literal["console", "file", "json", "python"],
    target: object = None,
    *,
    append: bool = False,
    explains: bool = False,
) -> None: ...
def log_off() -> None: ...

class LogDestination:
    """Where the cast log went, to be given back."""

def log_destination() -> LogDestination | None: ...
def log_back_to(destination: LogDestination | None) -> None: ...
def log_flush() -> None: ...
def printable(text: str) -> str:
    """The text with what controls a terminal or ends a line spelled out, as in the log."""

#: Words of reasons, and what they mean.
reasons: dict[str, str]

def _log_operation(representation: str, operation: str, precision: int, reason: int, casts: int) -> None:
    """For tests."""

def _log_event(text: str) -> None:
    """For tests."""

# ---- optim ----
class StepPlan:
    """Which weights of an optimizer's group the core can step, once. What gets other memory before is left out."""

    def __init__(
        self,
        *,
        params: list[Any],
        grads: list[Any],
        states: list[list[Any]],
        steps: list[Any],
        lowers: list[Any],
        writes_grads: bool,
    ) -> None: ...
    @property
    def left_out(self) -> list[int]:
        """The places of the weights that it cannot."""

    @property
    def changed(self) -> list[int]:
        """After the step: the places of those among them that it could have stepped as they were before."""

    @property
    def lowered(self) -> list[int]:
        """The places of the weights whose lower tensors will be written too."""

    def adam(
        self,
        *,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        decoupled: bool,
        maximize: bool,
        corrects: bool,
        grad_scale: float | None,
    ) -> None: ...
    def adagrad(self, *, lr: float, lr_decay: float, weight_decay: float, eps: float, maximize: bool) -> None: ...
    def lamb(
        self,
        *,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        grad_scale: float,
        decoupled: bool,
        corrects: bool,
        averages_gradient: bool,
        adapts: bool,
    ) -> None: ...
    def sgd(
        self,
        *,
        lr: float,
        momentum: float,
        dampening: float,
        weight_decay: float,
        nesterov: bool,
        maximize: bool,
        grad_scale: float | None,
        begins: list[bool],
        lars_factor: float = ...,
        lars_eps: float = ...,
        lars: list[bool] = ...,
    ) -> None: ...

# ---- engine ----
class Castable:
    """Which arguments of an operation may be cast; sets of positions are bit masks."""

    def __init__(
        self,
        *,
        positions: int,
        kept_keywords: tuple[str, ...],
        raised_positions: int,
        raised_keywords: tuple[str, ...],
        off_cpu_positions: int,
        off_cpu_keywords: tuple[str, ...],
    ) -> None: ...

class Rule:
    """What a policy says of one operation."""

    def __init__(
        self,
        *,
        action: str,
        precision: str = "",
        why: str = "",
        traits: Sequence[str] = (),
        castable: Castable | None = None,
        target_keywords: tuple[str, ...] = (),
        sparse_gradient: tuple[str, int] | None = None,
        questions: dict[str, Callable[..., Any]] = ...,
        packs: str = "",
        terms: tuple[str, int] | None = None,
    ) -> None: ...

class Composite:
    """A Python function of torch's that lists may cover; ``called`` is what it did before its calls came here."""

    def __init__(self, function: Any, called: Any, operation: str) -> None: ...
    def call(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any: ...

class Function:
    """A Python function that is called through the engine; ``shown`` is the one that the log names."""

    def __init__(self, function: Any, shown: Any, operation: str, rule: Rule) -> None: ...
    def call(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any: ...

accelerators: tuple[str, ...]
"""Those of src/accel that this build has; what belongs to another one is missing here."""

def assumptions() -> list[tuple[str, str, str, str, str]]:
    """The core's ledger: name, what is assumed, how it is checked, what happens otherwise, state."""

def symbols() -> list[tuple[str, bool]]:
    """Functions of torch's libraries by name, and whether torch's headers declare them as they are called."""

def bind_torch() -> None: ...
def reads_flags_in_place() -> bool:
    """Are the flags of torch's dispatcher read in its memory, without calling a function of torch's?"""

def looks_inside() -> bool:
    """Can it be told where a tensor's memory lies and whether anybody has written to it? Else no cast is kept, nor do
    our kernels cast or step before torch 2.10."""

def reader() -> str:
    """How tensors are read: ``layout``, ``dlpack`` or ``attribute``."""

def install(plan: list[tuple[Any, Any, str, Rule, Rule]], *, within_modules: bool) -> None:
    """Replace what is installed: (object, what the log shows for it, operation, rule of the lists, rule where the lists
    are silent). With ``within_modules`` nothing is lowered but in the calls of modules that are watched."""

def observe(plan: list[tuple[Any, Any, str, Rule, Rule]], /) -> None:
    """Answer calls of these objects too, so that the watch sees them; in place of those that were given before."""

def check_modules(call_impl: Any) -> None:
    """Raise where :func:`watch_modules` would, and change nothing."""

def watch_modules(call_impl: Any, answering: Any, modules: list[Any] | None) -> None:
    """In calls of these modules, or of any, the lists of :func:`install` speak from now on. The modules are not held:
    whoever gives them says so when one has gone. Calls are answered by ``answering``: ``call_impl``, or a function with
    the code that it had."""

def stop_watching_modules() -> None: ...
def follow_modules(call_impl: Any, answering: Any, /) -> None:
    """Make the watch record which module's forward runs."""

def stop_following_modules() -> None: ...
def count_calls(function: Any, answering: Any, during: Any, /) -> tuple[Any, int]:
    """What ``during()`` returns, and how many calls of the function reached its vectorcall slot meanwhile."""

def call_by_slot(function: Any, answering: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], /) -> Any:
    """Call the function by its vectorcall slot while it is watched, else ``answering``."""

def watch_calls(watched: bool, /) -> None:
    """Is the watch to see calls begin and end?"""

def set_watch(
    passed_over: tuple[str, ...],
    compilers: tuple[str, ...],
    call_impl_code: types.CodeType | None,
    names: Callable[[Any, list[Any]], tuple[int, str, str]],
    traced_place: Callable[[], tuple[str | None, str, int, str | None] | None],
    /,
) -> None:
    """What begins the names of files that are passed over, and of those that trace; the code of a module's call; how
    modules are called, and where what is traced comes from. To be called once."""

def set_sensitive(angles: Collection[str], counts: Collection[str], statistics: Collection[str], /) -> None:
    """While lines are watched, the core looks at the inputs of these operations: at angles, at whole numbers, and at
    running statistics."""

def notice_loss(tensor: Any, /) -> None:
    """A backward begins from this tensor."""

def begin_watch(lines: bool, nanoseconds_a_cast: float, /) -> None:
    """Record calls, with their lines or not; a cast that torch makes within its operation is taken to cost so much,
    besides what its values cost."""

def stop_watch() -> None: ...
def reset_watch() -> None: ...
def watched_calls() -> list[dict[str, Any]]:
    """In order of first call: the fields of a row of the report, ``nanoseconds``
    and ``cast_nanoseconds``; ``from``, [(number of the record that made an input, calls, casts)]."""

def watched_modules() -> list[tuple[str, str, int, int]]:
    """(path, class, calls, nanoseconds)"""

def watched_events() -> list[tuple[int, str | None, int, int, int]]:
    """(record or -1, path of the module or None, begin, end, thread) of the last calls; times in nanoseconds since
    1970"""

def watch_sizes() -> dict[str, int]:
    """How many ``codes``, ``places``, ``modules`` and ``records`` the watch has: for tests of what is kept."""

def running_module() -> int:
    """The number of the module whose forward runs here, or -1: for code that is given away to run later."""

class Block:
    """Code that was given away in the module of that number, and runs now, until it leaves."""

    def __init__(self, module: int) -> None: ...
    def leave(self) -> None: ...

def follow_greenlets(settrace: Callable[[Any], Any], gettrace: Callable[[], Any], /) -> None:
    """Give each greenlet a state of its own, by these functions of the module greenlet."""

def leave_greenlets() -> None: ...
def begins_to_speak(module: Any) -> bool:
    """Would a call of this module, made here, be one in which the lists begin to speak?"""

def number_of_modules() -> int:
    """Of the region that a watched module's call is."""

def set_function_twins(twins: dict[Any, Any]) -> None:
    """Functions that are called instead of methods that are covered, where these are called with two plain tensors."""

def watch_builtins(
    autocast_set_enabled: Any,
    autocast_set_dtype: Any,
    autocast_increment_nesting: Any,
    autocast_decrement_nesting: Any,
    module_constructed: Any,
    make_subclass: Any,
    is_autocast_enabled: Any,
    to_dlpack: Any,
    to_dlpack_versioned: Any,
    data_address: Any,
    set_version_counter: Any,
    find_operator: Any,
    find_overload: Any,
    writers: tuple[Any, ...],
) -> None:
    """`writers` write into their tensors without counting the versions up, or make tensors that share their memory and
    not their version."""

def construction_begins(module: Any) -> None: ...
def set_recognised(
    steps: tuple[types.CodeType, ...],
    worker_namespace: dict[str, Any],
    made_of_lowered: Callable[[str, Any, Any], Any],
    autocast_entered: Callable[[], None],
    codes_of_regions: tuple[types.CodeType, ...],
    custom_fwd: types.CodeType,
    custom_fwd_asks: Callable[[], bool],
    custom_bwd_state: Callable[[], int | None],
    inside: tuple[str, ...],
    between: tuple[str, ...],
    through: tuple[str, ...],
    operator_found: Callable[[Any, str, str | None], tuple[Any, ...]],
    module_calls: types.CodeType | None,
) -> None:
    """`module_calls` is the code of a module's call. `operator_found` takes what torch has looked up for an operator,
    its name, and the overload's where there is one; it returns the builtins that are to be watched as `writers`."""

def install_in_disabled_regions(regions: int) -> None:
    """This thread is in so many regions of torch.autocast, none of which is enabled."""

def uninstall() -> None: ...
def installed_count() -> int: ...
def change_count() -> int:
    """How often rules have been put into torch: of a call that raised it tells whether it had changed anything."""

def counts() -> list[tuple[str, str, str, str, int, int, int, int]]:
    """(operation, representation, precision, reason, calls, casts, bytes, casts of weights too small to be kept)"""

def reset_counts() -> None: ...
def buffer_count() -> int:
    """How many casts of activations are kept as memory for the next ones."""

def keep_blocks(from_bytes: int | None, most_waiting: int, /) -> None:
    """Casts of so many bytes get blocks of memory that wait for the next one, up to so many bytes; None for no casts.
    What waits now is given back."""

def block_bytes_waiting() -> int: ...
def set_recorded_cast(function: Any) -> None:
    """What makes a large cast in autograd's graph, called with a tensor and a dtype; None to leave them to torch."""

def cast_in_block(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """A cast that nobody has to see, in such a block; None where that is not possible."""

def set_hook(
    dictionary: dict[int, Any],
    key: int,
    hook: Callable[..., Any] | None,
    caller: types.CodeType | None,
    called: str,
) -> bool:
    """Put a hook into a dictionary of torch's, or take it out. False, and nothing done, while another thread runs
    `caller`, which goes through the dictionary, outside of the function that its variable `called` names."""

def set_skips_slower(on: bool) -> None:
    """Switch on or off that calls are left as written where that is faster; forgets what was measured."""

def assume_that_lowering_pays(answer: int) -> None:
    """What every measurement is to say, for tests: 1 yes, 0 no, -1 what is measured."""

def forget_known(tensor: Any) -> None:
    """Drop the weak references to this tensor."""

def was_computed_from_kept(tensor: Any, /) -> bool:
    """True for the result of arithmetic in a lower precision on what a module keeps in one as an attribute."""

def was_converted(tensor: Any) -> bool:
    """True if a method of a float32 tensor made this tensor, or one that shares its memory, in lower precision."""

def check_state(set_attribute: Any) -> None:
    """Raise where :func:`watch_state` would."""

def watch_state(set_attribute: Any) -> None:
    """Watch conversions by methods of tensors, and `nn.Module.__setattr__`."""

def follow_module_tensors(on: bool) -> None:
    """From now on arithmetic on tensors of modules alone is not lowered where autograd does not track it."""

def module_tensors_are_followed() -> bool: ...
def remember_module_tensor(object: Any) -> None:
    """Note a tensor of a module, where they are followed. Does nothing with any other object."""

def was_lowered(tensor: Any) -> bool:
    """True if this tensor shares memory with a living result that was lowered and that autograd does not track."""

def may_be_lowered_in_graph(tensor: Any) -> bool: ...
def untouched_twin(builtin: Any) -> Any:
    """A builtin function like this one that nobody answers for."""

def is_covered(object: Any) -> bool: ...

disabled_flag: str
"""The device type whose autocast flag says that casts are disabled in a thread."""

def optimizer_step_begins() -> None: ...
def optimizer_step_ends() -> None: ...
def autocast_depth(increment: Callable[[], int], decrement: Callable[[], int]) -> int:
    """How many regions of torch.autocast this thread is in, by the functions that count them."""

def call_without_casts_inside(function: Callable[[Any], Any], argument: Any) -> Any:
    """Call it with torch's own autocast off that the core may have turned on for the call that this one is within."""

def call_silently(function: Callable[[Any], Any], argument: Any) -> Any:
    """Call a function with the lists silent in this thread: rules 2 to 4 speak."""

def call_compiled(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function that was compiled: the lists are silent, and operators of torch.ops are not cast in it."""

def call_writer(function: Callable[[Any], Any], argument: Any, written: list[Any]) -> Any:
    """Call a function that counts the versions of the tensors that it writes up before it writes, or not at all."""

def exchange_optimizer_steps(steps: int) -> int:
    """Set how many optimizer steps this thread is in; what it was."""

def set_distributed_is_imported(imported: bool) -> None: ...
def set_exact_files(files: tuple[str, ...] | None) -> None:
    """What the names of files begin with whose code is not lowered by lists."""

def current_region() -> int:
    """The number of the region that this thread is in, 0 for none."""

def call_backward(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call what is the backward of a function written in Python."""

def number_of_silence() -> int:
    """Of the region in which the lists that speak here are silent."""

def current_state() -> int:
    """All that decides in this thread whether and by what rules there are casts."""

state_without_casts: int
"""What is set in a state with casts off."""

def exchange_state(state: int) -> int:
    """Set all that; what it was."""

def make_region(
    *, plan: list[tuple[Any, Any, str, Rule, Rule]], on_cpu: bool, name: str, after_recorded_cast: Any
) -> int:
    """The number of a region with these rules. What they cover is answered from then on, and without a rule outside of
    regions. ``after_recorded_cast`` is called with the result of each lowered call that autograd records."""

def region_is_put_in(number: int) -> bool:
    """Is all that a region needs covered?"""

def put_in_region(number: int) -> None:
    """Cover again what a region needs."""

def enter_region(owner: Any, number: int) -> bool:
    """Begin the region of this number in this thread, or with 0 one without casts. False, and nothing begun, where
    what it needs has been taken out of torch."""

def leave_region(owner: Any) -> None:
    """End the last region that this owner began in this thread."""

def casts_are_made_here() -> bool: ...
def lists_speak_here() -> bool:
    """Are casts on in this thread, and are there lists: a region's, or convert's?"""

def set_region_mark(
    device_type: str, device: int, dtypes: tuple[Any, ...], set_autocast_enabled: Any, set_autocast_dtype: Any
) -> None:
    """The device type whose autocast dtype tells torch.compile the number of a thread's region, the type's own number
    in torch or -1, the dtypes by number (the first, torch's own, stands for no region), and torch's functions that set
    both."""

def set_in_child_process() -> None: ...
def can_cover(object: Any) -> bool:
    """Is the object's calling convention one that the engine can answer?"""

# ---- weights ----
def weights_configure(
    on: bool, view: Any, recorded: Any, most_bytes: int | None, least_part: int, least_recorded: int
) -> None:
    """Keep casts of weights or not, and how many bytes of them; None: half of the memory that is free. `view` is
    ``aten::_unsafe_view``, untouched; `recorded` makes the cast of a large weight a part of autograd's graph; a view of
    a weight with fewer elements than `least_part` is cast by itself, and a weight with fewer than `least_recorded` by
    torch where that records it."""

def weights_set_root_of_memory_files(root: str) -> None:
    """For tests: the files of the system that tell how much memory is free are read below this directory. An empty one
    stands for the real files."""

def weights_free_memory() -> int:
    """The bytes that this process may still take, by the system, its control group and its own limits."""

def weights_watch(
    methods: dict[str, Any],
    of_pointers: tuple[tuple[str, ...], tuple[str, ...]],
    of_arrays: tuple[tuple[str, ...], tuple[str, ...]],
) -> None:
    """Watch the methods by which a weight's memory gets into other hands, or that write without a new version.

    Args:
        of_pointers: What the names of modules begin with that do no harm with the pointers that they take, and of those
            that take them for whoever called.
        of_arrays: The same for arrays of NumPy.
    """

def weights_watch_exchange() -> None:
    """Watch DLPack's exchange API of C, which another library has just given to torch."""

def weights_may_watch_exchange() -> bool:
    """True if there is no such table, or one that may be written to."""

def weights_stop_watching() -> None: ...
def weights_renew(parameters: tuple[Any, ...], may_be_fresh: bool) -> None:
    """These weights were written to; with `may_be_fresh` some of their casts perhaps along with them."""

def weights_casts_to_write(parameters: list[Any]) -> list[Any]:
    """For each weight the kept cast that an optimizer may write along with it, or None."""

def weights_were_written(parameters: list[Any], casts: list[Any]) -> None:
    """These casts hold their weights' new values."""

def weights_set_packing(what: str, pack: Any, call: Any, plain: Any) -> None:
    """What an operation uses, named as in a rule's `packs`: the operators that pack a weight and compute with it, Nones
    where there are none, and torch's function untouched, None to switch it off."""

def weights_assume_packing(
    what: Literal["library", "panels", "panels in any order", "nothing", "measured"],
) -> None:
    """For tests: what weights are packed for, torch's library or our own kernels, instead of a measurement. In any
    order: also where our kernels give other bits than torch's function."""

def weights_are_kept_in(tensor: Any) -> bool:
    """Is this tensor's memory that of a cast which is kept?"""

def weights_forget(weight: Any) -> None: ...
def weights_statistics() -> dict[str, Any]: ...
def weights_reset_statistics() -> None: ...
