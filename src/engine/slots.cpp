#include "engine/slots.hpp"

#include <algorithm>
#include <memory>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "atomic_store.hpp"
#include "engine/call.hpp"
#include "engine/modules.hpp"
#include "engine/originals.hpp"
#include "engine/state.hpp"
#include "log/log.hpp"
#include "tensor/buffers.hpp"
#include "tensor/memory_map.hpp"
#include "weights/escapes.hpp"

#ifdef Py_GIL_DISABLED
#error "habana_mp relies on the GIL; a free-threaded Python is not supported"
#endif

namespace habana_mp::engine {

namespace {

// ---- what stands in the slots -----------------------------------------------------------------------------------
// One stub for each target: its index is a constant, so that no look-up is needed to know which operation was called.
// What a stub does is written once outside of it where it is more than a few instructions: there are thousands.

PyObject* answer_vectorcall(Target& target, PyObject* callable, PyObject* const* values, std::size_t flagged_count,
                            PyObject* keywords) {
  const Arguments arguments{values, PyVectorcall_NARGS(flagged_count), keywords};
  if (target.is_method()) {
    const bool plausible = arguments.positional >= 1 && PyObject_TypeCheck(values[0], PyDescr_TYPE(callable)) != 0 &&
                           (target.shape == Target::Shape::method || arguments.count() == 1);
    // CPython knows best what is wrong with the call.
    if (!plausible) return target.original_slot(callable, values, flagged_count, keywords);
  } else if (target.is_operator() && is_decided(target)) {
    return call_operator(target, arguments);
  }
  return answer(target, arguments);
}

// Bound methods (`f = x.matmul`), old and new, and the calls that the interpreter inlines go to the definition's C
// function without passing the descriptor's slot.
PyObject* answer_method(Target& target, PyObject* self, PyObject* tuple, PyObject* dictionary) {
  const Py_ssize_t given = tuple == nullptr ? 0 : PyTuple_GET_SIZE(tuple);
  const Py_ssize_t named = dictionary == nullptr ? 0 : PyDict_GET_SIZE(dictionary);
  PyObject* names = named == 0 ? nullptr : PyTuple_New(named);
  if (named != 0 && names == nullptr) return nullptr;
  const auto values = std::make_unique<PyObject*[]>(static_cast<std::size_t>(1 + given + named));
  values[0] = Py_NewRef(self);
  for (Py_ssize_t i = 0; i < given; ++i) values[1 + i] = Py_NewRef(PyTuple_GET_ITEM(tuple, i));
  Py_ssize_t position = 0;
  Py_ssize_t i = 0;
  PyObject* name = nullptr;
  PyObject* value = nullptr;
  while (named != 0 && PyDict_Next(dictionary, &position, &name, &value) != 0) {
    PyTuple_SET_ITEM(names, i, Py_NewRef(name));
    values[1 + given + i] = Py_NewRef(value);
    ++i;
  }
  PyObject* result = answer(target, {values.get(), 1 + given, names});
  for (Py_ssize_t k = 0; k < 1 + given + named; ++k) Py_DECREF(values[k]);
  Py_XDECREF(names);
  return result;
}

template <std::size_t index>
PyObject* vectorcall_stub(PyObject* callable, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  return answer_vectorcall(*targets[index], callable, values, flagged_count, keywords);
}

template <std::size_t index>
PyObject* method_stub(PyObject* self, PyObject* tuple, PyObject* dictionary) {
  return answer_method(*targets[index], self, tuple, dictionary);
}

template <std::size_t index>
PyObject* find_method_stub(PyObject* self, PyObject*) {
  return answer(*targets[index], {&self, 1, nullptr});
}

struct Stubs {
  vectorcallfunc vectorcall;
  PyCFunctionWithKeywords method;
  PyCFunction find_method;
};

template <std::size_t... index>
constexpr std::array<Stubs, sizeof...(index)> make_stubs(std::index_sequence<index...>) {
  return {Stubs{vectorcall_stub<index>, method_stub<index>, find_method_stub<index>}...};
}
constexpr auto stubs = make_stubs(std::make_index_sequence<target_capacity>());

// Of a builtin, a method descriptor, or anything else that keeps its vectorcall in itself.
vectorcallfunc* slot_of(PyObject* object) {
  return reinterpret_cast<vectorcallfunc*>(reinterpret_cast<char*>(object) + Py_TYPE(object)->tp_vectorcall_offset);
}

// ---- is everything where we believe it to be? ---------------------------------------------------------------------

bool refuse(PyObject* object, const char* why) {
  PyErr_Format(PyExc_RuntimeError,
               "habana_mp cannot cover %R: %s. Nothing was changed. This Python (%s) or another tool lays builtins out "
               "in a way that is not known here; please report it with these words.",
               object, why, Py_GetVersion());
  return false;
}

// What CPython itself puts into the slot of a fast function, read off one of its own.
vectorcallfunc expected_fast_function_slot() {
  static const vectorcallfunc slot = []() -> vectorcallfunc {
    PyObject* sample = PyDict_GetItemString(PyEval_GetBuiltins(), "print");
    const bool is_fast = sample != nullptr && PyCFunction_CheckExact(sample) &&
                         PyCFunction_GET_FLAGS(sample) == (METH_FASTCALL | METH_KEYWORDS);
    return is_fast ? *slot_of(sample) : nullptr;
  }();
  return slot;
}

// What CPython itself puts into the slot of a method of this kind, read off a method of its own.
vectorcallfunc expected_method_slot(int flags) {
  const auto slot_of_sample = [](PyTypeObject& type, const char* name, int sample_flags) -> vectorcallfunc {
    PyObject* sample = PyObject_GetAttrString(reinterpret_cast<PyObject*>(&type), name);
    vectorcallfunc slot = nullptr;
    if (sample != nullptr && Py_TYPE(sample) == &PyMethodDescr_Type &&
        reinterpret_cast<PyMethodDescrObject*>(sample)->d_method->ml_flags == sample_flags) {
      slot = *slot_of(sample);
    }
    Py_XDECREF(sample);
    PyErr_Clear();
    return slot;
  };
  static const vectorcallfunc with_keywords = slot_of_sample(PyDict_Type, "update", METH_VARARGS | METH_KEYWORDS);
  static const vectorcallfunc without_arguments = slot_of_sample(PyDict_Type, "popitem", METH_NOARGS);
  return flags == METH_NOARGS ? without_arguments : with_keywords;
}

bool is_type_slot(PyObject* object) { return Py_TYPE(object) == &PyWrapperDescr_Type; }

// False with an exception when the object cannot be covered. A definition in memory that may not be written to must be
// found before the first store, not by it.
bool check(PyObject* object, const tensor::MemoryMap& memory, Target::Shape& shape) {
  if (is_type_slot(object)) {
    auto* descriptor = reinterpret_cast<PyWrapperDescrObject*>(object);
    if (PyDescr_TYPE(object) != tensor::api.tensor_base ||
        (std::string_view(descriptor->d_base->name) != "__setitem__" &&
         std::string_view(descriptor->d_base->name) != "__getitem__")) {
      return refuse(object, "only Tensor.__setitem__ and Tensor.__getitem__ are known among the slot wrappers");
    }
    const bool assigns = std::string_view(descriptor->d_base->name) == "__setitem__";
    shape = assigns ? Target::Shape::assignment : Target::Shape::subscript;
    return true;
  }
  if (Py_TYPE(object) == &PyMethodDescr_Type) {
    PyMethodDef* definition = reinterpret_cast<PyMethodDescrObject*>(object)->d_method;
    const int flags = definition->ml_flags;
    if (flags != METH_NOARGS && flags != (METH_VARARGS | METH_KEYWORDS)) {
      return refuse(object, "its calling convention is not known");
    }
    if (*slot_of(object) != expected_method_slot(flags)) return refuse(object, "its slot does not hold CPython's own");
    if (!memory.may_write(definition)) return refuse(object, "its definition may not be written to");
    shape = flags == METH_NOARGS ? Target::Shape::method_no_arguments : Target::Shape::method;
    return true;
  }
  if (PyCFunction_CheckExact(object)) {
    const int flags = PyCFunction_GET_FLAGS(object);
    if (flags == (METH_FASTCALL | METH_KEYWORDS)) {
      if (*slot_of(object) == nullptr || *slot_of(object) != expected_fast_function_slot()) {
        return refuse(object, "its slot does not hold CPython's own");
      }
      shape = Target::Shape::fast_operator;
      return true;
    }
    if ((flags & ~METH_STATIC) != (METH_VARARGS | METH_KEYWORDS)) {
      return refuse(object, "its calling convention is not known");
    }
    if (*slot_of(object) != nullptr) return refuse(object, "its slot is already in use");
    shape = Target::Shape::function;
    return true;
  }
  if (PyFunction_Check(object)) {
    shape = Target::Shape::python;
    return true;
  }
  // What torch 2.15 has in the place of the builtin where an operator is written in Python.
  if (std::string_view(Py_TYPE(object)->tp_name).starts_with("torch._C.") && PyVectorcall_Function(object) != nullptr &&
      Py_TYPE(object)->tp_call == PyVectorcall_Call) {
    shape = Target::Shape::fast_operator;
    return true;
  }
  PyErr_Format(PyExc_TypeError, "habana_mp can cover torch's builtins, Tensor's methods and Python functions; got %R",
               object);
  return false;
}

// ---- tensor[key] = value, tensor[key] -----------------------------------------------------------------------------

Target* assignment = nullptr;
objobjargproc original_assignment = nullptr;

int assignment_stub(PyObject* self, PyObject* key, PyObject* value) {
  return answer_assignment(*assignment, self, key, value, original_assignment);
}

Target* subscript = nullptr;
binaryfunc original_subscript = nullptr;

PyObject* subscript_stub(PyObject* self, PyObject* key) {
  return answer_subscript(*subscript, self, key, original_subscript);
}

// Every class keeps its own copy of the slot; those made later inherit what they find.
template <auto slot, typename Function>
void replace_in_classes(PyTypeObject* type, Function from, Function to) {
  PyMappingMethods* mapping = type->tp_as_mapping;
  if (mapping != nullptr && mapping->*slot == from) store(&(mapping->*slot), to);
  PyObject* subclasses = PyObject_CallMethod(reinterpret_cast<PyObject*>(type), "__subclasses__", nullptr);
  if (subclasses == nullptr) {
    PyErr_Clear();
    return;
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(subclasses); ++i) {
    replace_in_classes<slot>(reinterpret_cast<PyTypeObject*>(PyList_GET_ITEM(subclasses, i)), from, to);
  }
  Py_DECREF(subclasses);
}

// ---- storing ------------------------------------------------------------------------------------------------------

void hook(Target& target) {
  const std::size_t index = target.index;
  switch (target.shape) {
    case Target::Shape::function:
    case Target::Shape::slow_operator:
      target.original = PyCFunction_GET_FUNCTION(target.object);
      target.original_slot = *slot_of(target.object);
      store(slot_of(target.object), stubs[index].vectorcall);
      break;
    case Target::Shape::fast_operator: {
      // Where the flags say so the interpreter calls the C function itself, past the slot. The function stays the same:
      // a builtin's hash is made of it.
      if (PyCFunction_CheckExact(target.object)) {
        auto* function = reinterpret_cast<PyCFunctionObject*>(target.object);
        target.definition = function->m_ml;
        target.definition_with_slot = *function->m_ml;
        target.definition_with_slot.ml_flags = METH_VARARGS | METH_KEYWORDS;
        store(&function->m_ml, &target.definition_with_slot);
      }
      target.original_slot = *slot_of(target.object);
      store(slot_of(target.object), stubs[index].vectorcall);
      break;
    }
    case Target::Shape::method:
    case Target::Shape::method_no_arguments: {
      target.definition = reinterpret_cast<PyMethodDescrObject*>(target.object)->d_method;
      target.original = target.definition->ml_meth;
      target.original_slot = *slot_of(target.object);
      // A method's hash is not made of ml_meth (a builtin function's is), so this may change.
      const PyCFunction stub = target.shape == Target::Shape::method
                                   ? reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(stubs[index].method))
                                   : stubs[index].find_method;
      store(&target.definition->ml_meth, stub);
      store(slot_of(target.object), stubs[index].vectorcall);
      break;
    }
    case Target::Shape::assignment:
      assignment = &target;
      original_assignment = tensor::api.tensor_base->tp_as_mapping->mp_ass_subscript;
      store(&reinterpret_cast<PyWrapperDescrObject*>(target.object)->d_wrapped,
            reinterpret_cast<void*>(assignment_stub));
      replace_in_classes<&PyMappingMethods::mp_ass_subscript>(tensor::api.tensor_base, original_assignment,
                                                              objobjargproc{assignment_stub});
      break;
    case Target::Shape::subscript:
      subscript = &target;
      original_subscript = tensor::api.tensor_base->tp_as_mapping->mp_subscript;
      store(&reinterpret_cast<PyWrapperDescrObject*>(target.object)->d_wrapped,
            reinterpret_cast<void*>(subscript_stub));
      replace_in_classes<&PyMappingMethods::mp_subscript>(tensor::api.tensor_base, original_subscript,
                                                          binaryfunc{subscript_stub});
      break;
    case Target::Shape::python:
      break;
  }
  target.installed = true;
}

void unhook(Target& target) {
  switch (target.shape) {
    case Target::Shape::function:
    case Target::Shape::slow_operator:
      store(slot_of(target.object), target.original_slot);
      break;
    case Target::Shape::fast_operator:
      store(slot_of(target.object), target.original_slot);
      if (PyCFunction_CheckExact(target.object)) {
        store(&reinterpret_cast<PyCFunctionObject*>(target.object)->m_ml, target.definition);
      }
      break;
    case Target::Shape::method:
    case Target::Shape::method_no_arguments:
      store(slot_of(target.object), target.original_slot);
      store(&target.definition->ml_meth, target.original);
      break;
    case Target::Shape::assignment:
      store(&reinterpret_cast<PyWrapperDescrObject*>(target.object)->d_wrapped,
            reinterpret_cast<void*>(original_assignment));
      replace_in_classes<&PyMappingMethods::mp_ass_subscript>(tensor::api.tensor_base, objobjargproc{assignment_stub},
                                                              original_assignment);
      break;
    case Target::Shape::subscript:
      store(&reinterpret_cast<PyWrapperDescrObject*>(target.object)->d_wrapped,
            reinterpret_cast<void*>(original_subscript));
      replace_in_classes<&PyMappingMethods::mp_subscript>(tensor::api.tensor_base, binaryfunc{subscript_stub},
                                                          original_subscript);
      break;
    case Target::Shape::python:
      break;
  }
  target.listed = target.unlisted = &no_rule;
  target.installed = target.in_policy = target.in_regions = false;
}

// ---- probes -------------------------------------------------------------------------------------------------------

// A builtin whose calls are watched. It may have any calling convention: where the interpreter would inline a call, the
// builtin gets a definition of ours with the same C function and other flags.
struct Probe {
  PyObject* object = nullptr;
  vectorcallfunc original_slot = nullptr;
  PyMethodDef* original_definition = nullptr;
  PyMethodDef definition{};
  std::string text;         // of our definition, where the builtin tells a signature
  bool is_watched = false;  // afterwards the rest stays, but for writers: a call may be under way

