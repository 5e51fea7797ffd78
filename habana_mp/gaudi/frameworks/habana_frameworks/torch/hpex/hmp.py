"""``habana_frameworks.torch.hpex.hmp``: habana_mp itself."""

from __future__ import annotations

import sys

from habana_mp import hmp

sys.modules[__name__] = hmp
