"""Builds the pretended accelerator."""

from helpers.pretended import built

built()