  PyObject* call(PyObject* const* values, std::size_t flagged_count, PyObject* keywords) const {
    if (original_slot != nullptr) return original_slot(object, values, flagged_count, keywords);
    return call_with_values(original_definition->ml_meth, PyCFunction_GET_SELF(object),
                            {values, PyVectorcall_NARGS(flagged_count), keywords});
  }
};

Probe autocast_set_enabled;
Probe autocast_set_dtype;
Probe autocast_increment;
Probe autocast_decrement;
Probe module_constructed;
Probe make_subclass;
Probe is_autocast_enabled;
Probe to_dlpack;
Probe to_dlpack_versioned;
Probe set_version_counter;
std::vector<std::unique_ptr<Probe>> writers;

PyObject* autocast_set_enabled_stub(PyObject*, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  const Py_ssize_t count = PyVectorcall_NARGS(flagged_count);
  const bool enabled = keywords == nullptr && count >= 1 && values[count - 1] == Py_True;
  const bool is_ours = keywords == nullptr && count == 2 && PyUnicode_Check(values[0]) &&
                       PyUnicode_CompareWithASCIIString(values[0], disabled_flag) == 0;
  const bool is_mark_of_ours = keywords == nullptr && count == 2 && is_mark(values[0]);
  const bool casts = !casts_are_disabled() || thread_state.disabled_by_region;
  if (enabled && casts && !is_ours && !is_mark_of_ours && (policy_is_installed || thread_state.region != nullptr)) {
    // Before it is enabled: the warning may be an error.
    PyObject* told = PyObject_CallNoArgs(places().autocast_entered);
    if (told == nullptr) return nullptr;
    Py_DECREF(told);
  }
  PyObject* result = autocast_set_enabled.call(values, flagged_count, keywords);
  if (result == nullptr || keywords != nullptr || count < 1) return result;
  if (is_ours) {
    flag_was_set(enabled);
    thread_state.entering = Region::as_outside;
  } else if (is_mark_of_ours) {
    thread_state.entering = Region::ours;
  } else {
    const bool is_wish = enabled || !region_is_torchs_own();
    thread_state.entering = !is_wish ? region_of_torchs_own() : enabled ? Region::casts : Region::no_casts;
    if (PyErr_Occurred() != nullptr) Py_CLEAR(result);  // interrupted
  }
  return result;
}

PyObject* autocast_set_dtype_stub(PyObject*, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  PyObject* result = autocast_set_dtype.call(values, flagged_count, keywords);
  const bool is_plain = result != nullptr && keywords == nullptr && PyVectorcall_NARGS(flagged_count) == 2;
  if (is_plain && is_mark(values[0])) mark_was_set(values[1]);
  return result;
}

PyObject* autocast_increment_stub(PyObject*, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  PyObject* result = autocast_increment.call(values, flagged_count, keywords);
  if (result != nullptr) region_is_entered();
  return result;
}

PyObject* autocast_decrement_stub(PyObject*, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  PyObject* result = autocast_decrement.call(values, flagged_count, keywords);
  if (result != nullptr) region_is_left();
  return result;
}

PyObject* module_constructed_stub(PyObject*, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  const Py_ssize_t count = PyVectorcall_NARGS(flagged_count);
  if (count == 1 && PyUnicode_Check(values[0]) &&
      PyUnicode_CompareWithASCIIString(values[0], "python.nn_module") == 0) {
    construction_begins();
  }
  return module_constructed.call(values, flagged_count, keywords);
}

// Shows Python the values that are state from now on, if they are in a lower precision, and the float32 tensor whose
// values they become, or None. What is to be taken in their stead, a new reference: they themselves, or, where they
// were lowered, in float32. Null with an exception set when the warning was made an error.
PyObject* values_of_state(PyObject* values, const char* what, PyObject* former) {
  if (!is_lower(tensor::kind_of(values))) return Py_NewRef(values);
  return PyObject_CallFunction(places().made_of_lowered, "sOO", what, values, former);
}

// A Parameter made of a result that was lowered would be a lowered weight.
PyObject* make_subclass_stub(PyObject*, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  const Py_ssize_t given = PyVectorcall_NARGS(flagged_count);
  if (given < 2 || values[0] != reinterpret_cast<PyObject*>(tensor::api.parameter)) {
    return make_subclass.call(values, flagged_count, keywords);
  }
  PyObject* data = values_of_state(values[1], "a Parameter", Py_None);
  if (data == nullptr) return nullptr;
  std::vector<PyObject*> taken(values, values + Arguments{values, given, keywords}.count());
  taken[1] = data;
  PyObject* result = make_subclass.call(taken.data(), static_cast<std::size_t>(given), keywords);
  Py_DECREF(data);
  return result;
}

PyObject* is_autocast_enabled_stub(PyObject*, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  PyObject* result = is_autocast_enabled.call(values, flagged_count, keywords);
  const bool in_region = thread_state.region != nullptr && !is_of_modules(thread_state.region);
  if (result == Py_False && PyVectorcall_NARGS(flagged_count) == 1 && in_region && caller_is_custom_fwd()) {
    Py_DECREF(result);
    return PyObject_CallNoArgs(places().custom_fwd_asks);
  }
  return result;
}

// ---- weights' memory that gets into other hands --------------------------------------------------------------------

// Whoever takes a DLPack capsule holds nothing that torch counts.
PyObject* to_dlpack_stub(PyObject*, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  if (PyVectorcall_NARGS(flagged_count) >= 1) weights::tensor_escapes(values[0], true);
  return to_dlpack.call(values, flagged_count, keywords);
}

PyObject* to_dlpack_versioned_stub(PyObject*, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  if (PyVectorcall_NARGS(flagged_count) >= 1) weights::tensor_escapes(values[0], true);
  return to_dlpack_versioned.call(values, flagged_count, keywords);
}

// A version that is set back hides that a tensor was written to.
PyObject* set_version_counter_stub(PyObject*, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  PyObject* tensors = PyVectorcall_NARGS(flagged_count) >= 1 ? values[0] : Py_None;
  if (PyTuple_Check(tensors)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensors); ++i) {
      weights::tensor_escapes(PyTuple_GET_ITEM(tensors, i), false);
    }
  } else {
    weights::tensor_escapes(tensors, false);
  }
  return set_version_counter.call(values, flagged_count, keywords);
}

