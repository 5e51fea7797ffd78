"""Recurrent layers, and their cells.

``torch.autocast`` lowers the matrix products that torch composes a layer of. The rest of the layer is unchanged: each
step of a sequence would round its state again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from habana_mp.ops.operation import FIRST_INPUT, Operation


def _lstm_is_fused(input: Tensor, state: Sequence[Tensor], *_: Any, **__: Any) -> bool:
    # torch composes it of products for packed sequences, for empty inputs, and with a projection.
    if isinstance(state, Tensor) or state[0].shape[-1] != state[1].shape[-1] or input.numel() == 0:
        return False
    library: Any = torch.backends.mkldnn
    # torch disables the library while it exports a model, because of operations that the export does not support.
    is_used = library.is_available() and (library.enabled or torch.compiler.is_exporting())
    return input.device.type != "cpu" or bool(is_used)


_cell = partial(Operation, unlisted=FIRST_INPUT, caches_weights=True, product_form="other")
_layer = partial(_cell, is_recurrent=True, products_inside=True)

ROWS = (
    # A separate kernel, which does not compute all calls of `lstm`.
    Operation("mkldnn_rnn_layer", means_products=True),
    _layer("lstm", spellings="LSTM mkldnn_rnn_layer", is_fused=_lstm_is_fused),
    _layer("gru", spellings="GRU"),
    # Their results are those of products, in the lower precision.
    _layer("rnn_tanh", spellings="RNN", product_form=""),
    _layer("rnn_relu", spellings="RNN", product_form=""),
    _cell("lstm_cell", spellings="LSTMCell"),
    _cell("gru_cell", spellings="GRUCell _thnn_fused_gru_cell"),
    _cell("rnn_tanh_cell", spellings="RNNCell"),
    _cell("rnn_relu_cell", spellings="RNNCell"),
)
