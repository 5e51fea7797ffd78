"""What patches note for the report beside what the core counts, and what a record has."""

from __future__ import annotations

from habana_mp.common.blocks import ProcessBlock

#: A block in which no thread notes anything for the report, or records it.
no_notes = ProcessBlock()