// Of lists too, and of lists in them, as torch takes them: not by iterating.
void tensors_escape(PyObject* value, int depth = 0) {
  constexpr int deepest = 2;
  if (!PyList_Check(value) && !PyTuple_Check(value)) {
    weights::tensor_escapes(value, false);
    return;
  }
  for (Py_ssize_t i = 0; depth < deepest && i < PySequence_Fast_GET_SIZE(value); ++i) {
    tensors_escape(PySequence_Fast_GET_ITEM(value, i), depth + 1);
  }
}

PyObject* writer_stub(PyObject* callable, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  const Py_ssize_t count = Arguments{values, PyVectorcall_NARGS(flagged_count), keywords}.count();
  for (Py_ssize_t i = 0; i < count; ++i) tensors_escape(values[i]);
  const auto found =
      std::find_if(writers.begin(), writers.end(), [=](const auto& one) { return one->object == callable; });
  if (found != writers.end()) {
    PyObject* result = (*found)->call(values, flagged_count, keywords);
    if (result != nullptr) {
      for (Py_ssize_t i = 0; i < count; ++i) tensors_escape(values[i]);
    }
    return result;
  }
  PyErr_SetString(PyExc_RuntimeError, "habana_mp was restored while this function was being called");
  return nullptr;
}

// ---- tensor.data = value -------------------------------------------------------------------------------------------

