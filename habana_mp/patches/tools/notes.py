"""The block that stops notes for the report, and records, while a step is repeated."""

from __future__ import annotations

from habana_mp.common.blocks import ProcessBlock

#: While it is entered, no patch notes anything for the report, and no call is recorded, in any thread.
no_notes = ProcessBlock()
