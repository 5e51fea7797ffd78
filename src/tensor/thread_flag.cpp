#include "tensor/thread_flag.hpp"

#include <bit>

#include "tensor/reader.hpp"
#include "tensor/torch_library.hpp"

namespace habana_mp::tensor {

namespace {

template <typename Subject>
ThreadFlag<Subject> flag(const char* library, const char* ask_name, const char* set_name, Subject subject) noexcept {
  typename ThreadFlag<Subject>::Ask ask = nullptr;
  typename ThreadFlag<Subject>::Set set = nullptr;
  const TorchLibrary loaded(library);
  loaded.find(ask_name, ask);
  loaded.find(set_name, set);
  return {ask, set, subject};
}

}  // namespace

DeviceFlag autocast_flag(std::int8_t device) noexcept {
  return flag("libtorch_cpu.so", "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE",
              "_ZN2at8autocast20set_autocast_enabledEN3c1010DeviceTypeEb", device);
}

KeyFlag included_key(std::uint16_t key) noexcept {
  return flag("libc10.so", "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE",
              "_ZN3c104impl29tls_set_dispatch_key_includedENS_11DispatchKeyEb", key);
}

KeyFlag excluded_key(std::uint16_t key) noexcept {
  return flag("libc10.so", "_ZN3c104impl28tls_is_dispatch_key_excludedENS_11DispatchKeyE",
              "_ZN3c104impl29tls_set_dispatch_key_excludedENS_11DispatchKeyEb", key);
}

AutocastDtype autocast_dtype() noexcept {
  AutocastDtype found;
  const TorchLibrary loaded("libtorch_cpu.so");
  loaded.find("_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE", found.ask);
  loaded.find("_ZN2at8autocast18set_autocast_dtypeEN3c1010DeviceTypeENS1_10ScalarTypeE", found.set);
  return found;
}

namespace detail {

thread_local LocalKeys* known_local_keys = nullptr;

LocalKeys* find_local_keys() noexcept {
  // Of a variable that each thread has its own of, the loader gives the address of the calling thread's. It may wait
  // there for another thread's dlopen.
  static const TorchLibrary c10("libc10.so");
  c10.find("_ZN3c104impl26raw_local_dispatch_key_setE", known_local_keys);
  return known_local_keys;
}

Bit find_bit(bool (*is_on)(const void* flag), void (*turn)(const void* flag, bool on), const void* flag) noexcept {
  // Who forces another way of reading wants nothing of torch's insides to be assumed.
  LocalKeys* const keys = way == Way::layout ? find_local_keys() : nullptr;
  if (keys == nullptr) return {};
  const bool was_on = is_on(flag);
  turn(flag, false);
  const LocalKeys off = *keys;
  turn(flag, true);
  const LocalKeys on = *keys;
  turn(flag, was_on);
  const std::uint64_t included = off.included ^ on.included;
  const std::uint64_t excluded = off.excluded ^ on.excluded;
  if (std::popcount(included) + std::popcount(excluded) != 1) return {};
  const auto word = included != 0 ? &LocalKeys::included : &LocalKeys::excluded;
  const std::uint64_t mask = included | excluded;
  const Bit bit{word, mask, off.*word & mask};
  // And the other way: does torch see what is written there?
  std::uint64_t& kept = keys->*word;
  kept ^= mask;
  const bool follows = is_on(flag) != was_on;
  kept ^= mask;
  return follows && is_on(flag) == was_on ? bit : Bit{};
}

}  // namespace detail

}  // namespace habana_mp::tensor
