"""The C++ core: signatures and docstrings of its functions and classes for the Python layer. Nothing here is public."""

import types
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

# ---- kernels ----
def kernels_cast(
    array: NDArray[Any],
    dtype: np.dtype[Any],
    out: NDArray[Any] | None = None,
    threads: int | None = None,
    path: str | None = None,
) -> NDArray[Any]:
    """For tests ``path`` names the instruction set; then the number of threads is obeyed literally."""

def kernels_multiply(
    input: NDArray[np.uint16],
    weight: NDArray[np.uint16],
    bias: NDArray[Any] | None,
    result: NDArray[Any],
    path: str,
    is_float16: bool = False,
    threads: int = 1,
    inner_first: bool = False,
) -> None:
    """For tests. All arrays hold bits of bfloat16 or float16; `bias` and `result` may be float32. The weight is
    [outer][inner], or [inner][outer] if `inner_first`. `path` is one of kernels_paths()."""

def kernels_multiplies_bfloat16() -> bool:
    """True if the instruction set in use multiplies bfloat16."""

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

class LogDestination:
    """A destination of the cast log, for log_back_to()."""

def log_destination() -> LogDestination | None: ...
def log_back_to(destination: LogDestination | None) -> None: ...
def log_flush() -> None: ...
def printable(text: str) -> str:
    """Returns the text with terminal controls and line ends spelled out, as in the log."""

#: The rows of ``src/rules/decision.hpp``: the rule, whether casts are off, the finding, the meaning, and when.
reasons: dict[str, tuple[str, bool, str, str, str]]
precisions: tuple[str, ...]

def _log_operation(representation: str, operation: str, precision: int, reason: int, casts: int) -> None:
    """For tests."""

def _log_event(text: str) -> None:
    """For tests."""

# ---- engine ----
class Castable:
    """The arguments of an operation that may be cast. Sets of positions are bit masks."""

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

#: The names of the traits that a rule may have.
traits: tuple[str, ...]

class Rule:
    """The rule of a policy for one operation."""

    def __init__(
        self,
        *,
        action: str,
        precision: str = "",
        why: str,
        traits: Sequence[str] = (),
        castable: Castable | None = None,
        target_keywords: tuple[str, ...] = (),
        sparse_gradient: tuple[str, int] | None = None,
        conditions: dict[str, Callable[..., Any]] = ...,
        product_form: str = "",
    ) -> None: ...

def set_products(
    multiplies_bf16: bool,
    multiplies_f16: bool,
    tracked: dict[str, Callable[..., Any]],
    widened: Callable[..., tuple[Any, ...]],
    with_rounded_gradient: Callable[..., Any],
) -> None:
    """Sets which precisions the processor multiplies, and functions: those that make products which autograd tracks, by
    form, and the two for results in float32 (see ProductSettings in src/engine/products.hpp)."""

def multiply(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, float32_result: bool
) -> torch.Tensor | None:
    """Returns the product of rows and a weight [outer][inner] in one lower precision, by our kernels, without autograd.
    Returns None if they do not take such tensors."""

