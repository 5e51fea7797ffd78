#include "from_c.hpp"

#include <exception>
#include <new>
#include <stdexcept>

#include "pybind.hpp"

namespace habana_mp {

namespace {

// Sets nothing if an exception is already set: the first one says more.
void set(PyObject* type, const char* words) noexcept {
  if (PyErr_Occurred() == nullptr) PyErr_SetString(type, words);
}

}  // namespace

void set_python_error() noexcept {
  try {
    throw;
  } catch (pybind11::error_already_set& error) {
    if (PyErr_Occurred() == nullptr) error.restore();
  } catch (const pybind11::builtin_exception& error) {
    if (PyErr_Occurred() == nullptr) error.set_error();
  } catch (const std::invalid_argument& error) {
    set(PyExc_ValueError, error.what());
  } catch (const std::bad_alloc&) {
    if (PyErr_Occurred() == nullptr) PyErr_NoMemory();
  } catch (const std::exception& error) {
    set(PyExc_RuntimeError, error.what());
  } catch (...) {
    set(PyExc_SystemError, "habana_mp: an unknown exception of C++");
  }
}

}  // namespace habana_mp
