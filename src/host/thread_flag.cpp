#include "host/thread_flag.hpp"

#include <bit>

#include "errors.hpp"
#include "host/ledger.hpp"
#include "host/reader.hpp"
#include "host/symbols.hpp"
#include "owned.hpp"

namespace habana_mp::host {

namespace {

constexpr const char* cpu = "libtorch_cpu.so";
constexpr const char* autocast_header = "ATen/autocast_mode.h";

Assumption flags_in_place{
    "torch.flags-in-place",
    "torch keeps what its dispatcher includes and excludes in a thread in a variable of two words, a bit for each flag",
    "each flag is turned on and off by torch, and by its bit: each must see what the other did",
    "torch's Python functions are called for the dispatcher's keys, for disable_casts and for regions; nothing counts "
    "as below the dispatcher; the CPU's casts are all made by us"};

// Turns a flag on and off by torch's functions, finds its bit in this word, and restores the flag. The bit is 0 if the
// word does not tell.
template <class IsOn, class Turn>
ThreadFlag find_flag(std::uint64_t detail::LocalKeys::*word, const IsOn& is_on, const Turn& turn) {
  // Where tensors are read through Python, no internals of torch are assumed.
  detail::LocalKeys* const keys = read_method == ReadMethod::layout ? detail::find_local_keys() : nullptr;
  if (keys == nullptr) {
    flags_in_place.settle(false);
    return {};
  }
  const bool was_on = is_on();
  turn(false);
  const std::uint64_t off = keys->*word;
  turn(true);
  const std::uint64_t on = keys->*word;
  // Checks the other direction too: torch must see what is written there.
  keys->*word = off;
  const bool follows = !is_on();
  turn(was_on);
  const bool is_right = std::has_single_bit(off ^ on) && follows && is_on() == was_on;
  return flags_in_place.settle(is_right) ? ThreadFlag{off ^ on, off & (off ^ on)} : ThreadFlag{};
}

// Finds a dispatch key's bit in a word, by torch's Python functions.
ThreadFlag find_key(std::uint64_t detail::LocalKeys::*word, PyObject* key, const char* asking, const char* setting) {
  const Owned c(PyImport_ImportModule("torch._C"));
  const auto is_on = [&] {
    const Owned answer(c && key != nullptr ? PyObject_CallMethod(c.get(), asking, "O", key) : nullptr);
    return answer.get() == Py_True;
  };
  const auto turn = [&](bool on) {
    if (c && key != nullptr) Owned(PyObject_CallMethod(c.get(), setting, "OO", key, on ? Py_True : Py_False));
  };
  const ThreadFlag found = find_flag(word, is_on, turn);
  clear_error();
  return found;
}

}  // namespace

ThreadFlag autocast_flag(std::int8_t device) {
  bool (*ask)(std::int8_t) = nullptr;
  void (*set)(std::int8_t, bool) = nullptr;
  const bool found = find({cpu, "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE", autocast_header,
                           "bool is_autocast_enabled(at::DeviceType device_type);"},
                          ask) &&
                     find({cpu, "_ZN2at8autocast20set_autocast_enabledEN3c1010DeviceTypeEb", autocast_header,
                           "void set_autocast_enabled(at::DeviceType device_type, bool enabled);"},
                          set);
  if (!flags_in_place.settle(found)) return {};
  return find_flag(
      &detail::LocalKeys::excluded, [=] { return ask(device); }, [=](bool on) { set(device, on); });
}

std::uint64_t included_bit(PyObject* key) {
  const ThreadFlag flag = find_key(&detail::LocalKeys::included, key, "_dispatch_tls_is_dispatch_key_included",
                                   "_dispatch_tls_set_dispatch_key_included");
  return flag.when_off == 0 ? flag.bit : 0;
}

AutocastFunctions autocast_functions() {
  AutocastFunctions found;
  const bool all =
      find({cpu, "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE", autocast_header,
            "at::ScalarType get_autocast_dtype(at::DeviceType device_type);"},
           found.dtype) &&
      find({cpu, "_ZN2at8autocast18set_autocast_dtypeEN3c1010DeviceTypeENS1_10ScalarTypeE", autocast_header,
            "void set_autocast_dtype(at::DeviceType device_type, at::ScalarType dtype);"},
           found.set_dtype) &&
      find({cpu, "_ZN2at8autocast25is_autocast_cache_enabledEv", autocast_header, "bool is_autocast_cache_enabled();"},
           found.is_cache_enabled) &&
      find({cpu, "_ZN2at8autocast26set_autocast_cache_enabledEb", autocast_header,
            "void set_autocast_cache_enabled(bool enabled);"},
           found.set_cache_enabled);
  return all ? found : AutocastFunctions{};
}

bool find_disabled_flag(ThreadFlag& flag, bool& is_on) {
  const Owned torch(PyImport_ImportModule("torch"));
  const Owned before(torch ? PyObject_CallMethod(torch.get(), "is_autocast_enabled", "s", disabled_device) : nullptr);
  ThreadFlag found = before ? autocast_flag(disabled_device_number) : ThreadFlag();
  bool is_settable = static_cast<bool>(before);
  for (PyObject* value : {Py_True, Py_False, before.get()}) {
    const Owned done(
        is_settable ? PyObject_CallMethod(torch.get(), "set_autocast_enabled", "sO", disabled_device, value) : nullptr);
    is_settable = static_cast<bool>(done);
    if (found.is_known() && !flags_in_place.settle(found.is_on() == (value == Py_True))) found = {};
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

ThreadFlag below_autograd_key() {
  const Owned c(PyImport_ImportModule("torch._C"));
  const Owned key(c ? PyObject_CallMethod(c.get(), "_parse_dispatch_key", "s", "ADInplaceOrView") : nullptr);
  return find_key(&detail::LocalKeys::excluded, key.get(), "_dispatch_tls_is_dispatch_key_excluded",
                  "_dispatch_tls_set_dispatch_key_excluded");
}

namespace detail {

constinit thread_local LocalKeys* known_local_keys = nullptr;

LocalKeys* find_local_keys() {
  // For a thread-local variable the loader returns the address of the calling thread. It may have to wait for another
  // thread's dlopen.
  constexpr Symbol keys{"libc10.so", "_ZN3c104impl26raw_local_dispatch_key_setE", "c10/core/impl/LocalDispatchKeySet.h",
                        "thread_local PODLocalDispatchKeySet raw_local_dispatch_key_set;"};
  static const bool is_trusted = !flags_in_place.is_broken() && find_symbol(keys) != nullptr;
  if (is_trusted) known_local_keys = static_cast<LocalKeys*>(look_up(keys));
  return known_local_keys;
}

}  // namespace detail

}  // namespace habana_mp::host
