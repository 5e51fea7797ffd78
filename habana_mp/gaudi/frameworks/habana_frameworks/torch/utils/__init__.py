"""``habana_frameworks.torch.utils``, which is several small modules of Gaudi's as well (``finder.py`` says which)."""

from __future__ import annotations

import enum
import os
from typing import Any, TypeVar

import torch

from habana_mp.gaudi.finder import refused
from habana_mp.gaudi.patches.compile import compile_backward

from .. import hpu as hpu

_Module = TypeVar("_Module", bound=torch.nn.Module)

_BUILT = (
    "kernels of your own for Gaudi are built with its {}, and no other device can run them. Write the operation with "
    "torch, or as a torch.autograd.Function"
)
get_include_dir = refused("get_include_dir", _BUILT.format("headers"))
get_lib_dir = refused("get_lib_dir", _BUILT.format("libraries"))


def is_lazy() -> bool:
    """True if ``PT_HPU_LAZY_MODE`` in the environment is not 0. Operations run at once in any case."""
    return os.environ.get("PT_HPU_LAZY_MODE", "0") not in ("0", "")


def is_habana_available() -> bool:
    """True: ``"hpu"`` can be used."""
    return True


is_habana_avaialble = is_habana_available  # the spelling of some releases


def is_enabled_weight_permute_pass() -> bool:
    """Returns True, so that the script does not permute weights: torch's kernels use them as they are."""
    return True


_is_enabled_synapse_layout_handling = _is_enabled_weight_permute_pass = is_enabled_weight_permute_pass


def do_nothing(*_: Any, **__: Any) -> None:
    """Accepts the call and changes nothing. Torch has the device already, operations run when they are called, one
    after the other, kernels use weights as they are, and no environment variables of Gaudi are needed."""


load_habana_module = _mark_step_if_lazy = _mark_params_as_const = _check_params_as_const = do_nothing
_enable_weight_permute_pass = _enable_fuse_conv_bn_optimization = do_nothing


def enable_compiled_autograd(enabled: bool = True) -> None:
    """Makes ``torch.compile`` compile the backward as a whole too.

    Raises:
        NotImplementedError: this torch cannot.
    """
    compile_backward(enabled)


class synDeviceType(enum.Enum):  # noqa: N801  the name that scripts use
    """The types of Gaudi devices."""

    synDeviceGaudi = "synDeviceGaudi"  # noqa: N815 (its names are the package's)
    synDeviceGaudi2 = "synDeviceGaudi2"  # noqa: N815 (its names are the package's)
    synDeviceGaudi3 = "synDeviceGaudi3"  # noqa: N815 (its names are the package's)
    synDeviceInvalid = "synDeviceInvalid"  # noqa: N815 (its names are the package's)


def _get_device_type() -> synDeviceType:
    """Returns ``synDeviceInvalid``: this is no Gaudi. Scripts choose settings for a type of Gaudi by it."""
    return synDeviceType.synDeviceInvalid


def _is_fp16_supported() -> bool:
    """Returns True: torch computes in float16 on every device."""
    return True


def detect_recompilation_auto_model(model: _Module, *_: Any, **__: Any) -> _Module:
    """Returns the model with a method ``analyse_dynamicity``. On Gaudi it finds the modules whose graphs are compiled
    again and again; here nothing is compiled, and the method prints so."""
    model.analyse_dynamicity = _analyse_dynamicity  # type: ignore[assignment]  # a method of this one model
    return model


def _analyse_dynamicity(*_: Any, **__: Any) -> None:
    print("habana_mp's stand-in for Gaudi compiles no graphs, so no module was compiled again")
