"""``habana_frameworks.torch.core.hpu``: the same as ``habana_frameworks.torch.hpu``."""

from __future__ import annotations

import sys

from .. import hpu

sys.modules[__name__] = hpu
