#include "host/callables.hpp"

#include <string_view>
#include <type_traits>
#include <utility>

#include "atomic_store.hpp"
#include "errors.hpp"
#include "host/ledger.hpp"
#include "host/torch_api.hpp"

namespace habana_mp::host {

namespace {

Assumption slots{
    "cpython.slots",
    "a builtin or a method descriptor is called by its vectorcall slot, or by the C function of its definition, "
    "whatever way Python code calls it",
    "each object's type, flags and slot are those that CPython gives to a sample of ours",
    "convert refuses, and nothing has changed"};

// Returns the vectorcall slot of a builtin, a method descriptor or any other object that holds its own slot.
vectorcallfunc* slot_of(PyObject* object) {
  return reinterpret_cast<vectorcallfunc*>(reinterpret_cast<char*>(object) + Py_TYPE(object)->tp_vectorcall_offset);
}

constexpr int with_keywords = METH_VARARGS | METH_KEYWORDS;

PyObject* answer_none(PyObject*, PyObject*) { Py_RETURN_NONE; }
PyObject* answer_none_to_keywords(PyObject*, PyObject*, PyObject*) { Py_RETURN_NONE; }
PyObject* answer_none_to_array(PyObject*, PyObject* const*, Py_ssize_t, PyObject*) { Py_RETURN_NONE; }

template <typename Function>
PyCFunction as_definition(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

// Returns what CPython stores in the slot of a sample of this kind. Throws std::bad_alloc when memory
// runs out. The samples are defined in this file because scripts replace builtins such as `print`.
vectorcallfunc expected_slot(CallableKind kind) {
  static PyMethodDef of_array = {"sample", as_definition(&answer_none_to_array), METH_FASTCALL | METH_KEYWORDS,
                                 nullptr};
  static PyMethodDef of_keywords = {"sample", as_definition(&answer_none_to_keywords), with_keywords, nullptr};
  static PyMethodDef of_none = {"sample", &answer_none, METH_NOARGS, nullptr};
  const Owned sample(
      kind == CallableKind::fast_operator
          ? PyCFunction_NewEx(&of_array, nullptr, nullptr)
          : PyDescr_NewMethod(&PyBaseObject_Type, kind == CallableKind::method ? &of_keywords : &of_none));
  drop_error_unless_memory_error();
  return sample ? *slot_of(sample.get()) : nullptr;
}

bool is_type_slot(PyObject* object) { return Py_TYPE(object) == &PyWrapperDescr_Type; }

// Adds the type and the classes that derive from it. Each has its own copy of the slots, and a class that is made later
// inherits the current one. Returns false with an exception set if the subclasses cannot be listed.
bool add_classes(PyTypeObject* type, std::vector<Owned>& found) {
  if (type->tp_as_mapping != nullptr) found.push_back(Owned::borrowed(reinterpret_cast<PyObject*>(type)));
  // Calls type.__subclasses__ itself, since a metaclass may override it.
  const Owned subclasses(PyObject_CallMethod(reinterpret_cast<PyObject*>(&PyType_Type), "__subclasses__", "O", type));
  if (!subclasses) return false;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(subclasses.get()); ++i) {
    if (!add_classes(reinterpret_cast<PyTypeObject*>(PyList_GET_ITEM(subclasses.get(), i)), found)) return false;
  }
  return true;
}

// Stores a function in place of another one in Tensor's slot wrapper and in the slots of its classes.
template <auto slot, typename Function>
void replace_in_classes(const Callable& callable, const TensorClasses& classes, Function from, Function to) {
  store(&reinterpret_cast<PyWrapperDescrObject*>(callable.object.get())->d_wrapped, reinterpret_cast<void*>(to));
  for (const Owned& one : classes) {
    Function* const place = &(reinterpret_cast<PyTypeObject*>(one.get())->tp_as_mapping->*slot);
    if (*place == from) store(place, to);
  }
}

// True if Tensor's slot wrapper calls Tensor's slot. Otherwise returns false with an exception set.
template <auto slot>
bool may_replace_in_classes(PyObject* wrapper) {
  const PyMappingMethods* mapping = api.tensor_base->tp_as_mapping;
  auto* descriptor = reinterpret_cast<PyWrapperDescrObject*>(wrapper);
  return (mapping != nullptr && mapping->*slot != nullptr &&
          reinterpret_cast<void*>(mapping->*slot) == descriptor->d_wrapped) ||
         refuse(wrapper, "it does not call the slot of its type");
}

}  // namespace

PyObject* call_with_tuple(PyCFunction function, PyObject* self, const Arguments& arguments, Py_ssize_t skip) {
  Owned dictionary;
  const Owned tuple(PyTuple_New(arguments.positional - skip));
  if (!tuple) return nullptr;
  for (Py_ssize_t i = skip; i < arguments.positional; ++i) {
    PyTuple_SET_ITEM(tuple.get(), i - skip, Owned::borrowed(arguments.values[i]).release());
  }
  const Py_ssize_t keyword_count = arguments.keyword_count();
  if (keyword_count != 0) {
    dictionary = Owned(PyDict_New());
    if (!dictionary) return nullptr;
    for (Py_ssize_t i = 0; i < keyword_count; ++i) {
      if (PyDict_SetItem(dictionary.get(), PyTuple_GET_ITEM(arguments.keywords, i),
                         arguments.values[arguments.positional + i]) < 0) {
        return nullptr;
      }
    }
  }
  return reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(function))(self, tuple.get(),
                                                                                      dictionary.get());
}

