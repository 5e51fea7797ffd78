#include "weights/arrays.hpp"

#include <pybind11/numpy.h>

#include <vector>

#include "atomic_store.hpp"
#include "errors.hpp"
#include "tensor/cast.hpp"
#include "tensor/memory_map.hpp"
#include "weights/escapes.hpp"

namespace py = pybind11;

namespace habana_mp::weights {

namespace {

PyTypeObject* array_type = nullptr;  // borrowed of NumPy, which stays
bool watched = false;

// An attribute of arrays by which their address gets out.
struct WatchedAttribute {
  const char* name;
  PyGetSetDef* definition = nullptr;
  getter original = nullptr;
};
WatchedAttribute ctypes{"ctypes"};
WatchedAttribute interface { "__array_interface__" };
WatchedAttribute structure{"__array_struct__"};

// Each class derived from ndarray has the function that gives out buffers in its own table, copied from its base.
std::vector<PyTypeObject*> classes;  // held
getbufferproc original_buffer = nullptr;

// An array that views another one has it, or the one that this one views, for a base; the last has what it was made of.
// What else may stand in between was made of an array's address or buffer, so it was seen then.
void array_escapes(PyObject* array) noexcept {
  PyObject* owner = array;
  while (owner != nullptr && PyObject_TypeCheck(owner, array_type) != 0) owner = py::detail::array_proxy(owner)->base;
  if (owner != nullptr) tensor_escapes(owner, true);
}

template <const WatchedAttribute& attribute>
PyObject* attribute_stub(PyObject* self, void* closure) {
  array_escapes(self);
  return attribute.original(self, closure);
}

// A class that is derived while this is watched keeps it for good.
int buffer_stub(PyObject* self, Py_buffer* view, int flags) {
  if (watched) array_escapes(self);
  return original_buffer(self, view, flags);
}

// This class and what is derived from it. False where a table is not as known.
bool find_classes(PyTypeObject* type, const tensor::MemoryMap& memory) {
  PyBufferProcs* buffers = type->tp_as_buffer;
  if (buffers == nullptr || !memory.may_write(&buffers->bf_getbuffer)) return false;
  classes.push_back(reinterpret_cast<PyTypeObject*>(Py_NewRef(reinterpret_cast<PyObject*>(type))));
  PyObject* derived = PyObject_CallMethod(reinterpret_cast<PyObject*>(type), "__subclasses__", nullptr);
  bool found = derived != nullptr;
  for (Py_ssize_t i = 0; found && i < PyList_GET_SIZE(derived); ++i) {
    found = find_classes(reinterpret_cast<PyTypeObject*>(PyList_GET_ITEM(derived, i)), memory);
  }
  Py_XDECREF(derived);
  return found;
}

// Those that give out buffers in another way than ndarray are left alone.
void replace_in_classes(getbufferproc former, getbufferproc now) {
  for (PyTypeObject* type : classes) {
    if (type->tp_as_buffer->bf_getbuffer == former) store(&type->tp_as_buffer->bf_getbuffer, now);
  }
}

void forget_classes() {
  for (PyTypeObject* type : classes) Py_DECREF(type);
  classes.clear();
}

bool find(WatchedAttribute& attribute, const tensor::MemoryMap& memory) {
  PyObject* found = PyDict_GetItemString(array_type->tp_dict, attribute.name);
  if (found == nullptr || Py_TYPE(found) != &PyGetSetDescr_Type) return false;
  attribute.definition = reinterpret_cast<PyGetSetDescrObject*>(found)->d_getset;
  return memory.may_write(&attribute.definition->get);
}

void watch(WatchedAttribute& attribute, getter stub) {
  attribute.original = attribute.definition->get;
  store(&attribute.definition->get, stub);
}

void stop_watching(const WatchedAttribute& attribute) { store(&attribute.definition->get, attribute.original); }

}  // namespace

void watch_arrays() noexcept {
  if (watched) return;
  PyObject* numpy = PyImport_ImportModule("numpy");
  PyObject* type = numpy == nullptr ? nullptr : PyObject_GetAttrString(numpy, "ndarray");
  Py_XDECREF(numpy);
  drop_error();
  if (type == nullptr) return;
  array_type = reinterpret_cast<PyTypeObject*>(type);
  Py_DECREF(type);
  const tensor::MemoryMap memory;
  if (!find_classes(array_type, memory) || !find(ctypes, memory) || !find(interface, memory) ||
      !find(structure, memory)) {
    drop_error();
    forget_classes();
    return;
  }
  watch(ctypes, attribute_stub<ctypes>);
  watch(interface, attribute_stub<interface>);
  watch(structure, attribute_stub<structure>);
  original_buffer = array_type->tp_as_buffer->bf_getbuffer;
  replace_in_classes(original_buffer, buffer_stub);
  watched = true;
}

void stop_watching_arrays() noexcept {
  if (!watched) return;
  watched = false;
  for (const WatchedAttribute* attribute : {&ctypes, &interface, &structure}) stop_watching(*attribute);
  replace_in_classes(buffer_stub, original_buffer);
  forget_classes();
}

bool arrays_are_watched() noexcept { return watched; }

}  // namespace habana_mp::weights