setter original_data_setter = nullptr;
bool data_is_watched = false;

// A float32 weight that gets lowered data this way would lose its precision without a cast that anybody wrote.
int data_setter_stub(PyObject* self, PyObject* value, void* closure) {
  weights::tensor_escapes(self, false);
  if (value != nullptr) weights::tensor_escapes(value, false);
  // Before it is assigned: the warning may be an error, and what the value was computed from may be this tensor.
  if (value == nullptr || tensor::kind_of(self) != Kind::f32) return original_data_setter(self, value, closure);
  PyObject* taken = values_of_state(value, "a tensor whose `.data` was assigned", self);
  if (taken == nullptr) return -1;
  const int result = original_data_setter(self, taken, closure);
  Py_DECREF(taken);
  return result;
}

struct ProbePlan {
  Probe* probe;
  PyObject* object;
  vectorcallfunc stub;
};

// Where a definition's text tells no signature newer Pythons tell one by its flags (3.13), and ours has others. So its
// text tells the signature, as CPython's own do, and then what the text told before. Empty where there is none to tell.
std::string text_with_signature(PyObject* function) {
  const auto ask = [=](const char* name) -> std::string {
    PyObject* value = PyObject_GetAttrString(function, name);
    const char* text = value != nullptr && PyUnicode_Check(value) ? PyUnicode_AsUTF8(value) : nullptr;
    std::string told = text == nullptr ? "" : text;
    Py_XDECREF(value);
    PyErr_Clear();
    return told;
  };
  const std::string signature = ask("__text_signature__");
  return signature.empty() ? "" : ask("__name__") + signature + "\n--\n\n" + ask("__doc__");
}