bool refuse(PyObject* object, const char* why) {
  slots.settle(false);
  PyErr_Format(PyExc_RuntimeError,
               "habana_mp cannot cover %R: %s. Nothing was changed. This Python (%s) or another tool lays builtins out "
               "in a way that is not known here; please report it with these words.",
               object, why, Py_GetVersion());
  return false;
}

bool can_cover(PyObject* object) noexcept {
  if (Py_TYPE(object) == &PyMethodDescr_Type) {
    const int flags = reinterpret_cast<PyMethodDescrObject*>(object)->d_method->ml_flags;
    return flags == METH_NOARGS || flags == with_keywords;
  }
  if (!PyCFunction_CheckExact(object)) return false;
  const int flags = PyCFunction_GET_FLAGS(object) & ~METH_STATIC;
  return flags == with_keywords || flags == (METH_FASTCALL | METH_KEYWORDS);
}

bool find_kind(PyObject* object, CallableKind& kind) {
  if (slots.is_broken()) return refuse(object, "its slot does not hold CPython's own");
  slots.settle(true);
  if (is_type_slot(object)) {
    const std::string_view name(reinterpret_cast<PyWrapperDescrObject*>(object)->d_base->name);
    const bool assigns = name == "__setitem__";
    if (PyDescr_TYPE(object) != api.tensor_base || (!assigns && name != "__getitem__")) {
      return refuse(object, "only Tensor.__setitem__ and Tensor.__getitem__ are known among the slot wrappers");
    }
    kind = assigns ? CallableKind::assignment : CallableKind::subscript;
    return assigns ? may_replace_in_classes<&PyMappingMethods::mp_ass_subscript>(object)
                   : may_replace_in_classes<&PyMappingMethods::mp_subscript>(object);
  }
  const bool is_method = Py_TYPE(object) == &PyMethodDescr_Type;
  if (is_method || PyCFunction_CheckExact(object)) {
    if (!can_cover(object)) return refuse(object, "its calling convention is not known");
    const vectorcallfunc slot = *slot_of(object);
    if (is_method) {
      const int flags = reinterpret_cast<PyMethodDescrObject*>(object)->d_method->ml_flags;
      kind = flags == METH_NOARGS ? CallableKind::method_no_arguments : CallableKind::method;
    } else {
      const bool is_fast = (PyCFunction_GET_FLAGS(object) & METH_FASTCALL) != 0;
      kind = is_fast ? CallableKind::fast_operator : CallableKind::function;
    }
    if (kind == CallableKind::function) return slot == nullptr || refuse(object, "its slot is already in use");
    return (slot != nullptr && slot == expected_slot(kind)) || refuse(object, "its slot does not hold CPython's own");
  }
  if (PyFunction_Check(object)) {
    kind = CallableKind::composite;
    return true;
  }
  // Since torch 2.15 such an object replaces the builtin if an operator is written in Python.
  if (std::string_view(Py_TYPE(object)->tp_name).starts_with("torch._C.") && PyVectorcall_Function(object) != nullptr &&
      Py_TYPE(object)->tp_call == PyVectorcall_Call) {
    kind = CallableKind::fast_operator;
    return true;
  }
  PyErr_Format(PyExc_TypeError, "habana_mp can cover torch's builtins, Tensor's methods and Python functions; got %R",
               object);
  return false;
}

