"""Functions that torch, and a few libraries, write in Python and that run without casts, or with something else than
they were given.

Some make weights, gradients, statistics or learning rates of other ones (rule 11). They run outside of an optimizer's
step and of a constructor, and write what they computed where it stays: averaged and fused weights, pruned ones, the
vectors of spectral norm, clipped gradients, what an observer has seen, a model that is loaded, adapters. Others prepare
data (rule 11 too), call a kernel that takes float32 and is no builtin (rule 8), are given a hook, or ask for dtypes
beforehand.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map

from habana_mp import _core
from habana_mp._composites import forwarding_code, full_name, untouched
from habana_mp._disable import disable_casts
from habana_mp._imports import WhenImported
from habana_mp._marks import lists_speak, silence

#: What makes state, by module: functions and methods; ``*.method`` stands for every class of the module that has such a
#: method of its own, ``*`` alone for every public function of it.
STATE: dict[str, tuple[str, ...]] = {
    "torch.nn.modules.module": ("Module.apply",),
    "torch.optim.swa_utils": ("AveragedModel.update_parameters",),
    "torch.optim.lr_scheduler": ("*.step", "*._initial_step"),
    "torch.nn.utils.fusion": ("fuse_conv_bn_weights", "fuse_linear_bn_weights"),
    "torch.nn.utils.parametrize": (
        "register_parametrization",
        "remove_parametrizations",
        "transfer_parametrizations_and_params",
        "ParametrizationList.right_inverse",
    ),
    "torch.nn.utils.parametrizations": ("_SpectralNorm.forward",),
    "torch.nn.utils.spectral_norm": ("SpectralNorm.apply", "SpectralNorm.compute_weight"),
    "torch.nn.utils.weight_norm": ("WeightNorm.apply", "WeightNorm.remove"),
    "torch.nn.utils.clip_grad": ("clip_grad_norm_", "_clip_grads_with_norm_", "_get_total_norm"),
    "torch.amp.grad_scaler": ("GradScaler.scale",),
    "torch.nn.utils.prune": ("BasePruningMethod.apply", "BasePruningMethod.remove"),
    "torch.ao.pruning.sparsifier.base_sparsifier": ("BaseSparsifier.step",),
    "torch.ao.pruning._experimental.data_sparsifier.base_data_sparsifier": ("BaseDataSparsifier.step",),
    "torch.ao.quantization._equalize": ("equalize",),
    "torch.signal.windows.windows": (
        *("bartlett", "blackman", "cosine", "exponential", "gaussian", "general_cosine", "general_hamming", "hamming"),
        *("hann", "kaiser", "nuttall"),
    ),
    "torch.ao.quantization.observer": ("*.forward", "*.calculate_qparams"),
    # A model that is loaded begins without memory, and computes its buffers after its constructor.
    "transformers.modeling_utils": (
        *("PreTrainedModel.from_pretrained", "PreTrainedModel.init_weights", "PreTrainedModel.resize_token_embeddings"),
    ),
    "peft.tuners.tuners_utils": (
        *("BaseTuner.inject_adapter", "BaseTuner.merge_adapter", "BaseTuner.unmerge_adapter"),
        "BaseTuner._unload_and_optionally_merge",
    ),
    "peft.peft_model": ("PeftModel.get_prompt_embedding_to_save",),
    "peft.tuners.lora.model": ("LoraModel.add_weighted_adapter",),
}

_TRANSFORMS = ("*.forward", "*.__call__", "*.get_params", "*.make_params")
_V2, _V2_FUNCTIONS = "torchvision.transforms.v2", "torchvision.transforms.v2.functional"
#: What prepares data, by module as above. Grids of positions are made there, and integers told by their dtype.
PREPARES_DATA: dict[str, tuple[str, ...]] = {
    **{f"torchvision.transforms.{name}": _TRANSFORMS for name in ("transforms", "autoaugment", "_presets")},
    "torchvision.transforms.functional": ("*",),
    **{
        f"{_V2}._{name}": _TRANSFORMS
        for name in ("augment", "auto_augment", "color", "container", "geometry", "misc", "transform")
    },
    **{
        f"{_V2_FUNCTIONS}._{name}": ("*",)
        for name in ("augment", "color", "deprecated", "geometry", "meta", "misc", "temporal", "type_conversion")
    },
}

#: What has a kernel for float32 only.
FLOAT32_ONLY: dict[str, tuple[str, ...]] = {
    "torch.ao.nn.quantized.dynamic.modules.linear": ("Linear.forward",),
    "torch.ao.nn.quantized.dynamic.modules.rnn": ("*.forward",),
    "torch.ao.nn.intrinsic.quantized.dynamic.modules.linear_relu": ("LinearReLU.forward",),
}

#: What other libraries compute to a tolerance, or add up to be compared: all of it in float32, a user's own code and
#: networks that run in there too. (Of some nothing else that they compute is lowered either: ``_places.py``.)
EXACT: dict[str, tuple[str, ...]] = {
    # Matrices that are factorised, and what stands beside them: of a network's features they are made in float32.
    "gpytorch.kernels.kernel": ("Kernel.__call__",),
    "gpytorch.lazy.lazy_evaluated_kernel_tensor": ("LazyEvaluatedKernelTensor._diagonal",),
    "gpytorch.means.mean": ("Mean.__call__",),
    "gpytorch.distributions.multivariate_normal": ("MultivariateNormal.__init__",),
    # Line searches, which end where two values are alike.
    "botorch.fit": ("fit_gpytorch_mll",),
    "botorch.optim.optimize": (
        *("optimize_acqf", "optimize_acqf_cyclic", "optimize_acqf_discrete", "optimize_acqf_discrete_local_search"),
        *("optimize_acqf_list", "optimize_acqf_mixed"),
    ),
    "botorch.optim.optimize_mixed": ("optimize_acqf_mixed_alternating",),
    # An adaptive solver makes its steps so short that an error in the last digits does not show.
    "zuko.utils": ("odeint", "AdaptiveCheckpointAdjoint.backward"),
    # Gradients of single examples, whose norm is what privacy is reckoned by.
    "opacus.grad_sample.grad_sample_module": ("*.capture_backprops_hook",),
    "opacus.grad_sample.grad_sample_module_fast_gradient_clipping": ("*.capture_backprops_hook",),
}

#: What gives such code what a network's layers have seen.
GIVES_FLOAT32: dict[str, tuple[str, ...]] = {
    "opacus.grad_sample.grad_sample_module": ("*.rearrange_grad_samples",),
}

#: What takes a method that is exact, and makes of it what an object has in its stead.
TAKES_EXACT: dict[str, tuple[str, ...]] = {"torchmetrics.metric": ("Metric._wrap_update", "Metric._wrap_compute")}

#: What makes state where it is switched on, and else calls what it was given.
SCALED_STEPS: dict[str, tuple[str, ...]] = {"torch.amp.grad_scaler": ("GradScaler.step",)}

#: What switches autocast off for a block if it asks and hears that autocast is on (rule 10).
PROTECTS: dict[str, tuple[str, ...]] = {"transformers.utils.generic": ("maybe_autocast",)}

#: What takes a hook of gradients.
TAKES_HOOKS: dict[str, tuple[str, ...]] = {
    "torch._tensor": ("Tensor.register_hook", "Tensor.register_post_accumulate_grad_hook"),
}

#: What keeps a module's hooks of its full backward: those of its inputs' gradients, and those of its outputs'.
KEEPS_HOOKS: dict[str, tuple[str, ...]] = {"torch.utils.hooks": ("BackwardHook.__init__",)}

#: What runs the backward of a function written in Python.
RUNS_BACKWARD: dict[str, tuple[str, ...]] = {"torch.autograd.function": ("BackwardCFunction.apply",)}

#: What takes a hook that packs the tensors which autograd saves, and one that unpacks them.
TAKES_PACKING: dict[str, tuple[str, ...]] = {"torch.autograd.graph": ("saved_tensors_hooks.__init__",)}

#: What the encoder layers ask before they leave their operations for a fused kernel. (It takes float32 as it is given,
#: and refuses mixed dtypes.)
ASKS_FOR_FUSED: dict[str, tuple[str, ...]] = {"torch.backends.mha": ("get_fastpath_enabled",)}

#: What takes nested tensors, by a fused kernel only.
TAKES_NESTED: dict[str, tuple[str, ...]] = {
    "torch.nn.modules.activation": ("MultiheadAttention.forward",),
    "torch.nn.modules.transformer": ("TransformerEncoderLayer.forward",),
}

#: What refuses an input of another dtype than the weights', unless torch.autocast is on.
COMPARES_DTYPES: dict[str, tuple[str, ...]] = {"torch.nn.modules.rnn": ("RNNBase.check_input",)}

#: What exchanges the insides of tensors, and refuses to where anybody refers to one of them weakly, as kept casts do.
EXCHANGES_TENSORS: dict[str, tuple[str, ...]] = {"torch.utils": ("swap_tensors",)}


def functions_of(module: types.ModuleType, names: tuple[str, ...]) -> Iterator[types.FunctionType]:
    """The functions of a module that these names mean, each once."""
    found: dict[int, types.FunctionType] = {}
    for name in names:
        owner, _, attribute = name.rpartition(".")
        owners: list[Any] = [module]
        if name == "*":
            public = [value for key, value in vars(module).items() if not key.startswith("_")]
            public = [one for one in public if isinstance(one, types.FunctionType)]
            found |= {id(one): one for one in public if one.__module__ == module.__name__}
        elif owner == "*":
            owners = [one for one in vars(module).values() if isinstance(one, type)]
            owners = [one for one in owners if one.__module__ == module.__name__]
        elif owner:
            owners = [getattr(module, owner, None)]
        for one in owners:
            value = getattr(one, "__dict__", {}).get(attribute)
            value = getattr(value, "__func__", value)  # of a class method
            # A class may have that of another module.
            if isinstance(value, types.FunctionType) and (owner != "*" or value.__module__ == module.__name__):
                found[id(value)] = value
    return iter(found.values())


_originals: dict[str, types.FunctionType] = {}


def without_casts(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of a function is exchanged for that makes state or prepares data."""
    if not lists_speak():  # those of data call one another
        return _originals[name](*arguments, **keywords)
    with disable_casts():
        return _originals[name](*arguments, **keywords)


