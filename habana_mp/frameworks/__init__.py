"""Plugins for frameworks of training. Each is a module of its own, which imports its framework: none is imported by
``habana_mp``."""
