// What torch's dispatcher includes and excludes in this thread, read and set where it keeps that: asking one of torch's
// functions takes ten times as long, and a covered call asks five times.
#pragma once

#include <cstdint>

namespace habana_mp::host {

namespace detail {

// c10::impl::PODLocalDispatchKeySet: one bit for each key. A key that is on by default has its bit the other way round.
struct LocalKeys {
  std::uint64_t included;
  std::uint64_t excluded;
};

// This thread's; null until the thread asked for the first time.
#if defined(__GNUC__)
__attribute__((tls_model("initial-exec")))
#endif
extern constinit thread_local LocalKeys* known_local_keys;
LocalKeys* find_local_keys();

inline LocalKeys& local_keys() {
  LocalKeys* const keys = known_local_keys;
  return keys != nullptr ? *keys : *find_local_keys();
}

// A flag's bit, or none where torch keeps the flag elsewhere.
struct Bit {
  std::uint64_t LocalKeys::*word = &LocalKeys::included;
  std::uint64_t mask = 0;
  std::uint64_t when_off = 0;
};
// Turns the flag on and off and looks which bit follows. Afterwards the flag is as it was.
Bit find_bit(bool (*is_on)(const void* flag), void (*turn)(const void* flag, bool on), const void* flag);

}  // namespace detail

// One of torch's flags for each thread, with torch's functions that tell of it and set it. They take what it is a flag
// of: a dispatch key, or a device type.
template <typename Subject>
class ThreadFlag {
 public:
  using Ask = bool (*)(Subject);
  using Set = void (*)(Subject, bool);

  ThreadFlag() = default;
  // Without both functions it is unknown.
  ThreadFlag(Ask ask, Set set, Subject subject) : ask_(ask), set_(set), subject_(subject) {
    if (!is_known()) return;
    bit_ = detail::find_bit([](const void* flag) { return static_cast<const ThreadFlag*>(flag)->answer(); },
                            [](const void* flag, bool on) {
                              const auto* self = static_cast<const ThreadFlag*>(flag);
                              self->set_(self->subject_, on);
                            },
                            this);
  }

  // Its bit among the keys that are included, 0 where it is kept in another way.
  [[nodiscard]] std::uint64_t included_bit() const noexcept {
    return bit_.word == &detail::LocalKeys::included && bit_.when_off == 0 ? bit_.mask : 0;
  }
  // Is it read where the dispatcher keeps it?
  [[nodiscard]] bool is_read_in_place() const noexcept { return bit_.mask != 0; }
  [[nodiscard]] bool is_known() const noexcept { return ask_ != nullptr && set_ != nullptr; }

  [[nodiscard]] bool is_on(bool when_unknown = false) const noexcept {
    if (bit_.mask != 0) [[likely]]
      return ((detail::local_keys().*bit_.word ^ bit_.when_off) & bit_.mask) != 0;
    return is_known() ? answer() : when_unknown;
  }
  // Only of a known flag.
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

// Is one of the keys with these bits included?
inline bool includes_any(std::uint64_t bits) noexcept { return (detail::local_keys().included & bits) != 0; }

using DeviceFlag = ThreadFlag<std::int8_t>;  // of a c10::DeviceType
using KeyFlag = ThreadFlag<std::uint16_t>;   // of a c10::DispatchKey

// Unknown where this torch does not have its functions. Each of these three toggles the flag to find its bit, and has
// to be called after bind_reader.
DeviceFlag autocast_flag(std::int8_t device);
KeyFlag included_key(std::uint16_t key);
KeyFlag excluded_key(std::uint16_t key);

// disable_casts is a flag of torch's own: autocast for a device type that no torch has a backend for any more. torch
// keeps it per thread, hands it to autograd's threads, and torch.compile guards on it, all of which a flag of ours
// would have to be taught.
inline constexpr const char* disabled_device = "ipu";
inline constexpr std::int8_t disabled_device_number = 18;  // c10::DeviceType::IPU

// The flag, where it is what Python sets, and is it on? False with a Python exception set where torch has none.
bool find_disabled_flag(DeviceFlag& flag, bool& is_on);
// Sets it through Python.
void set_disabled_flag(bool on) noexcept;

// torch excludes this key from where its dispatcher calls a decomposition, or what an operation is for a tensor
// subclass. Unknown where it cannot be found.
KeyFlag below_autograd_key();

// torch's functions for the autocast dtype (a c10::ScalarType) of a device type in this thread.
struct AutocastDtype {
  using Ask = std::int8_t (*)(std::int8_t device);
  using Set = void (*)(std::int8_t device, std::int8_t dtype);
  Ask ask = nullptr;
  Set set = nullptr;

  [[nodiscard]] bool is_known() const noexcept { return ask != nullptr && set != nullptr; }
};
AutocastDtype autocast_dtype();

}  // namespace habana_mp::host