def without_casts_where_enabled(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of a gradient scaler's method is exchanged for. One that is off may be given a closure, which is a
    model's forward."""
    if arguments[0].is_enabled():
        return without_casts(name, arguments, keywords)
    return _originals[name](*arguments, **keywords)


def in_float32(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of a function with a kernel for float32 only is exchanged for."""
    if lists_speak():
        arguments, keywords = tree_map(_in_float32, (arguments, keywords), is_leaf=_is_packed)
    return _originals[name](*arguments, **keywords)


def exactly(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of a function is exchanged for that runs in float32 as a whole."""
    return _exactly(_originals[name], arguments, keywords)


def _exactly(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if not lists_speak():
        return function(*arguments, **keywords)
    arguments, keywords = tree_map(_in_float32, (arguments, keywords), is_leaf=_is_packed)
    with disable_casts():
        return function(*arguments, **keywords)


def giving_float32(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of a function is exchanged for that gives what may have been lowered to such code."""
    given = _originals[name](*arguments, **keywords)
    return tree_map(_in_float32, given)


def given_exact_method(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of a function is exchanged for that takes a method, of an object and the method."""
    owner, method = (*arguments, *keywords.values())

    @functools.wraps(method)
    def exact(*given: Any, **named: Any) -> Any:
        return _exactly(method, given, named)

    return _originals[name](owner, exact)


def protected(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of such a function is exchanged for: of device type, dtype, and whether to enable it."""
    if arguments[2] is False and arguments[0] != "meta" and lists_speak():
        return torch.autocast(arguments[0], enabled=False)
    return _originals[name](*arguments, **keywords)


_CASTABLE = (torch.float32, torch.bfloat16, torch.float16)


def given_uncast_hook(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of a function is exchanged for that takes a hook: of a tensor and the hook."""
    tensor, *hooks = (*arguments, *keywords.values())
    return _originals[name](tensor, *map(_uncast_hook, hooks))


def _uncast_hook(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The hook, with the lists silent; what it returns has the gradient's precision, as autograd wants it."""

    @functools.wraps(hook, updated=())
    def uncast(gradient: Any) -> Any:
        if not lists_speak():
            return hook(gradient)
        if torch.compiler.is_dynamo_compiling():
            with silence():
                result = hook(gradient)
        else:  # without what a region costs, nor its error where torch.compile can tell no more of them apart
            result = _core.call_silently(hook, gradient)
        return result if gradient is None else _in_precision_of(gradient.dtype, result)

    return uncast


def _in_precision_of(dtype: torch.dtype, value: Any) -> Any:
    """What autograd takes where it expects a tensor of this dtype."""
    if isinstance(value, torch.Tensor) and value.dtype in _CASTABLE and dtype in _CASTABLE:
        return value.to(dtype)
    return value


def given_faithful_hooks(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of a function is exchanged for that keeps a module's hooks."""
    keeper, module, *hooks = arguments
    return _originals[name](keeper, module, *([*map(_faithful, each)] for each in hooks))


def _faithful(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The hook, of a module and its gradients; those it returns have the precision that they had."""

    @functools.wraps(hook, updated=())
    def faithful(module: Any, gradients: Any, *others: Any) -> Any:
        results = hook(module, gradients, *others)
        if not isinstance(results, (tuple, list)) or len(results) != len(gradients):
            return results
        return tuple(
            _in_precision_of(gradient.dtype, result) if isinstance(gradient, torch.Tensor) else result
            for gradient, result in zip(gradients, results, strict=True)
        )

    return faithful


def given_faithful_packing(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of a function is exchanged for that takes hooks of saved tensors. torch's own give back what they
    were given."""
    keeper, pack, unpack = arguments
    if str(getattr(pack, "__module__", None)).startswith("torch."):
        return _originals[name](keeper, pack, unpack)

    @functools.wraps(pack, updated=())
    def faithful_pack(tensor: torch.Tensor) -> tuple[torch.dtype, Any]:
        # A hook may give the memory of what it packs another use: torch's own cast of a weight is nobody else's.
        given = _core.call_silently(torch.clone, tensor) if _core.weights_are_kept_in(tensor) else tensor
        return tensor.dtype, _core.call_without_casts_inside(pack, given)

    @functools.wraps(unpack, updated=())
    def faithful_unpack(packed: tuple[torch.dtype, Any]) -> Any:
        dtype, value = packed
        return _in_precision_of(dtype, unpack(value))

    return _originals[name](keeper, faithful_pack, faithful_unpack)


def as_backward(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of a function is exchanged for that runs the backward of a function written in Python."""
    return _core.call_backward(_originals[name], arguments, keywords)


def unfused(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of a function is exchanged for that asks for fused kernels."""
    return not lists_speak() and _originals[name](*arguments, **keywords)


def fused_if_nested(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of a module's forward is exchanged for that takes nested tensors, but only by its fused kernel.

    That takes one precision, and those tensors may have been lowered before.
    """
    if not any(map(_is_nested, (*arguments, *keywords.values()))) or not lists_speak():
        return _originals[name](*arguments, **keywords)
    dtype = next(arguments[0].parameters()).dtype
    # Each once: the kernel attends from one tensor to itself.
    cast = {id(one): _in_precision_of(dtype, one) for one in (*arguments, *keywords.values()) if _is_nested(one)}
    given = [cast.get(id(one), one) for one in arguments]
    with disable_casts():
        return _originals[name](*given, **{key: cast.get(id(one), one) for key, one in keywords.items()})


def _is_nested(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_nested


def compared_as_cast(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of a module's method is exchanged for that compares its input's dtype with that of its weights."""
    module, tensor, *others = arguments
    dtype = module._flat_weights[0].dtype
    if tensor.dtype is not dtype and tensor.dtype in _CASTABLE and lists_speak():
        tensor = torch.empty_like(tensor, dtype=dtype, device="meta")
    return _originals[name](module, tensor, *others, **keywords)


def not_held(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of a function is exchanged for that wants tensors which nobody holds weakly."""
    for tensor in (*arguments, *keywords.values()):
        _core.weights_forget(tensor)
        _core.forget_lowered(tensor)
    return _originals[name](*arguments, **keywords)


def _is_packed(value: Any) -> bool:
    return isinstance(value, PackedSequence)


def _in_float32(value: Any) -> Any:
    is_lower = isinstance(value, (torch.Tensor, PackedSequence)) and value.data.dtype in (torch.bfloat16, torch.float16)
    return value.float() if is_lower else value


@functools.cache
def _forwarding(function: types.FunctionType, code: types.CodeType, call: Callable[..., Any]) -> types.CodeType:
    """Compiled once for each ``code`` that the function has had: that is a good part of what ``convert`` costs."""
    return forwarding_code(function, call, imported=__name__)


class _Exchanged(WhenImported):
    """The functions of one module."""

    def __init__(self, name: str, functions: tuple[str, ...], call: Callable[..., Any]) -> None:
        super().__init__()
        self.name = name
        self._functions = functions
        self._call = call
        self._codes: list[tuple[types.FunctionType, types.CodeType]] = []

    def do(self, module: Any) -> None:
        for function in functions_of(module, self._functions):
            code = function.__code__
            self._codes.append((function, code))
            _originals[full_name(function)] = untouched(function)
            function.__code__ = _forwarding(function, code, self._call)

    def undo(self, module: Any) -> None:
        for function, code in self._codes:
            function.__code__ = code
        self._codes = []


#: What is called in the functions' stead.
TABLES: Mapping[Callable[..., Any], dict[str, tuple[str, ...]]] = {
    without_casts: STATE | PREPARES_DATA,
    without_casts_where_enabled: SCALED_STEPS,
    in_float32: FLOAT32_ONLY,
    exactly: EXACT,
    giving_float32: GIVES_FLOAT32,
    given_exact_method: TAKES_EXACT,
    not_held: EXCHANGES_TENSORS,
    protected: PROTECTS,
    given_uncast_hook: TAKES_HOOKS,
    given_faithful_hooks: KEEPS_HOOKS,
    given_faithful_packing: TAKES_PACKING,
    as_backward: RUNS_BACKWARD,
    unfused: ASKS_FOR_FUSED,
    fused_if_nested: TAKES_NESTED,
    compared_as_cast: COMPARES_DTYPES,
}


class Exchanged:
    """All of them, those of modules that are imported later too."""

    def __init__(self) -> None:
        self._parts = [
            _Exchanged(module, names, call) for call, table in TABLES.items() for module, names in table.items()
        ]

    def install(self) -> None:
        for part in self._parts:
            part.install()

    def uninstall(self) -> None:
        for part in self._parts:
            part.uninstall()
