#include "host/taps.hpp"

#include <utility>

#include "atomic_store.hpp"
#include "errors.hpp"
#include "host/ledger.hpp"
#include "host/torch_api.hpp"

namespace habana_mp::host {

namespace {

Assumption definitions{
    "cpython.definitions",
    "every call of a method of C goes to the function of its definition, every use of an attribute to the functions of "
    "its own",
    "the object's type and flags",
    "convert refuses, and nothing has changed; or, of what tells of weights, no cast of a weight is cached"};

// Returns the documentation for the new definition: the signature in CPython's format, and then the original text. If
// the text has no signature, Python 3.13 and newer derive one from the flags, which differ in the new definition. Empty
// if the function has no signature.
std::string text_with_signature(PyObject* function) {
  const auto ask = [=](const char* name) -> std::string {
    const Owned value(PyObject_GetAttrString(function, name));
    const char* text = value && PyUnicode_Check(value.get()) ? PyUnicode_AsUTF8(value.get()) : nullptr;
    std::string found = text == nullptr ? "" : text;
    drop_error_unless_memory_error();
    return found;
  };
  const std::string signature = ask("__text_signature__");
  return signature.empty() ? "" : ask("__name__") + signature + "\n--\n\n" + ask("__doc__");
}

// Returns what CPython stores in the slot of each Python function; null if no sample could be made.
vectorcallfunc slot_of_functions() {
  static const vectorcallfunc slot = []() -> vectorcallfunc {
    const Owned code(reinterpret_cast<PyObject*>(PyCode_NewEmpty("", "sample", 1)));
    const Owned globals(PyDict_New());
    const Owned sample(code && globals ? PyFunction_New(code.get(), globals.get()) : nullptr);
    clear_error();
    return sample ? reinterpret_cast<PyFunctionObject*>(sample.get())->vectorcall : nullptr;
  }();
  return slot;
}

// Calls that the interpreter has specialized for the function bypass the slot unless the function's version is reset.
void set_slot(PyFunctionObject* function, vectorcallfunc slot) {
#if PY_VERSION_HEX >= 0x030C0000
  PyFunction_SetVectorcall(function, slot);
#else
  function->vectorcall = slot;
  function->func_version = 0;
#endif
}

}  // namespace

bool TappedBuiltin::check(PyObject* object) {
  return PyCFunction_CheckExact(object) || refuse(object, "it is not a builtin function");
}

void TappedBuiltin::prepare(PyObject* builtin) {
  if (is_tapped_) return;
  const bool is_inlined = reinterpret_cast<PyCFunctionObject*>(builtin)->vectorcall != nullptr;
  text_ = is_inlined ? text_with_signature(builtin) : std::string();
}

void TappedBuiltin::tap(PyObject* builtin, FromC<vectorcallfunc> stub) noexcept {
  auto* function = reinterpret_cast<PyCFunctionObject*>(builtin);
  *object_ = Owned::borrowed(builtin);
  is_tapped_ = true;
  original_slot_ = function->vectorcall;
  original_definition_ = function->m_ml;
  if (original_slot_ != nullptr) {
    definition_ = *function->m_ml;
    definition_.ml_flags = METH_VARARGS | METH_KEYWORDS;
    if (!text_.empty()) definition_.ml_doc = text_.c_str();
    store(&function->m_ml, &definition_);
  }
  store(&function->vectorcall, stub.pointer());
}

void TappedBuiltin::stop() noexcept {
  if (!std::exchange(is_tapped_, false)) return;
  auto* function = reinterpret_cast<PyCFunctionObject*>(object());
  store(&function->vectorcall, original_slot_);
  store(&function->m_ml, original_definition_);
}

void TappedBuiltin::forget() noexcept {
  stop();
  object_->reset();
}

PyObject* TappedBuiltin::call(PyObject* const* values, std::size_t flagged_count, PyObject* keywords) const {
  if (original_slot_ != nullptr) return original_slot_(object(), values, flagged_count, keywords);
  return call_with_tuple(original_definition_->ml_meth, PyCFunction_GET_SELF(object()),
                         {values, PyVectorcall_NARGS(flagged_count), keywords});
}

bool TappedMethod::check(PyObject* method, int flags) {
  const auto fits = [&] {
    return method != nullptr && Py_TYPE(method) == &PyMethodDescr_Type &&
           reinterpret_cast<PyMethodDescrObject*>(method)->d_method->ml_flags == flags;
  };
  if (definitions.holds_by(fits)) return true;
  PyErr_Format(PyExc_RuntimeError, "habana_mp cannot tap %R: its calling convention is not known", method);
  return false;
}

void TappedMethod::tap(PyObject* method, MethodStub stub) noexcept {
  TappedPointer::tap(&reinterpret_cast<PyMethodDescrObject*>(method)->d_method->ml_meth, stub);
}

bool TappedFunction::check(PyObject* function) {
  const vectorcallfunc expected = slot_of_functions();
  return PyFunction_Check(function) && expected != nullptr &&
         reinterpret_cast<PyFunctionObject*>(function)->vectorcall == expected;
}

void TappedFunction::tap(PyObject* function, FromC<vectorcallfunc> stub) noexcept {
  *function_ = Owned::borrowed(function);
  is_tapped_ = true;
  auto* const as_function_object = reinterpret_cast<PyFunctionObject*>(function);
  original_ = as_function_object->vectorcall;
  set_slot(as_function_object, stub.pointer());
}

void TappedFunction::exchange_stub(FromC<vectorcallfunc> stub) noexcept {
  if (is_tapped()) set_slot(reinterpret_cast<PyFunctionObject*>(function_->get()), stub.pointer());
}

void TappedFunction::stop() noexcept {
  if (std::exchange(is_tapped_, false)) set_slot(reinterpret_cast<PyFunctionObject*>(function_->get()), original_);
}

}  // namespace habana_mp::host
