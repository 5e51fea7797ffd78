"""What is exchanged in torch, in CPython's objects and in libraries while lists are in force, and what is known of
their private insides. Private names of theirs are written here and nowhere else.

Each patch is a class (:class:`~habana_mp.patches.tools.patch.Patch`); ``all.py`` has the one list of them.
"""
