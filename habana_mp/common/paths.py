"""The folder of this package."""

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
