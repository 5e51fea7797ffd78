#include "host/thread_flag.hpp"

#include <bit>

#include "errors.hpp"
#include "host/ledger.hpp"
#include "host/reader.hpp"
#include "host/symbols.hpp"
#include "owned.hpp"

namespace habana_mp::host {

namespace {

constexpr const char* c10 = "libc10.so";
constexpr const char* cpu = "libtorch_cpu.so";
constexpr const char* keys_header = "c10/core/impl/LocalDispatchKeySet.h";
constexpr const char* autocast_header = "ATen/autocast_mode.h";

Assumption flags_in_place{
    "torch.flags-in-place",
    "torch keeps what its dispatcher includes and excludes in a thread in a variable of two words, a bit for each flag",
    "each flag is turned on and off by torch, and by its bit: each must see what the other did",
    "torch's own functions read and set the flags; a call takes some 20 ns more"};

Assumption flag_functions{
    "torch.flag-functions",
    "functions of torch's libraries read and set autocast's flags and the dispatcher's keys in a thread",
    "what they give back, by torch's headers in releases that are not known; the flag that they set is the one "
    "that they read, and for disable_casts that of torch's Python function",
    "torch's Python functions are called for disable_casts and for regions; nothing counts as below the "
    "dispatcher; the CPU's casts are all made by us"};

template <typename Subject>
ThreadFlag<Subject> flag(const Symbol& asking, const Symbol& setting, Subject subject) {
  typename ThreadFlag<Subject>::Ask ask = nullptr;
  typename ThreadFlag<Subject>::Set set = nullptr;
  if (!flag_functions.is_broken()) {
    find(asking, ask);
    find(setting, set);
  }
  const auto follows = [=] {
    const bool was_on = ask(subject);
    set(subject, !was_on);
    const bool changed = ask(subject) != was_on;
    set(subject, was_on);
    return changed && ask(subject) == was_on;
  };
  if (!flag_functions.settle(ask != nullptr && set != nullptr && follows())) return {};
  return {ask, set, subject};
}

}  // namespace

DeviceFlag autocast_flag(std::int8_t device) {
  return flag({cpu, "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE", autocast_header,
               "bool is_autocast_enabled(at::DeviceType device_type);"},
              {cpu, "_ZN2at8autocast20set_autocast_enabledEN3c1010DeviceTypeEb", autocast_header,
               "void set_autocast_enabled(at::DeviceType device_type, bool enabled);"},
              device);
}

KeyFlag included_key(std::uint16_t key) {
  return flag({c10, "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE", keys_header,
               "bool tls_is_dispatch_key_included(DispatchKey x);"},
              {c10, "_ZN3c104impl29tls_set_dispatch_key_includedENS_11DispatchKeyEb", keys_header,
               "void tls_set_dispatch_key_included(DispatchKey x, bool desired_state);"},
              key);
}

KeyFlag excluded_key(std::uint16_t key) {
  return flag({c10, "_ZN3c104impl28tls_is_dispatch_key_excludedENS_11DispatchKeyE", keys_header,
               "bool tls_is_dispatch_key_excluded(DispatchKey x);"},
              {c10, "_ZN3c104impl29tls_set_dispatch_key_excludedENS_11DispatchKeyEb", keys_header,
               "void tls_set_dispatch_key_excluded(DispatchKey x, bool desired_state);"},
              key);
}

AutocastDtype autocast_dtype() {
  AutocastDtype found;
  if (flag_functions.is_broken()) return found;
  find({cpu, "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE", autocast_header,
        "at::ScalarType get_autocast_dtype(at::DeviceType device_type);"},
       found.ask);
  find({cpu, "_ZN2at8autocast18set_autocast_dtypeEN3c1010DeviceTypeENS1_10ScalarTypeE", autocast_header,
        "void set_autocast_dtype(at::DeviceType device_type, at::ScalarType dtype);"},
       found.set);
  return found;
}

bool find_disabled_flag(DeviceFlag& flag, bool& is_on) {
  const Owned torch(PyImport_ImportModule("torch"));
  const Owned before(torch ? PyObject_CallMethod(torch.get(), "is_autocast_enabled", "s", disabled_device) : nullptr);
  DeviceFlag found = before ? autocast_flag(disabled_device_number) : DeviceFlag();
  bool is_settable = static_cast<bool>(before);
  for (PyObject* value : {Py_True, Py_False, before.get()}) {
    const Owned done(
        is_settable ? PyObject_CallMethod(torch.get(), "set_autocast_enabled", "sO", disabled_device, value) : nullptr);
    is_settable = static_cast<bool>(done);
    if (found.is_known() && !flag_functions.settle(found.is_on() == (value == Py_True))) found = {};
  }
  is_on = before.get() == Py_True;
  flag = found;
  return is_settable;
}

void set_disabled_flag(bool on) noexcept {
  const Owned torch(PyImport_ImportModule("torch"));
  const Owned done(torch ? PyObject_CallMethod(torch.get(), "set_autocast_enabled", "si", disabled_device, on ? 1 : 0)
                         : nullptr);
  clear_error();
}

KeyFlag below_autograd_key() {
  const Owned c(PyImport_ImportModule("torch._C"));
  const Owned key(c ? PyObject_CallMethod(c.get(), "_parse_dispatch_key", "s", "ADInplaceOrView") : nullptr);
  const Owned number(key ? PyNumber_Long(key.get()) : nullptr);
  const long value = number ? PyLong_AsLong(number.get()) : -1;
  clear_error();
  return value >= 0 ? excluded_key(static_cast<std::uint16_t>(value)) : KeyFlag();
}

namespace detail {

constinit thread_local LocalKeys* known_local_keys = nullptr;

LocalKeys* find_local_keys() {
  // For a thread-local variable the loader returns the address of the calling thread. It may have to wait for another
  // thread's dlopen.
  constexpr Symbol keys{c10, "_ZN3c104impl26raw_local_dispatch_key_setE", keys_header,
                        "extern thread_local PODLocalDispatchKeySet raw_local_dispatch_key_set;"};
  static const bool is_trusted = !flags_in_place.is_broken() && find_symbol(keys) != nullptr;
  if (is_trusted) known_local_keys = static_cast<LocalKeys*>(look_up(keys));
  return known_local_keys;
}

Bit find_bit(bool (*is_on)(const void* flag), void (*turn)(const void* flag, bool on), const void* flag) {
  // If HABANA_MP_READER selects another way of reading, no internals of torch may be assumed.
  LocalKeys* const keys = read_method == ReadMethod::layout ? find_local_keys() : nullptr;
  if (keys == nullptr) {
    flags_in_place.settle(false);
    return {};
  }
  const bool was_on = is_on(flag);
  turn(flag, false);
  const LocalKeys off = *keys;
  turn(flag, true);
  const LocalKeys on = *keys;
  turn(flag, was_on);
  const std::uint64_t included = off.included ^ on.included;
  const std::uint64_t excluded = off.excluded ^ on.excluded;
  if (!flags_in_place.settle(std::popcount(included) + std::popcount(excluded) == 1)) return {};
  const auto word = included != 0 ? &LocalKeys::included : &LocalKeys::excluded;
  const std::uint64_t mask = included | excluded;
  const Bit bit{word, mask, off.*word & mask};
  // Checks the other direction too: torch must see what is written there.
  std::uint64_t& kept = keys->*word;
  kept ^= mask;
  const bool follows = is_on(flag) != was_on;
  kept ^= mask;
  return flags_in_place.settle(follows && is_on(flag) == was_on) ? bit : Bit{};
}

}  // namespace detail

}  // namespace habana_mp::host
