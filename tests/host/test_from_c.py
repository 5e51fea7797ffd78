"""Whatever the core's own code throws, what C calls of it ends normally, with a Python exception, and with the GIL."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pybind11
import pytest

SOURCES = Path(__file__).parents[2] / "src"

_MODULE = """
#include "from_c.hpp"
#include "gil.hpp"

#include <new>
#include <stdexcept>

static PyObject* no_memory(PyObject*, PyObject*) { throw std::bad_alloc(); }
static PyObject* another_error(PyObject*, PyObject*) { throw std::runtime_error("so it is"); }
static PyObject* unknown(PyObject*, PyObject*) { throw 1; }
static PyObject* after_an_exception(PyObject*, PyObject*) {
  PyErr_SetString(PyExc_KeyError, "the first one");
  throw std::bad_alloc();
}
static PyObject* without_gil(PyObject*, PyObject*) {
  try {
    habana_mp::without_gil([] { throw std::runtime_error("no memory, say"); });
  } catch (const std::runtime_error&) {
    return PyBool_FromLong(PyGILState_Check());
  }
  Py_RETURN_NONE;
}
static PyObject* nothing(PyObject*, PyObject*) { Py_RETURN_NONE; }

namespace habana_mp {
void raise_later() noexcept { PyErr_Clear(); }
}

using habana_mp::from_c;
static PyMethodDef methods[] = {{"no_memory", from_c<no_memory>.pointer(), METH_NOARGS, nullptr},
                                {"another_error", from_c<another_error>.pointer(), METH_NOARGS, nullptr},
                                {"unknown", from_c<unknown>.pointer(), METH_NOARGS, nullptr},
                                {"after_an_exception", from_c<after_an_exception>.pointer(), METH_NOARGS, nullptr},
                                {"without_gil", from_c<without_gil>.pointer(), METH_NOARGS, nullptr},
                                {"nothing", from_c<nothing>.pointer(), METH_NOARGS, nullptr},
                                {}};
static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "throws", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};
PyMODINIT_FUNC PyInit_throws() { return PyModule_Create(&definition); }
"""

_SCRIPT = """
import throws
for name in ("no_memory", "another_error", "unknown", "after_an_exception", "without_gil", "nothing"):
    try:
        print(name, getattr(throws, name)())
    except Exception as error:
        print(name, type(error).__name__)
"""


def test_an_exception_of_cpp_becomes_one_of_python(tmp_path: Path) -> None:
    (tmp_path / "throws.cpp").write_text(_MODULE, "utf-8")
    compiler = os.environ.get("CXX", "g++").split()
    includes = [sysconfig.get_path("include"), pybind11.get_include(), str(SOURCES)]
    flags = ["-std=c++20", "-O0", "-fvisibility=hidden", "-shared", "-fPIC", *(f"-I{one}" for one in includes)]
    built = [*compiler, *flags, "throws.cpp", str(SOURCES / "from_c.cpp"), "-o", "throws.so"]
    subprocess.run(built, cwd=tmp_path, check=True, timeout=300)
    run = subprocess.run(
        [sys.executable, "-c", _SCRIPT], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split("\n")[:-1] == [
        "no_memory MemoryError",
        "another_error RuntimeError",
        "unknown SystemError",
        "after_an_exception KeyError",
        "without_gil True",
        "nothing None",
    ]


#: How a function of the core gets to C, and what must stand in the same statement.
_WAYS = {
    r"PyMethodDef \w+\{[^};][^;]*;": "from_c<",
    r"PyCapsule_New\([^;]*;": r"from_c<|nullptr, nullptr\)",
    r"pthread_atfork\([^\[]*\[[^;]*;[^;]*;": "noexcept",
}


@pytest.mark.parametrize("way", _WAYS)
def test_every_function_that_c_calls_catches_exceptions(way: str) -> None:
    found = 0
    for path in sorted(SOURCES.rglob("*.[ch]pp")):
        for statement in re.findall(way, path.read_text("utf-8")):
            found += 1
            assert re.search(_WAYS[way], statement), f"{path.relative_to(SOURCES)}: {statement}"
    assert found