def multiply_batches(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor | None:
    """Returns the products of matrices in one lower precision, as ``matmul`` does, in the same way. Returns None too if
    the processor has instructions for that precision."""

class Composite:
    """A Python function of torch that lists may cover. ``called`` does what its calls did before they came here."""

    def __init__(self, function: Any, called: Any, operation: str) -> None: ...
    def call(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any: ...

class Function:
    """A Python function that is called through the engine; ``shown`` is the one that the log names."""

    def __init__(self, function: Any, shown: Any, operation: str, rule: Rule) -> None: ...
    def call(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any: ...

def assumptions() -> list[tuple[str, str, str, str, str]]:
    """Returns the core's ledger: name, what is assumed, the check, the fallback, state."""

def bind_torch() -> None: ...
def set_autocast_of_accelerator(function: Callable[[torch.Tensor], int | None], /) -> None:
    """Sets the function that tells whether torch.autocast casts the inputs of products on the device of a tensor: the
    number of the device's type, -1 if it does not, None if the device is not torch's accelerator."""

def looks_inside() -> bool:
    """True if the core can find a tensor's memory and detect writes to it. Otherwise no cast is cached, and before
    torch 2.10 our kernels do not cast."""

def reader() -> str:
    """Returns how tensors are read: ``layout`` or ``attribute``."""

#: An object, what the log shows for it, the operation, the rule of the lists, the number of the line that made it, and
#: the rule while the lists are suspended.
_Planned = tuple[Any, Any, str, Rule, int, Rule]

def install(plan: list[_Planned], policy: object, *, within_modules: bool) -> None:
    """Replaces what is installed. With ``within_modules``, only calls inside these modules are lowered."""

def installed_policy() -> Any:
    """Returns what ``install`` was given and ``uninstall`` has not yet taken out of torch, or None."""

def observe(plan: list[_Planned], /) -> None:
    """Handles calls of these objects too, so that the watch sees them. They replace those of the previous call."""

def check_modules(call_impl: Any) -> None:
    """Raises if :func:`tap_modules` would, and changes nothing."""

def tap_modules(call_impl: Any) -> None:
    """Taps the calls of modules."""

def untap_modules() -> None: ...
def wait_for_modules(modules: list[Any] | None, /) -> None:
    """From now on the lists of :func:`install` apply in calls of these modules, or of all for None. The modules are not
    held: the caller must call again when one of them is gone."""

def stop_waiting_for_modules() -> None: ...
def convert_model_results(dtype: torch.dtype, holds: Callable[[Any], bool], convert: Callable[[Any], Any], /) -> None:
    """Makes tensors of this dtype float32 when the outermost module returns them. ``holds`` tells if an argument that
    is no tensor holds one, and ``convert`` converts a result that is none."""

def stop_converting_model_results() -> None: ...
def count_model_result(before: torch.Tensor, after: torch.Tensor, /) -> None: ...
def model_results() -> tuple[int, int]:
    """Returns the number of tensors that were converted so far, and the bytes of the new ones."""

def in_model() -> bool:
    """True in a call of an outermost module, if its results are converted."""

def exchange_in_model(in_model: bool) -> bool: ...
def follow_modules(follows: bool, /) -> None:
    """Makes the watch record which module's forward runs, or no longer."""

def count_calls(function: Any, during: Any, /) -> tuple[Any, int]:
    """Returns the result of ``during()``, and the number of calls of the function that reached its vectorcall slot."""

def watch_calls(watched: bool, /) -> None:
    """Sets if the watch sees calls begin and end."""

def guard_calls(
    found: Callable[[Any, str, tuple[Any, ...], dict[str, Any], Any, int, int], None] | None, share: float, /
) -> None:
    """Checks the results of this share of the calls, and calls ``found`` for those that are not finite or cannot be
    read: with what was called, the operation, the arguments, the result, and the worst values of the result and of the
    arguments before the call, as :func:`worst_value` returns them, or -1. If all calls are checked, also for each call
    that autograd tracks. None ends it."""

def worst_value(tensor: Any, whole: bool, /) -> int:
    """Returns 0 if all values are numbers, 1 if there are infinities, 2 if there is a NaN, 3 if the values cannot be
    read here. Reads samples of a large tensor unless ``whole`` is true."""

def worst_gradient(parameters: list[Any], /) -> int:
    """Returns the position of the first of these tensors whose gradient has a value that is not finite, or -1. Reads
    samples."""

def computes_gradient() -> bool:
    """True if this thread computes gradients. False if that is unknown."""

def observe_calls(observer: Callable[[Any, str, tuple[Any, ...], dict[str, Any]], Any] | None, /) -> None:
    """From now on calls this function for each call, with what was called, the operation and the arguments; its result
    is that of the call. Calls that it makes itself are made without it. None ends it."""

def make_observed_call() -> Any:
    """Makes the call for which the observer runs, as without an observer."""

def call_unseen(function: Callable[[], Any], /) -> Any:
    """Returns ``function()``. While there is a guard or an observer, its calls are made as they are written: none is
    seen, decided or counted."""

def observed_decision() -> tuple[str, str] | None:
    """Returns the precision and the reason of the call for which the observer runs, after it was made. None if nothing
    was decided."""

def guarded_largest() -> dict[str, float]:
    """Returns the largest magnitude of the checked results in float16, by operation."""

def forget_guarded_largest() -> None: ...
def set_watch(
    passed_over: tuple[str, ...],
    call_impl_code: types.CodeType | None,
    names: Callable[[Any, list[Any]], tuple[int, str, str]],
    traced_place: Callable[[], tuple[str | None, str, int, str | None] | None],
    mark: Callable[[Any], Any],
    took: Callable[..., None],
    /,
) -> None:
    """Sets what the watch needs to find the place of a call; called once: the beginnings of the names of files to pass
    over; the code of a module's call; functions that return the names of modules, and the place of traced code."""

def set_sensitive(operations: dict[str, int], /) -> None:
    """Sets the operations whose values the core checks while lines are watched, with numbers of Sensitivity
    (``src/watch/records.hpp``)."""

def notice_loss(tensor: Any, /) -> None:
    """Notes that a backward begins from this tensor."""

def begin_watch(lines: bool, nanoseconds_a_cast: float, nanoseconds_a_byte: float, /) -> None:
    """Records calls, with their lines or without. The times are estimates for casts that torch makes inside its
    operation."""

def stop_watch() -> None: ...
def reset_watch() -> None: ...
def watched_calls() -> list[dict[str, Any]]:
    """Returns, in order of first call: the fields of a row of the report, ``nanoseconds`` and ``cast_nanoseconds``;
    ``from``, [(number of the record that made an input, calls, casts)]."""

def watched_modules() -> list[tuple[str, str, int, int]]:
    """Returns (path, class, calls, nanoseconds) of each module."""

def watched_events() -> list[tuple[int, str | None, int, int, int]]:
    """Returns (record or -1, path of the module or None, begin, end, thread) of the last calls. Times are nanoseconds
    since 1970."""

def watch_sizes() -> dict[str, int]:
    """Returns how many ``codes``, ``places``, ``modules`` and ``records`` the watch holds. For tests."""

class RunningModule:
    """A module that runs within certain others."""

def running_module() -> RunningModule | None:
    """Returns the module whose forward runs here. For code that is handed over to run later."""

class Block:
    """Code that runs as a part of the module in which it was handed over, until ``leave``."""

    def leave(self) -> None: ...

def enter_block(module: RunningModule) -> Block: ...
def set_module_names(names: Callable[[Any, list[Any]], tuple[int, str, str]], /) -> None:
    """Sets the function that finds the place of a module among the modules around it."""

def forget_module_names() -> None:
    """Makes the places of all modules be found anew."""

def set_equivalent_functions(functions: dict[Any, Any]) -> None:
    """Sets functions that are equivalent to covered methods, and called instead of these for two plain tensors."""

#: The paths of the tapped builtins in `torch._C`, each with whether a release may lack it.
paths_of_builtins: tuple[tuple[str, bool], ...]

def tap_builtins(builtins: tuple[Any, ...], writers: tuple[Any, ...]) -> None:
    """Taps the builtins with these paths (None for one that is missing), and ``writers``, which write into their
    tensors without incrementing the version counters, or make tensors that share their memory but not these."""

def construction_begins(module: Any) -> None: ...
def set_recognised(
    steps: tuple[types.CodeType, ...],
    worker_namespace: dict[str, Any],
    made_of_lowered: Callable[[str, Any, Any], Any],
    autocast_entered: Callable[[str | None, bool], None],
    codes_of_regions: tuple[types.CodeType, ...],
    custom_fwd: types.CodeType,
    custom_fwd_asks: Callable[[], bool],
    custom_bwd_state: Callable[[], int | None],
    inside: tuple[str, ...],
    between: tuple[str, ...],
    through: tuple[str, ...],
    operator_found: Callable[[Any, str, str | None], tuple[Any, ...]],
) -> None:
    """`operator_found` takes what torch has looked up for an operator, its name, and the name of the overload, if any.
    It returns the builtins to tap as `writers`."""

def set_devices_of_regions(device_types: tuple[str, ...] | None) -> None:
    """Regions of torch.autocast for other device types have no effect from now on; None: all have one."""

def install_in_disabled_regions(regions: int) -> None:
    """Sets the number of regions of torch.autocast that this thread is in. None of them is enabled."""

def uninstall() -> None: ...
def installed_count() -> int: ...
def change_count() -> int:
    """Returns how often rules were installed in torch. It shows if a call that raised has changed anything."""

def counts() -> list[tuple[str, str, str, str, int, int, int, int, int]]:
    """Returns (operation, representation, precision, reason, number of the line that decided or 0, calls, casts, bytes,
    casts of weights that no cache saves) of each row."""

def reset_counts() -> None: ...
def lower_updates() -> int:
    """Returns the number of calls that wrote values in lower precision into a weight in float32."""

def buffer_count() -> int:
    """Returns the number of casts of activations whose memory is kept for the next ones."""

def keep_blocks(from_bytes: int | None, most_waiting: int, /) -> None:
    """Makes casts of at least `from_bytes` bytes use memory blocks that wait for reuse, up to `most_waiting` bytes;
    None for no casts. Frees the blocks that wait now."""

def block_bytes_waiting() -> int: ...
def set_tracked_cast(function: Any) -> None:
    """Sets the function that makes a large cast tracked by autograd, from a tensor and a dtype. None: torch does it."""

def set_number_in_range(function: Any) -> None:
    """Sets the function that brings a tensor of one float32 value on another device than the CPU into a range, from the
    tensor and the largest value. None: the value is read."""

def cast_in_block(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """Returns a cast in such a block, if only the caller needs to see the cast. None if that is not possible."""

def forget_known(tensor: Any) -> None:
    """Drops the weak references to this tensor."""

def was_converted(tensor: Any) -> bool:
    """True if a method of a float32 tensor made this tensor, or one that shares its memory, in lower precision."""

def tap_state(set_function: Any, only_checks: bool, /) -> None:
    """Taps conversions by methods of tensors, and this function: `__setattr__` of `nn.Module`. With `only_checks` it
    raises if that is impossible, and changes nothing."""

def was_lowered(tensor: Any) -> bool:
    """True if this tensor shares memory with a living result that was lowered and that autograd does not track."""

def may_be_lowered_in_graph(tensor: Any) -> bool: ...
def unpatched_copy(builtin: Any) -> Any:
    """Returns an equivalent of this builtin function whose calls are not intercepted."""

disabled_flag: str
"""The device type whose autocast flag says that casts are disabled in a thread."""

def optimizer_step_begins() -> None: ...
def optimizer_step_ends() -> None: ...
def autocast_depth(increment: Callable[[], int], decrement: Callable[[], int]) -> int:
    """Returns how many regions of torch.autocast this thread is in, by the functions that count them."""

def call_without_casts_inside(function: Callable[[Any], Any], argument: Any) -> Any:
    """Calls a function with torch's own autocast off. The core may have turned that on for the surrounding call."""

def call_with_lists_suspended(function: Callable[[Any], Any], argument: Any) -> Any:
    """Calls a function with the lists suspended in this thread: only rules 2 to 4 apply."""

def call_compiled(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a compiled function: the lists are suspended in it, and operators of torch.ops are not cast."""

def call_writer(function: Callable[[Any], Any], argument: Any, written: list[Any]) -> Any:
    """Calls a function that writes to tensors. It increments their version counters before the writes, or never."""

def exchange_optimizer_steps(steps: int) -> int:
    """Sets how many optimizer steps this thread is in. Returns the previous number."""

def set_distributed_is_imported(imported: bool) -> None: ...
def set_exact_code(files: tuple[str, ...] | None, codes: tuple[types.CodeType, ...] | None) -> None:
    """Sets the code that the lists do not lower: the beginnings of the names of files, and code objects. ``files`` is
    None if there is no such code at all."""

def is_exact(code: types.CodeType) -> bool | None:
    """Returns whether the lists do not lower this code; None for code of torch that computes for its caller."""

def pass_on_exactness(code: types.CodeType, made: types.CodeType) -> None:
    """Makes code that a compiler has made from other code exact, if that was given as a code object."""

def exact_code_is_traced() -> int:
    """From now on the caller of this thread's operations is exact. Returns a number for `exact_code_was_traced`."""

def exact_code_was_traced(before: int) -> bool:
    """Ends that. Returns True if a list would have lowered one of the operations."""

def exact_rules() -> tuple[int, bool]:
    """Returns the number of a rule set, the lists that apply here without what they lower, and True if torch.compile
    can tell it from others."""

def living(kind: type[Any]) -> list[Any]:
    """Returns all objects of this class that the garbage collector knows, and lets no other thread run meanwhile."""

def current_region() -> int:
    """Returns the number of the region that this thread is in, or 0."""

def call_backward(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls the backward of an autograd function that is written in Python."""

def number_of_suspension() -> int:
    """Returns the number of the region in which the lists that apply here are suspended."""

def exchange_runs_again(runs_again: bool) -> bool:
    """Sets if this thread runs a block, without autograd, that a reentrant checkpoint will run again with it. Returns
    the former value."""

def current_state() -> int:
    """Returns everything in this thread that decides if there are casts, and by which rules."""

state_without_casts: int
"""The bits that are set in a state with casts off."""

def exchange_state(state: int) -> int:
    """Sets the state of this thread. Returns the previous one."""

def make_region(*, plan: list[_Planned], on_cpu: bool, name: str, after_tracked_cast: Any) -> int:
    """Returns the number of a region with these rules. Calls of what they cover are handled from then on; outside of
    regions they have no rule. ``after_tracked_cast`` is called with the result of each lowered call that autograd
    tracks."""

def make_module_rules(lists: int, changes: list[_Planned], name: str, /) -> tuple[int, bool]:
    """Returns the number of a rule set: the lists with these changes. Also returns whether torch.compile can tell it
    from others. ``lists`` is the number of a region, 0 for convert's lists, or -1 for these where ``within`` does not
    apply them."""

def put_rules_in_modules(
    resolver: Callable[[list[Any], int], int] | None,
    judge: Callable[[list[Any], int, Any], None] | None,
    /,
) -> None:
    """Makes the rules depend on the running module, or no longer for None. ``resolver`` is called when a module is
    first called within certain others, with the objects of the module and of those around it, from the innermost
    outwards, and the number of the lists. It returns the number of a rule set, or 0. ``judge`` is called when the first
    call of an outermost module returns, with the same and the weights that were used, if it was not traced: the
    operation, the Parameter, the modules that ran, and the number of the rule set."""

class TracedCall:
    """A call of a module that a compiler traces. The module counts as running until ``leave``."""

    def __init__(self, module: Any) -> None: ...
    def leave(self) -> None: ...
    def judged(self, result: Any) -> Any: ...
    @property
    def region(self) -> int:
        """The number of the region in which the call runs, or -1 if it is the current one."""

    @property
    def is_outermost(self) -> bool:
        """True if what the call returns is converted."""

def region_mark(number: int) -> int:
    """Returns the number of the dtype by which torch.compile sees the region."""

def exchange_traced_graph(graph: int, /) -> int:
    """Sets the graph for which this thread collects its calls instead of counting them: 0 for none, 1 for calls that
    never count. Returns the former one."""

def count_traced(graph: int, /) -> None:
    """Counts the calls that were collected for a graph."""

def region_is_put_in(number: int) -> bool:
    """True if everything that the region needs is covered."""

def put_in_region(number: int) -> None:
    """Covers again what the region needs."""

def enter_region(owner: Any, number: int, inside: str | None = None) -> bool:
    """Begins the region of this number in this thread, or for 0 one without casts. Returns False, and begins none, if
    what the region needs was removed from torch. ``inside``: the name of the function that runs without casts, for the
    report."""

def leave_region(owner: Any) -> None:
    """Ends the last region that this owner began in this thread. Raises RuntimeError if there is none."""

def leave_if_open(owner: Any) -> None:
    """The same, and nothing if there is none."""

def enter_process_block(block: Any) -> None:
    """Counts up ``block.entrances`` and calls ``block.settle()``. After an error it counts down and calls it again."""

def leave_process_block(block: Any, *error: object) -> None:
    """Counts down and calls ``block.settle()``, after an error once more."""

def casts_are_made_here() -> bool: ...
def lists_apply_here() -> bool:
    """True if casts are on in this thread, and lists apply: a region's, or convert's."""

def set_region_device(
    device_type: str, device: int, dtypes: tuple[Any, ...], set_autocast_enabled: Any, set_autocast_dtype: Any
) -> None:
    """Sets the region dtype, by which torch.compile sees the number of a thread's region: the device type that has it
    as its autocast dtype, the type's number in torch or -1, the dtypes by region number (the first one, torch's
    default, stands for no region), and torch's functions that set the flag and the dtype."""

def set_in_child_process() -> None: ...
def can_cover(object: Any) -> bool:
    """True if the engine can handle the object's calling convention."""

# ---- weights ----
def weights_configure(
    on: bool,
    view: Any = None,
    recorded: Any = None,
    most_bytes: int | None = None,
    least_part: int = 0,
    least_tracked: int = 0,
    accelerator_of: Callable[[torch.Tensor], int] | None = None,
    free_memory: Callable[[int], int] | None = None,
    wait_for_stream: Callable[[torch.Tensor, int], None] | None = None,
) -> None:
    """Sets whether casts of weights are cached, and the most bytes of them; None: half of the free memory. `view` is
    ``aten::_unsafe_view``, not intercepted. `recorded` makes the cast of a large weight a part of autograd's graph. A
    view of a weight with fewer than `least_part` elements is cast by itself; a weight with fewer than `least_tracked`
    elements is cast by torch if autograd tracks it. The last three are what the core asks of a weight's accelerator."""

def weights_doubt_all() -> None:
    """All casts are made again before their next use, since code may have written to any weight."""

def weights_capture_begins() -> None:
    """No cast of a weight on an accelerator is taken from the cache until the end: they become a part of the graph."""

def weights_capture_ends() -> None: ...
def is_capturing() -> bool: ...
def current_stream(device: int, /) -> int | None:
    """Returns the number of the current stream of a device of torch's accelerator; None if it is unknown."""

def weights_set_root_of_memory_files(root: str) -> None:
    """For tests: sets the root of the system's files about free memory. An empty string stands for the real files."""

def weights_free_memory() -> int:
    """Returns the bytes that this process may still take, by the system, its control group and its own limits."""

def weights_tap(methods: dict[str, Any]) -> None:
    """Taps the methods that give other code access to a weight's memory, or that write without incrementing the
    version counter, by their names; None stands for one that this torch lacks."""

def weights_untap() -> None: ...
def is_cached_memory(tensor: Any) -> bool:
    """True if this tensor has the memory of a cached cast."""

def weights_forget(weight: Any) -> None: ...
def weights_cast(weight: Any, dtype: Any, /) -> None:
    """Caches the cast of a weight, if it can be cached and is not yet."""

def weights_statistics() -> dict[str, Any]: ...
def weights_reset_statistics() -> None: ...
