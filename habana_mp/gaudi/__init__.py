"""Runs Gaudi scripts on any device: after its import, ``habana_frameworks`` can be imported and ``"hpu"`` used.

::

    import habana_mp.gaudi              # the first line of a script that was written for Gaudi

    import habana_frameworks.torch.core as htcore
    model.to("hpu")                     # leads to the CPU, to CUDA, or to another device

``HABANA_MP_GAUDI=cpu`` (or ``cuda``, ...) in the environment chooses the device. docs/gaudi.md says what is mapped.
"""

from __future__ import annotations

import os

from habana_mp.gaudi.switch import devices, prepare_children, switch_off, switch_on

__all__ = ["devices", "prepare_children", "switch_off", "switch_on"]

switch_on(os.environ.get("HABANA_MP_GAUDI"))
prepare_children()