void watch(const ProbePlan& plan) {
  Probe& probe = *plan.probe;
  auto* function = reinterpret_cast<PyCFunctionObject*>(plan.object);
  Py_XSETREF(probe.object, Py_NewRef(plan.object));
  probe.is_watched = true;
  probe.original_slot = function->vectorcall;
  probe.original_definition = function->m_ml;
  if (probe.original_slot != nullptr) {
    probe.definition = *function->m_ml;
    probe.definition.ml_flags = METH_VARARGS | METH_KEYWORDS;
    probe.text = text_with_signature(plan.object);
    if (!probe.text.empty()) probe.definition.ml_doc = probe.text.c_str();
    store(&function->m_ml, &probe.definition);
  }
  store(&function->vectorcall, plan.stub);
}

void stop_watching(Probe& probe) {
  if (!std::exchange(probe.is_watched, false)) return;
  auto* function = reinterpret_cast<PyCFunctionObject*>(probe.object);
  store(&function->vectorcall, probe.original_slot);
  store(&function->m_ml, probe.original_definition);
}

}  // namespace

bool can_cover(PyObject* object) noexcept {
  constexpr int with_keywords = METH_VARARGS | METH_KEYWORDS;
  if (Py_TYPE(object) == &PyMethodDescr_Type) {
    const int flags = reinterpret_cast<PyMethodDescrObject*>(object)->d_method->ml_flags;
    return flags == METH_NOARGS || flags == with_keywords;
  }
  if (!PyCFunction_CheckExact(object)) return false;
  const int flags = PyCFunction_GET_FLAGS(object) & ~METH_STATIC;
  return flags == with_keywords || flags == (METH_FASTCALL | METH_KEYWORDS);
}

