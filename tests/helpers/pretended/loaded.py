"""Registers the device when it is imported: for ``benchmarks/device.py --import helpers.pretended.loaded``."""

from helpers import pretended

pretended.load()