std::optional<TensorClasses> find_tensor_classes() {
  TensorClasses classes;
  if (!add_classes(api.tensor_base, classes)) return std::nullopt;
  return classes;
}

void put_in(Callable& callable, const Stubs& stubs, const TensorClasses& classes) noexcept {
  PyObject* const object = callable.object.get();
  if (callable.is_python()) return;
  if (callable.kind == CallableKind::assignment) {
    callable.original_assignment = api.tensor_base->tp_as_mapping->mp_ass_subscript;
    replace_in_classes<&PyMappingMethods::mp_ass_subscript>(callable, classes, callable.original_assignment,
                                                            stubs.assignment.pointer());
    return;
  }
  if (callable.kind == CallableKind::subscript) {
    callable.original_subscript = api.tensor_base->tp_as_mapping->mp_subscript;
    replace_in_classes<&PyMappingMethods::mp_subscript>(callable, classes, callable.original_subscript,
                                                        stubs.subscript.pointer());
    return;
  }
  callable.original_slot = *slot_of(object);
  if (callable.is_method()) {
    callable.definition = reinterpret_cast<PyMethodDescrObject*>(object)->d_method;
    callable.original = callable.definition->ml_meth;
    // A method descriptor's hash does not depend on ml_meth (a builtin's does), so ml_meth may change.
    const PyCFunction stub =
        callable.kind == CallableKind::method ? stubs.method.as_method() : stubs.method_no_arguments.pointer();
    store(&callable.definition->ml_meth, stub);
  } else if (callable.kind != CallableKind::fast_operator) {
    callable.original = PyCFunction_GET_FUNCTION(object);
  } else if (PyCFunction_CheckExact(object)) {
    // For some flags the interpreter calls the C function directly and bypasses the slot. A definition with other
    // flags prevents this. The C function stays the same because a builtin's hash depends on it.
    auto* function = reinterpret_cast<PyCFunctionObject*>(object);
    callable.definition = function->m_ml;
    callable.definition_with_slot = *function->m_ml;
    callable.definition_with_slot.ml_flags = with_keywords;
    store(&function->m_ml, &callable.definition_with_slot);
  }
  store(slot_of(object), stubs.vectorcall.pointer());
}

void take_out(Callable& callable, const Stubs& stubs, const TensorClasses& classes) noexcept {
  PyObject* const object = callable.object.get();
  if (callable.is_python()) return;
  if (callable.kind == CallableKind::assignment) {
    replace_in_classes<&PyMappingMethods::mp_ass_subscript>(callable, classes, stubs.assignment.pointer(),
                                                            callable.original_assignment);
    return;
  }
  if (callable.kind == CallableKind::subscript) {
    replace_in_classes<&PyMappingMethods::mp_subscript>(callable, classes, stubs.subscript.pointer(),
                                                        callable.original_subscript);
    return;
  }
  store(slot_of(object), callable.original_slot);
  if (callable.is_method()) {
    store(&callable.definition->ml_meth, callable.original);
  } else if (callable.definition != nullptr) {
    store(&reinterpret_cast<PyCFunctionObject*>(object)->m_ml, callable.definition);
  }
}

Owned unpatched_copy(PyObject* builtin, const Callable* covered) {
  auto* function = reinterpret_cast<PyCFunctionObject*>(builtin);
  const bool has_definition = covered != nullptr && covered->definition != nullptr;
  return Owned(
      PyCFunction_NewEx(has_definition ? covered->definition : function->m_ml, function->m_self, function->m_module));
}

}  // namespace habana_mp::host
