#include "engine/taps.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "engine/arguments.hpp"
#include "engine/known_tensors.hpp"
#include "engine/region.hpp"
#include "engine/state.hpp"
#include "engine/target.hpp"
#include "errors.hpp"
#include "host/modes.hpp"
#include "host/reader.hpp"
#include "host/tapped_builtins.hpp"
#include "host/taps.hpp"
#include "host/tensors.hpp"
#include "listeners.hpp"
#include "watch/values.hpp"
#include "weights/escapes.hpp"

namespace habana_mp::engine {

using host::TappedBuiltin;

namespace {

#define HABANA_MP_MEMBER(name, ...) TappedBuiltin name;
HABANA_MP_TAPPED_BUILTINS(HABANA_MP_MEMBER)
#undef HABANA_MP_MEMBER

using Writers = std::unordered_map<PyObject*, std::unique_ptr<TappedBuiltin>>;
Writers writers;

// The keywords of these torch functions.
struct Names {
  PyObject* device_type = interned("device_type");
  PyObject* enabled = interned("enabled");
  PyObject* dtype = interned("dtype");
  PyObject* cls = interned("cls");
  PyObject* data = interned("data");
};
const Names& names() {
  static const Names known;
  return known;
}

// The device types whose regions count, a tuple of strings; null if all count.
NeverDestroyed<Owned> devices_of_regions;

bool is_device_of_regions(PyObject* device_type) {
  if (device_type == nullptr || !PyUnicode_Check(device_type)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(devices_of_regions->get()); ++i) {
    if (PyUnicode_Compare(device_type, PyTuple_GET_ITEM(devices_of_regions->get(), i)) == 0) return true;
  }
  return false;
}

// True for the names that the stand-in for Gaudi adds. The real device is the first one.
bool is_stand_in(PyObject* device_type) {
  return *devices_of_regions && is_device_of_regions(device_type) &&
         PyUnicode_Compare(device_type, PyTuple_GET_ITEM(devices_of_regions->get(), 0)) != 0;
}

// The device type and the value that `set_autocast_enabled` or `set_autocast_dtype` gets, by position or by keyword.
// Null if the call has none: an older form of the first function takes no device type.
struct AutocastSetting {
  PyObject* device_type = nullptr;
  PyObject* value = nullptr;

