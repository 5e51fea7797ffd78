"""Recurrent layers, and their cells.

``torch.autocast`` reaches the matrix products that torch makes a layer of. What else it consists of stays as it is: its
state, which each step of a sequence rounds again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from habana_mp.ops.operation import FIRST_INPUT, Operation


def _is_exporting() -> bool:
    return bool(getattr(torch.compiler, "is_exporting", bool)())


def _lstm_is_fused(input: Tensor, state: Sequence[Tensor], *_: Any, **__: Any) -> bool:
    # Of packed sequences, of none, or with a projection, torch makes it of products.
    if isinstance(state, Tensor) or state[0].shape[-1] != state[1].shape[-1] or input.numel() == 0:
        return False
    library: Any = torch.backends.mkldnn
    # While a model is exported torch switches it off, for operations that it does not know.
    return input.device.type != "cpu" or bool(library.is_available() and (library.enabled or _is_exporting()))


_cell = partial(Operation, unlisted=FIRST_INPUT, keeps_weights=True)
_layer = partial(_cell, takes_steps=True, products_inside=True)

ROWS = (
    # A kernel of its own, which does not compute all calls of `lstm`.
    Operation("mkldnn_rnn_layer", means_products=True),
    _layer("lstm", spellings="LSTM mkldnn_rnn_layer", is_fused=_lstm_is_fused),
    _layer("gru", spellings="GRU"),
    _layer("rnn_tanh", spellings="RNN"),
    _layer("rnn_relu", spellings="RNN"),
    _cell("lstm_cell", spellings="LSTMCell"),
    _cell("gru_cell", spellings="GRUCell _thnn_fused_gru_cell"),
    _cell("rnn_tanh_cell", spellings="RNNCell"),
    _cell("rnn_relu_cell", spellings="RNNCell"),
)