namespace {

std::uint64_t changes = 0;

// A target for each entry. False with a Python exception set where one of them cannot be covered.
bool find_targets(const std::vector<Entry>& entries, std::vector<Target*>& found) {
  const tensor::MemoryMap memory;
  found.reserve(entries.size());
  for (const Entry& entry : entries) {
    Target::Shape shape = Target::Shape::function;
    Target* target = find_target(entry.object);
    if (target == nullptr || !target->installed) {
      if (!check(entry.object, memory, shape)) return false;
      const bool is_operator = entry.operation.find("::") != std::string::npos;
      if (is_operator && shape == Target::Shape::function) shape = Target::Shape::slow_operator;
      target = target_for(entry.object, shape, entry.operation.c_str(), entry.shown);
      if (target == nullptr) return false;
    }
    found.push_back(target);
  }
  return true;
}

}  // namespace

bool install(const std::vector<Entry>& entries, bool within_modules) {
  std::vector<Target*> found;
  if (!find_targets(entries, found)) return false;
  RuleSet* of_modules = within_modules ? rule_set_of_modules() : known_rule_set_of_modules();
  if (within_modules && of_modules == nullptr) return false;
  const std::unordered_set<Target*> wanted(found.begin(), found.end());
  // From here on nothing can fail.
  ++changes;
  if (of_modules != nullptr) of_modules->rules.fill(&no_rule);
  weights::watch_view_and_numpy(&lists_speak_here);
  for (std::size_t i = 0; i < target_count; ++i) {
    Target& target = *targets[i];
    target.in_policy = wanted.contains(&target);
    if (target.in_policy || !target.installed) continue;
    target.listed = &no_rule;
    if (!target.in_regions) unhook(target);
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    found[i]->operation = entries[i].operation;
    const Rule* listed = intern(entries[i].listed);
    if (of_modules != nullptr) of_modules->rules[found[i]->index] = listed;
    found[i]->listed = within_modules ? intern(without_lowering(entries[i].listed, entries[i].unlisted)) : listed;
    found[i]->unlisted = intern(entries[i].unlisted);
    found[i]->counts_no_version = entries[i].unlisted.counts_no_version;
  }
  for (std::size_t i = 0; i < target_count; ++i) {
    if (targets[i]->in_policy && !targets[i]->installed) hook(*targets[i]);
  }
  policy_is_installed = !entries.empty();
  return true;
}

