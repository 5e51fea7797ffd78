// The keys that torch's dispatcher includes and excludes in this thread. They are read and set directly in torch's
// memory: a call of a torch function takes ten times as long, and a call of a patched function reads five flags.
#pragma once

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

// The bit of a flag; `mask` is 0 if torch stores the flag elsewhere.
struct Bit {
  std::uint64_t LocalKeys::*word = &LocalKeys::included;
  std::uint64_t mask = 0;
  std::uint64_t when_off = 0;
};
// Turns the flag on and off, finds the bit that changes with it, and restores the flag.
Bit find_bit(bool (*is_on)(const void* flag), void (*turn)(const void* flag, bool on), const void* flag);

}  // namespace detail

// A per-thread flag of torch, with torch's functions that read and set it. `Subject` is what the flag belongs to: a
// dispatch key or a device type.
template <typename Subject>
class ThreadFlag {
 public:
  using Ask = bool (*)(Subject);
  using Set = void (*)(Subject, bool);

  ThreadFlag() = default;
  // The flag is unknown unless both functions are given.
  ThreadFlag(Ask ask, Set set, Subject subject) : ask_(ask), set_(set), subject_(subject) {
    if (!is_known()) return;
    bit_ = detail::find_bit([](const void* flag) { return static_cast<const ThreadFlag*>(flag)->answer(); },
                            [](const void* flag, bool on) {
                              const auto* self = static_cast<const ThreadFlag*>(flag);
                              self->set_(self->subject_, on);
                            },
                            this);
  }

  // Returns the flag's bit in the included keys; 0 if torch stores the flag in another way.
  [[nodiscard]] std::uint64_t included_bit() const noexcept {
    return bit_.word == &detail::LocalKeys::included && bit_.when_off == 0 ? bit_.mask : 0;
  }
  // True if the flag is read directly from the dispatcher's memory.
  [[nodiscard]] bool is_read_in_place() const noexcept { return bit_.mask != 0; }
  [[nodiscard]] bool is_known() const noexcept { return ask_ != nullptr && set_ != nullptr; }

  [[nodiscard]] bool is_on(bool when_unknown = false) const noexcept {
    if (bit_.mask != 0) [[likely]]
      return ((detail::local_keys().*bit_.word ^ bit_.when_off) & bit_.mask) != 0;
    return is_known() ? answer() : when_unknown;
  }
  // The flag must be known.
  void turn(bool on) const noexcept {
    if (bit_.mask == 0) [[unlikely]] {
      set_(subject_, on);
      return;
    }
    std::uint64_t& word = detail::local_keys().*bit_.word;
    word = (word & ~bit_.mask) | (bit_.when_off ^ (on ? bit_.mask : 0));
  }

 private:
  [[nodiscard]] bool answer() const { return ask_(subject_); }

  Ask ask_ = nullptr;
  Set set_ = nullptr;
  Subject subject_{};
  detail::Bit bit_;
};

// True if one of the keys with these bits is included.
inline bool includes_any(std::uint64_t bits) noexcept { return (detail::local_keys().included & bits) != 0; }

using DeviceFlag = ThreadFlag<std::int8_t>;  // for a c10::DeviceType
using KeyFlag = ThreadFlag<std::uint16_t>;   // for a c10::DispatchKey

// Return an unknown flag if this torch lacks its functions. Each of the three toggles the flag to find its bit. Call
// them after bind_reader.
DeviceFlag autocast_flag(std::int8_t device);
KeyFlag included_key(std::uint16_t key);
KeyFlag excluded_key(std::uint16_t key);

// disable_casts uses a flag of torch: autocast for a device type for which torch no longer has a backend. torch stores
// it per thread and passes it to autograd's threads, and torch.compile guards on it. A separate flag would need all of
// this.
inline constexpr const char* disabled_device = "ipu";
inline constexpr std::int8_t disabled_device_number = 18;  // c10::DeviceType::IPU

// Sets `flag` to the flag of disable_casts and `is_on` to its value. `flag` is unknown if Python sets another one.
// False with a Python exception set if torch has no such flag.
bool find_disabled_flag(DeviceFlag& flag, bool& is_on);
// Sets the flag of disable_casts through Python.
void set_disabled_flag(bool on) noexcept;

// Returns the flag of a key that torch excludes when its dispatcher calls a decomposition or a tensor subclass's
// implementation of an operation. The flag is unknown if it cannot be found.
KeyFlag below_autograd_key();

// torch's functions that read and set the autocast dtype (a c10::ScalarType) of a device type in this thread.
struct AutocastDtype {
  using Ask = std::int8_t (*)(std::int8_t device);
  using Set = void (*)(std::int8_t device, std::int8_t dtype);
  Ask ask = nullptr;
  Set set = nullptr;

  [[nodiscard]] bool is_known() const noexcept { return ask != nullptr && set != nullptr; }
};
AutocastDtype autocast_dtype();

}  // namespace habana_mp::host