  AutocastSetting(const Arguments& arguments, PyObject* name_of_value) {
    const bool has_device = arguments.count() > 1;
    if (has_device) device_type = find_argument(arguments, 0, names().device_type);
    value = find_argument(arguments, has_device ? 1 : 0, name_of_value);
  }
  [[nodiscard]] bool is_of(const char* device) const {
    return device_type != nullptr && PyUnicode_Check(device_type) &&
           PyUnicode_CompareWithASCIIString(device_type, device) == 0;
  }
  [[nodiscard]] bool is_of_mark() const { return device_type != nullptr && is_mark(device_type); }
  // False for a region of a device that the program does not use.
  [[nodiscard]] bool counts() const { return !*devices_of_regions || is_device_of_regions(device_type); }
};

// Tells Python of a region that is entered while casts are on. False with an exception set if its warning is an error.
bool note_region(const AutocastSetting& given, bool enabled) {
  const bool casts = (policy_is_installed || thread_state.region != nullptr) &&
                     (!casts_are_disabled() || thread_state.disabled_by_region);
  if (!casts || (!enabled && given.is_of("cpu"))) return true;  // a disabled region of the CPU needs no note
  PyObject* const device_type = given.device_type == nullptr ? Py_None : given.device_type;
  return static_cast<bool>(Owned(PyObject_CallFunctionObjArgs(recognised().autocast_entered.get(), device_type,
                                                              enabled ? Py_True : Py_False, nullptr)));
}

PyObject* autocast_set_enabled_stub(PyObject*, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  const AutocastSetting given({values, PyVectorcall_NARGS(flagged_count), keywords}, names().enabled);
  const bool enabled = given.value == Py_True;
  const bool is_flag = given.is_of(host::disabled_device);
  std::optional<CastState> entering;
  if (!is_flag && !given.is_of_mark() && given.counts()) {
    // This comes before autocast is enabled: nothing can fail afterwards.
    if (!note_region(given, enabled)) return nullptr;
    entering = state_in_region(enabled);
  }
  PyObject* result = autocast_set_enabled.call(values, flagged_count, keywords);
  if (result == nullptr || given.value == nullptr || given.is_of_mark()) return result;
  if (is_flag) flag_was_set(enabled);
  thread_state.entering = entering ? *entering : state_in_uncounted_region();
  return result;
}

PyObject* autocast_set_dtype_stub(PyObject*, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  PyObject* result = autocast_set_dtype.call(values, flagged_count, keywords);
  const AutocastSetting given({values, PyVectorcall_NARGS(flagged_count), keywords}, names().dtype);
  if (result != nullptr && given.value != nullptr && given.is_of_mark()) region_dtype_was_set(given.value);
  return result;
}

PyObject* autocast_increment_stub(PyObject*, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  prepare_region();
  PyObject* result = autocast_increment.call(values, flagged_count, keywords);
  if (result != nullptr) autocast_region_is_entered();
  return result;
}

PyObject* autocast_decrement_stub(PyObject*, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  PyObject* result = autocast_decrement.call(values, flagged_count, keywords);
  if (result != nullptr) autocast_region_is_left();
  return result;
}

PyObject* module_constructed_stub(PyObject*, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  const Py_ssize_t count = PyVectorcall_NARGS(flagged_count);
  if (count == 1 && PyUnicode_Check(values[0]) &&
      PyUnicode_CompareWithASCIIString(values[0], "python.nn_module") == 0) {
    construction_begins(nullptr);
  }
  return module_constructed.call(values, flagged_count, keywords);
}

// Returns the values to store as state in place of `values`: the same ones, or if they were lowered, in float32. Values
// in a lower precision are passed to Python, with the float32 tensor that they replace, or None. Null with an exception
// set if the warning is an error.
Owned values_of_state(PyObject* values, const char* what, PyObject* former) {
  if (!is_lower(host::kind_of(values))) return Owned::borrowed(values);
  return Owned(PyObject_CallFunction(recognised().made_of_lowered.get(), "sOO", what, values, former));
}

// A Parameter made of a lowered result would be a lowered weight.
PyObject* make_subclass_stub(PyObject*, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  const Arguments given{values, PyVectorcall_NARGS(flagged_count), keywords};
  PyObject* const data = find_argument(given, 1, names().data);
  if (data == nullptr || !host::is_parameter_class(find_argument(given, 0, names().cls))) {
    return make_subclass.call(values, flagged_count, keywords);
  }
  const Owned parameter_data = values_of_state(data, "a Parameter", Py_None);
  if (!parameter_data) return nullptr;
  std::vector<PyObject*> taken(values, values + given.count());
  *std::find(taken.begin(), taken.end(), data) = parameter_data.get();
  return make_subclass.call(taken.data(), static_cast<std::size_t>(given.positional), keywords);
}

PyObject* is_autocast_enabled_stub(PyObject*, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  Owned result(is_autocast_enabled.call(values, flagged_count, keywords));
  const Arguments given{values, PyVectorcall_NARGS(flagged_count), keywords};
  const RuleSet* region = base_of(thread_state.region);
  const bool in_region = region != nullptr && !is_of_modules(region);
  if (result.get() != Py_False || !in_region || given.count() != 1) return result.release();
  if (caller_is_custom_fwd()) return PyObject_CallNoArgs(recognised().custom_fwd_asks.get());
  return is_stand_in(find_argument(given, 0, names().device_type)) ? PyBool_FromLong(lists_apply_here())
                                                                   : result.release();
}

// ---- weights' memory that other code gets --------------------------------------------------------------------------

// A DLPack capsule.
template <const TappedBuiltin& exporter>
PyObject* exporting_stub(PyObject*, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  const Py_ssize_t count = Arguments{values, PyVectorcall_NARGS(flagged_count), keywords}.count();
  for (Py_ssize_t i = 0; i < count; ++i) weights::tensor_is_lent(values[i]);
  return exporter.call(values, flagged_count, keywords);
}
constexpr auto to_dlpack_stub = exporting_stub<to_dlpack>;
constexpr auto to_dlpack_versioned_stub = exporting_stub<to_dlpack_versioned>;

// A pointer, or a version counter that is set back and so hides a write.
template <const TappedBuiltin& builtin>
PyObject* escaping_stub(PyObject*, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  weights::arguments_escape(values, Arguments{values, PyVectorcall_NARGS(flagged_count), keywords}.count());
  return builtin.call(values, flagged_count, keywords);
}
constexpr auto data_address_stub = escaping_stub<data_address>;
constexpr auto set_version_counter_stub = escaping_stub<set_version_counter>;

PyObject* writer_stub(PyObject* callable, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  const Py_ssize_t count = Arguments{values, PyVectorcall_NARGS(flagged_count), keywords}.count();
  weights::arguments_escape(values, count);
  const auto found = writers.find(callable);
  if (found != writers.end()) {
    PyObject* result = found->second->call(values, flagged_count, keywords);
    if (result != nullptr) weights::arguments_escape(values, count);
    return result;
  }
  PyErr_SetString(PyExc_RuntimeError, "habana_mp was restored while this function was being called");
  return nullptr;
}

// Taps these builtins, except those that are already tapped. False with an exception set on failure; then nothing
// has changed.
bool add_writers(const std::vector<PyObject*>& builtins) {
  for (PyObject* builtin : builtins) {
    if (!TappedBuiltin::check(builtin)) return false;
  }
  for (PyObject* builtin : builtins) {
    if (writers.contains(builtin)) continue;
    auto made = std::make_unique<TappedBuiltin>();
    made->prepare(builtin);
    writers.try_emplace(builtin, std::move(made));
  }
  // From here on nothing can fail.
  for (PyObject* builtin : builtins) {
    TappedBuiltin& writer = *writers.find(builtin)->second;
    if (writer.is_tapped()) continue;
    writer.tap(builtin, from_c<writer_stub>);
    Target* target = find_target(builtin);
    if (target != nullptr && target->installed) {
      writer.stop();
      target->is_writer = target->counts_no_version = true;
    }
  }
  return true;
}

// torch.ops looks up an operator at its first use. A Python function then returns those of its builtins that are to be
// tapped.
template <const TappedBuiltin& lookup>
PyObject* lookup_stub(PyObject*, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  Owned result(lookup.call(values, flagged_count, keywords));
  if (!result || result.get() == Py_None || !recognised().operator_found) return result.release();
  const Py_ssize_t count = Arguments{values, PyVectorcall_NARGS(flagged_count), keywords}.count();
  PyObject* const arguments[] = {result.get(), values[0], count > 1 ? values[1] : Py_None};
  const Owned found(PyObject_Vectorcall(recognised().operator_found.get(), arguments, 3, nullptr));
  if (!found) return nullptr;
  const auto* items = PySequence_Fast_ITEMS(found.get());
  if (!add_writers({items, items + PySequence_Fast_GET_SIZE(found.get())})) return nullptr;
  return result.release();
}
constexpr auto find_operator_stub = lookup_stub<find_operator>;
constexpr auto find_overload_stub = lookup_stub<find_overload>;

// ---- tensor.data = value -------------------------------------------------------------------------------------------

host::TappedPointer<setter> data;

// A float32 weight that gets lowered data this way would lose its precision although the user wrote no cast.
int data_setter_stub(PyObject* self, PyObject* value, void* closure) {
  weights::tensor_escapes(self);
  if (value != nullptr) weights::tensor_is_aliased(value, self);
  // This comes before the assignment: the warning may be an error, and the value may have been computed from this
  // tensor.
  if (value == nullptr || host::kind_of(self) != Kind::f32) return data.original()(self, value, closure);
  if (is_lower(host::kind_of(value)) && listens(Listener::watch)) watch::notice_carried(value, self);
  note_data_of_weight(self, value);
  const Owned taken = values_of_state(value, "the `.data` of a tensor", self);
  return taken ? data.original()(self, taken.get(), closure) : -1;
}

// ---- conversions, and attributes of modules -------------------------------------------------------------------------

host::TappedMethod to_dtype;
host::TappedMethod to_bfloat16;
host::TappedMethod to_half;
host::TappedMethod to_type;

template <const host::TappedMethod& method>
PyObject* converting_stub(PyObject* self, PyObject* arguments, PyObject* keywords) {
  Owned result(method.call(self, arguments, keywords));
  return result && remember_converted(self, result.get()) ? result.release() : nullptr;
}

const struct {
  host::TappedMethod& method;
  const char* name;
  host::MethodStub stub;
} conversions[] = {
    {to_dtype, "to", from_c<converting_stub<to_dtype>>},
    {to_bfloat16, "bfloat16", from_c<converting_stub<to_bfloat16>>},
    {to_half, "half", from_c<converting_stub<to_half>>},
    {to_type, "type", from_c<converting_stub<to_type>>},
};
constexpr std::size_t conversion_count = std::size(conversions);

host::TappedFunction set_attribute;

// The floating tensor that a module holds under a name, or null.
struct Former {
  Owned tensor;
  bool is_buffer = false;
};

// Looks for an attribute or a buffer. After a failure an exception may be set.
Former former_tensor(PyObject* module, PyObject* name) {
  static PyObject* const dict_name = interned("__dict__");
  static PyObject* const buffers_name = interned("_buffers");
  const Owned attributes(PyObject_GenericGetAttr(module, dict_name));
  if (!attributes || !PyDict_Check(attributes.get())) {
    drop_error_unless_memory_error();
    return {};
  }
  const auto floating_in = [&](PyObject* named) -> PyObject* {
    PyObject* const found = PyDict_GetItemWithError(named, name);
    return found != nullptr && is_floating(host::kind_of(found)) ? found : nullptr;
  };
  if (PyObject* const attribute = floating_in(attributes.get())) return {Owned::borrowed(attribute)};
  PyObject* const buffers = PyDict_GetItemWithError(attributes.get(), buffers_name);
  PyObject* const buffer = buffers != nullptr && PyDict_Check(buffers) ? floating_in(buffers) : nullptr;
  return {Owned::borrowed_or_null(buffer), true};
}

// Returns what to store in place of `value`, which is in a lower precision and not tracked by autograd. Null with an
// exception set on failure.
Owned attribute_to_store(PyObject* module, PyObject* name, PyObject* value) {
  const auto [former, is_buffer] = former_tensor(module, name);
  if (former && listens(Listener::watch)) watch::notice_carried(value, former.get());
  // torch's hook passes a buffer to Python.
  if (!former || is_buffer || host::kind_of(former.get()) != Kind::f32) return Owned::borrowed(value);
  const Owned what(PyUnicode_FromFormat("the attribute `%U` of %s", name, Py_TYPE(module)->tp_name));
  const char* const text = what ? PyUnicode_AsUTF8(what.get()) : nullptr;
  return text == nullptr ? nullptr : values_of_state(value, text, former.get());
}

// `module.name = value`
PyObject* set_attribute_stub(PyObject*, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  const bool is_assignment =
      PyVectorcall_NARGS(flagged_count) == 3 && keywords == nullptr && PyUnicode_Check(values[1]);
  if (!is_assignment || !is_lower(host::kind_of(values[2])) || host::requires_grad(values[2])) {
    return set_attribute.call(values, flagged_count, keywords);
  }
  const Owned value = attribute_to_store(values[0], values[1], values[2]);
  if (!value || PyErr_Occurred() != nullptr) return nullptr;
  PyObject* const taken[] = {values[0], values[1], value.get()};
  return set_attribute.call(taken, 3, nullptr);
}

const struct {
  const char* path;
  bool may_be_missing;
  TappedBuiltin& builtin;
  FromC<vectorcallfunc> stub;
} builtins[] = {
#define HABANA_MP_ROW(name, path, may_be_missing) {path, may_be_missing, name, from_c<name##_stub>},
    HABANA_MP_TAPPED_BUILTINS(HABANA_MP_ROW)
#undef HABANA_MP_ROW
};

}  // namespace

void set_devices_of_regions(PyObject* device_types) noexcept {
  *devices_of_regions = Owned::borrowed_or_null(device_types == Py_None ? nullptr : device_types);
}

std::vector<std::pair<const char*, bool>> paths_of_builtins() {
  std::vector<std::pair<const char*, bool>> paths;
  for (const auto& one : builtins) paths.emplace_back(one.path, one.may_be_missing);
  return paths;
}

bool tap_builtins(const std::vector<PyObject*>& objects, const std::vector<PyObject*>& added_writers) {
  for (PyObject* object : objects) {
    if (object != Py_None && !TappedBuiltin::check(object)) return false;
  }
  if (!add_writers(added_writers)) return false;
  for (std::size_t i = 0; i < objects.size(); ++i) {
    if (objects[i] != Py_None) builtins[i].builtin.prepare(objects[i]);
  }
  // From here on nothing can fail.
  for (std::size_t i = 0; i < objects.size(); ++i) {
    const auto& [path, may_be_missing, builtin, stub] = builtins[i];
    if (objects[i] != Py_None && !builtin.is_tapped()) builtin.tap(objects[i], stub);
  }
  data.tap(host::setter_of_data(), from_c<data_setter_stub>);
  return true;
}

bool tap_state(PyObject* set_function, bool only_checks) {
  std::array<Owned, conversion_count> methods;
  for (std::size_t i = 0; i < methods.size(); ++i) {
    methods[i] = host::attribute_of_tensor_base(conversions[i].name);
    const bool is_tapped = conversions[i].method.is_tapped();
    if (!methods[i] || (!is_tapped && !host::TappedMethod::check(methods[i].get(), METH_VARARGS | METH_KEYWORDS)))
      return false;
  }
  if (!set_attribute.is_tapped() && !host::TappedFunction::check(set_function)) {
    PyErr_SetString(PyExc_RuntimeError, "torch.nn.Module.__setattr__ is not called as other Python functions are");
    return false;
  }
  if (only_checks) return true;
  // From here on nothing can fail.
  for (std::size_t i = 0; i < methods.size(); ++i) conversions[i].method.tap(methods[i].get(), conversions[i].stub);
  if (!set_attribute.is_tapped()) set_attribute.tap(set_function, from_c<set_attribute_stub>);
  return true;
}

bool suspend_writer(PyObject* object) noexcept {
  const auto found = writers.find(object);
  if (found == writers.end()) return false;
  found->second->stop();
  return true;
}

void resume_writer(PyObject* object) noexcept {
  const auto found = writers.find(object);
  if (found != writers.end() && !found->second->is_tapped()) found->second->tap(object, from_c<writer_stub>);
}

void untap_builtins() noexcept {
  for (const auto& one : builtins) one.builtin.stop();
  for (const auto& writer : writers) writer.second->forget();
  writers.clear();
  data.stop();
  for (const auto& one : conversions) one.method.stop();
  set_attribute.stop();
}

}  // namespace habana_mp::engine
