"""The replacements that are installed in torch, in CPython's objects and in libraries while lists are in force, and the
private details that they depend on. In Python code, private names of torch, CPython and libraries appear only here and
in ``ops``.

Each patch is a class (:class:`~habana_mp.patches.tools.patch.Patch`); ``all.py`` lists them all.
"""
