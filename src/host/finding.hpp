// Finds the offsets at which torch stores its data, with no assumption about the memory that is read.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <vector>

#include "owned.hpp"

namespace habana_mp::host {

// Reads memory that may be unmapped: the kernel returns EFAULT where a direct read would crash.
class CarefulReader {
 public:
  CarefulReader() { open_ = ::pipe(ends_) == 0; }
  ~CarefulReader() {
    if (!open_) return;
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  CarefulReader(const CarefulReader&) = delete;
  CarefulReader& operator=(const CarefulReader&) = delete;

  bool read(const void* from, void* to, std::size_t size) const {
    const iovec there{const_cast<void*>(from), size};
    const iovec here{to, size};
    if (::process_vm_readv(::getpid(), &here, 1, &there, 1, 0) == static_cast<ssize_t>(size)) return true;
    // process_vm_readv is not allowed everywhere. A pipe is.
    if (!open_ || ::write(ends_[1], from, size) != static_cast<ssize_t>(size)) return false;
    return ::read(ends_[0], to, size) == static_cast<ssize_t>(size);
  }

 private:
  bool open_ = false;
  int ends_[2] = {-1, -1};
};

// Returns the list that the function `make` of a Python script returns; null with an exception set.
Owned made_by(const char* script);

// Returns the value at an offset from an address.
template <typename T>
T load(const void* address, std::ptrdiff_t offset) noexcept {
  T value{};
  std::memcpy(&value, static_cast<const char*>(address) + offset, sizeof value);
  return value;
}

template <std::size_t size>
using Memory = std::vector<std::array<char, size>>;

// Returns the memory at each of these addresses; nullopt if one is null or cannot be read.
template <std::size_t size, typename AddressOf>
std::optional<Memory<size>> read_each(const CarefulReader& reader, std::size_t count, AddressOf address_of) {
  Memory<size> memory(count);
  for (std::size_t i = 0; i < count; ++i) {
    const void* address = address_of(i);
    if (address == nullptr || !reader.read(address, memory[i].data(), size)) return std::nullopt;
  }
  return memory;
}

// Returns the only offset that fits a value of this size; nullopt if no offset fits or several do.
template <std::size_t size, typename Fits>
std::optional<std::ptrdiff_t> only_offset(std::size_t of_value, Fits fits) {
  std::optional<std::ptrdiff_t> found;
  for (std::size_t offset = 0; offset + of_value <= size; offset += of_value) {
    const auto place = static_cast<std::ptrdiff_t>(offset);
    if (!fits(place)) continue;
    if (found) return std::nullopt;
    found = place;
  }
  return found;
}

// Returns the only offset at which the memory of every sample holds the expected value.
template <typename T, typename Sample, std::size_t size, typename Expected>
std::optional<std::ptrdiff_t> unique_offset(const std::vector<Sample>& samples, const Memory<size>& memory,
                                            Expected expected) {
  static_assert(sizeof(T) == alignof(T));
  return only_offset<size>(sizeof(T), [&](std::ptrdiff_t offset) {
    bool fits = true;
    for (std::size_t i = 0; fits && i < samples.size(); ++i) {
      fits = load<T>(memory[i].data(), offset) == expected(samples[i]);
    }
    return fits;
  });
}

}  // namespace habana_mp::host