static bool may_put_in(const RuleSet& set) {
  const tensor::MemoryMap memory;
  Target::Shape shape = Target::Shape::function;
  return std::all_of(set.covered.begin(), set.covered.end(), [&](const RuleSet::Covered& one) {
    return one.target->installed || check(one.target->object, memory, shape);
  });
}

RuleSet* make_rule_set(const std::vector<Entry>& entries, RuleSet::Device device, PyObject* after_recorded_cast,
                       const std::string& name) {
  std::vector<Target*> found;
  if (!find_targets(entries, found)) return nullptr;
  RuleSet content;
  content.rules.fill(&no_rule);
  content.device = device;
  content.after_recorded_cast = after_recorded_cast;
  content.name = name;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    content.rules[found[i]->index] = intern(entries[i].listed);
    content.covered.push_back({found[i], intern(entries[i].unlisted)});
    if (!found[i]->installed) found[i]->operation = entries[i].operation;
  }
  if (!may_put_in(content)) return nullptr;  // before it takes one of the numbers that there are
  RuleSet* set = intern_rule_set(std::move(content));
  return set == nullptr || !put_in(*set) ? nullptr : set;
}

bool put_in(RuleSet& set) {
  if (!may_put_in(set)) return false;
  ++changes;
  weights::watch_view_and_numpy(&lists_speak_here);
  for (const RuleSet::Covered& one : set.covered) {
    one.target->in_regions = true;
    if (one.target->installed) continue;
    one.target->unlisted = one.unlisted;
    one.target->counts_no_version = one.unlisted->counts_no_version;
    hook(*one.target);
  }
  set.installation = installation_number();
  return true;
}

