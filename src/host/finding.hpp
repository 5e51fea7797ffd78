// Finds the offsets at which torch stores its data, with no assumption about the memory that is read.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstddef>
#include <cstring>
#include <optional>
#include <vector>

#include "owned.hpp"

namespace habana_mp::host {

// Returns the list that the function `make` of a Python script returns; null with an exception set.
inline Owned made_by(const char* script) {
  const Owned globals(PyDict_New());
  if (!globals) return nullptr;
  const Owned done(PyDict_SetItemString(globals.get(), "__builtins__", PyEval_GetBuiltins()) < 0
                       ? nullptr
                       : PyRun_String(script, Py_file_input, globals.get(), globals.get()));
  const Owned make(done ? PyMapping_GetItemString(globals.get(), "make") : nullptr);
  return Owned(make ? PyObject_CallNoArgs(make.get()) : nullptr);
}

// Returns the value at an offset from an address.
template <typename T>
T load(const void* address, std::ptrdiff_t offset) noexcept {
  T value{};
  std::memcpy(&value, static_cast<const char*>(address) + offset, sizeof value);
  return value;
}

template <std::size_t size>
using Memory = std::vector<std::array<char, size>>;

// Returns the memory at each of these addresses; nullopt if one is null or cannot be read. The memory goes through a
// pipe that nothing else uses: `write` returns an error where a direct read would crash. process_vm_readv does too, but
// sandboxes refuse it, and some end a process that calls it. The call is a `syscall`, since sanitizers check the memory
// that `write` gets.
template <std::size_t size, typename AddressOf>
std::optional<Memory<size>> read_each(std::size_t count, AddressOf address_of) {
  static_assert(size <= PIPE_BUF);  // the smallest pipe has room for it
  Memory<size> memory(count);
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC | O_NONBLOCK) != 0) return std::nullopt;
  bool is_read = true;
  for (std::size_t i = 0; is_read && i < count; ++i) {
    const void* address = address_of(i);
    is_read = address != nullptr && ::syscall(SYS_write, pipe[1], address, size) == long{size} &&
              ::read(pipe[0], memory[i].data(), size) == ssize_t{size};
  }
  for (const int end : pipe) ::close(end);
  if (!is_read) return std::nullopt;
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
