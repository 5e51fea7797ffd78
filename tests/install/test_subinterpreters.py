"""A subinterpreter of Python cannot import this package. Nothing waits there, and an error says why."""

from __future__ import annotations

import sys

import pytest

from helpers.processes import run_script

_IN_SUBINTERPRETER = """
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
if "first" in sys.argv:
    import habana_mp
code = f'''
import sys
sys.path[:] = {sys.path!r}
try:
    {sys.argv[1]}
except ImportError as error:
    print(f"ImportError: {{error}}", flush=True)
else:
    print("imported", flush=True)
'''
interpreters.run_string(interpreters.create(), code)
"""


@pytest.mark.parametrize(("how", "main"), [("import habana_mp", "not"), ("from habana_mp import _core", "first")])
def test_the_import_in_a_subinterpreter_is_refused_at_once(how: str, main: str) -> None:
    done = run_script(_IN_SUBINTERPRETER, how, main)
    if sys.version_info >= (3, 13):  # Python refuses by itself
        assert done.stdout == "ImportError: module habana_mp._core does not support loading in subinterpreters\n"
        return
    assert done.stdout.startswith("ImportError: habana_mp cannot be imported in a subinterpreter"), done.stderr
    assert "main interpreter" in done.stdout
