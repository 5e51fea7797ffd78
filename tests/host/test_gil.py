"""The GIL is taken again whatever ends the work without it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"

_MODULE = """
#define PY_SSIZE_T_CLEAN
#include "gil.hpp"

#include <stdexcept>

static PyObject* raise_without_gil(PyObject*, PyObject*) {
  try {
    habana_mp::without_gil([] { throw std::runtime_error("no memory, say"); });
  } catch (const std::runtime_error&) {
    return PyBool_FromLong(PyGILState_Check());
  }
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"raise_without_gil", raise_without_gil, METH_NOARGS, nullptr}, {}};
static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "throws", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};
PyMODINIT_FUNC PyInit_throws() { return PyModule_Create(&definition); }
"""


def test_an_exception_of_cpp_comes_out_with_the_gil(tmp_path: Path) -> None:
    (tmp_path / "throws.cpp").write_text(_MODULE, "utf-8")
    compiler = os.environ.get("CXX", "g++").split()
    include = sysconfig.get_path("include")
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", f"-I{include}", f"-I{SOURCES}"]
    subprocess.run([*compiler, *flags, "throws.cpp", "-o", "throws.so"], cwd=tmp_path, check=True, timeout=300)
    run = subprocess.run(
        [sys.executable, "-c", "import throws; print(throws.raise_without_gil())"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "True\n"), run.stderr
