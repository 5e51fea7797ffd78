// The keys that torch's dispatcher includes and excludes in this thread. They are read and set directly in torch's
// memory: a call of a torch function takes ten times as long, and a call of a patched function reads five flags.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>

namespace habana_mp::host {

namespace detail {

// c10::impl::PODLocalDispatchKeySet: one bit for each key. The bit of a key that is on by default is inverted.
struct LocalKeys {
  std::uint64_t included;
  std::uint64_t excluded;
};

// The keys of this thread; null until their first use in this thread.
#if defined(__GNUC__)
__attribute__((tls_model("initial-exec")))
#endif
extern constinit thread_local LocalKeys* known_local_keys;
LocalKeys* find_local_keys();

inline LocalKeys& local_keys() {
  LocalKeys* const keys = known_local_keys;
  return keys != nullptr ? *keys : *find_local_keys();
}

}  // namespace detail

// True if one of the keys with these bits is included.
inline bool includes_any(std::uint64_t bits) noexcept { return (detail::local_keys().included & bits) != 0; }

// A per-thread flag of torch: a bit of the excluded keys. It is unknown if torch stores the flag elsewhere.
struct ThreadFlag {
  std::uint64_t bit = 0;
  std::uint64_t when_off = 0;

  [[nodiscard]] bool is_known() const noexcept { return bit != 0; }
  [[nodiscard]] bool is_on(bool when_unknown = false) const noexcept {
    if (is_known()) [[likely]]
      return ((detail::local_keys().excluded ^ when_off) & bit) != 0;
    return when_unknown;
  }
  // The flag must be known.
  void turn(bool on) const noexcept {
    std::uint64_t& word = detail::local_keys().excluded;
    word = (word & ~bit) | (when_off ^ (on ? bit : 0));
  }
};

// The next functions toggle a flag to find its bit. Call them after bind_reader.

// Returns the flag of torch.autocast for a c10::DeviceType.
ThreadFlag autocast_flag(std::int8_t device);
// Returns the bit of this torch._C.DispatchKey in the included keys; 0 if it is unknown.
std::uint64_t included_bit(PyObject* key);

// disable_casts uses a flag of torch: autocast for a device type for which torch no longer has a backend. torch stores
// it per thread and passes it to autograd's threads, and torch.compile guards on it. A separate flag would need all of
// this.
inline constexpr const char* disabled_device = "ipu";
inline constexpr std::int8_t disabled_device_number = 18;  // c10::DeviceType::IPU

// Sets `flag` to the flag of disable_casts and `is_on` to its value. `flag` is unknown if Python sets another one.
// False with a Python exception set if torch has no such flag.
bool find_disabled_flag(ThreadFlag& flag, bool& is_on);
// Sets the flag of disable_casts through Python.
void set_disabled_flag(bool on) noexcept;

// Returns the flag of a key that torch excludes when its dispatcher calls a decomposition or a tensor subclass's
// implementation of an operation. The flag is unknown if it cannot be found.
ThreadFlag below_autograd_key();

// torch's functions that read and set, in this thread, the autocast dtype (a c10::ScalarType) of a device type, and
// whether autocast caches its casts. Either all are found or none.
struct AutocastFunctions {
  std::int8_t (*dtype)(std::int8_t device) = nullptr;
  void (*set_dtype)(std::int8_t device, std::int8_t dtype) = nullptr;
  bool (*is_cache_enabled)() = nullptr;
  void (*set_cache_enabled)(bool) = nullptr;

  [[nodiscard]] bool are_known() const noexcept { return set_cache_enabled != nullptr; }
};
AutocastFunctions autocast_functions();

}  // namespace habana_mp::host