void uninstall() noexcept {
  forget_regions();
  stop_watching_modules();
  if (RuleSet* of_modules = known_rule_set_of_modules()) of_modules->rules.fill(&no_rule);
  policy_is_installed = false;
  tensor::forget_buffers();
  for (std::size_t i = 0; i < target_count; ++i) {
    if (targets[i]->installed) unhook(*targets[i]);
  }
  weights::stop_watching_view_and_numpy();
  for (Probe* probe :
       {&autocast_set_enabled, &autocast_set_dtype, &autocast_increment, &autocast_decrement, &module_constructed,
        &make_subclass, &is_autocast_enabled, &to_dlpack, &to_dlpack_versioned, &set_version_counter}) {
    stop_watching(*probe);
  }
  for (const auto& writer : writers) {
    stop_watching(*writer);
    Py_CLEAR(writer->object);
  }
  writers.clear();
  if (std::exchange(data_is_watched, false)) store(&tensor::api.data->set, original_data_setter);
}

bool install_probes(const Probes& probes) {
  std::vector<ProbePlan> plans = {
      {&autocast_set_enabled, probes.autocast_set_enabled, autocast_set_enabled_stub},
      {&autocast_set_dtype, probes.autocast_set_dtype, autocast_set_dtype_stub},
      {&autocast_increment, probes.autocast_increment_nesting, autocast_increment_stub},
      {&autocast_decrement, probes.autocast_decrement_nesting, autocast_decrement_stub},
      {&module_constructed, probes.module_constructed, module_constructed_stub},
      {&make_subclass, probes.make_subclass, make_subclass_stub},
      {&is_autocast_enabled, probes.is_autocast_enabled, is_autocast_enabled_stub},
      {&to_dlpack, probes.to_dlpack, to_dlpack_stub},
      {&to_dlpack_versioned, probes.to_dlpack_versioned, to_dlpack_versioned_stub},
      {&set_version_counter, probes.set_version_counter, set_version_counter_stub},
  };
  std::vector<std::unique_ptr<Probe>> more;
  for (PyObject* writer : writers.empty() ? probes.writers : std::vector<PyObject*>()) {
    const bool is_known =
        std::any_of(plans.begin(), plans.end(), [=](const ProbePlan& plan) { return plan.object == writer; });
    if (is_known) continue;
    plans.push_back({more.emplace_back(std::make_unique<Probe>()).get(), writer, writer_stub});
  }
  for (const ProbePlan& plan : plans) {
    if (plan.object != Py_None && !PyCFunction_CheckExact(plan.object))
      return refuse(plan.object, "it is not a builtin function");
  }
  if (!tensor::MemoryMap().may_write(&tensor::api.data->set)) {
    PyErr_SetString(PyExc_RuntimeError, "habana_mp cannot watch Tensor.data: its definition may not be written to");
    return false;
  }
  for (const ProbePlan& plan : plans) {
    if (plan.object != Py_None && !plan.probe->is_watched) watch(plan);
  }
  if (!more.empty()) writers = std::move(more);
  if (!std::exchange(data_is_watched, true)) {
    original_data_setter = tensor::api.data->set;
    store(&tensor::api.data->set, data_setter_stub);
  }
  return true;
}

std::uint64_t change_count() noexcept { return changes; }

std::size_t installed_count() noexcept {
  std::size_t count = 0;
  for (std::size_t i = 0; i < target_count; ++i) count += targets[i]->installed ? 1 : 0;
  return count;
}

}  // namespace habana_mp::engine
