"""``warm``: the casts of a model's weights, made before the first call."""

from __future__ import annotations

import torch
from torch import nn

from habana_mp import _core
from habana_mp.policy.precisions import dtype_meant
from habana_mp.reporting.explanation import explain

#: The operations of torch's layers. `out_proj` of attention is a linear layer itself.
_OPERATIONS: dict[type[nn.Module], str] = {
    nn.Linear: "linear",
    nn.MultiheadAttention: "linear",
    nn.Bilinear: "bilinear",
    nn.LSTM: "lstm",
    nn.GRU: "gru",
    **{getattr(nn, f"Conv{count}d"): f"conv{count}d" for count in (1, 2, 3)},
    **{getattr(nn, f"ConvTranspose{count}d"): f"conv_transpose{count}d" for count in (1, 2, 3)},
}
#: How the names of their weights and biases begin, besides `bias`.
_PARAMETERS = ("weight", "bias_ih", "bias_hh", "in_proj_")


def warm(model: nn.Module) -> int:
    """Makes the cached casts of a model's weights now, in place of its first call.

    ::

        hmp.convert(preset="recommended")
        hmp.warm(model)                    # in a service, before the first request

    A weight is cast if the lists and rules in force here lower the operation of its layer: those layers of ``torch.nn``
    and of classes made from them that make products. Other weights are cast by the first call, as without this.

    Returns:
        The bytes of the new casts: 0 if there is nothing to cast, or all is cast.

    Raises:
        TypeError: something that is no module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` must be a module; got {type(model).__name__}: {model!r}")
    before: int = _core.weights_statistics()["bytes"]
    for module in model.modules():
        operation = next((one for kind, one in _OPERATIONS.items() if isinstance(module, kind)), None)
        if isinstance(module, nn.RNN):
            operation = f"rnn_{module.nonlinearity}"
        if operation is None:
            continue
        dtype = dtype_meant(explain(operation, module).precision.split()[0])  # type: ignore[union-attr]  # one name
        for name, weight in module.named_parameters(recurse=False):
            if dtype in (torch.bfloat16, torch.float16) and (name == "bias" or name.startswith(_PARAMETERS)):
                _core.weights_cast(weight, dtype)
    return int(_core.weights_statistics()["bytes"]) - before
