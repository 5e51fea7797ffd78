#include "host/memory_map.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "host/ledger.hpp"
#include "owned.hpp"

namespace habana_mp::host {

std::string read_all(const char* path) {
  std::string text;
  std::FILE* file = std::fopen(path, "r");
  if (file == nullptr) return text;
  std::array<char, 1 << 14> part;
  for (std::size_t count = part.size(); count != 0;) {
    count = std::fread(part.data(), 1, part.size(), file);
    text.append(part.data(), count);
  }
  std::fclose(file);
  return text;
}

namespace {

Assumption mappings_tell{"system.mappings",
                         "/proc/self/maps tells which memory may be written to, and which is a file's",
                         "it is there, and tells that a variable of ours may be written to, and a constant may not",
                         "memory is tried: the kernel writes there what is there, or refuses; slices of files that are "
                         "mapped are not told, so "
                         "no casts of weights in such are kept"};

// True if a pointer at this address can be written back: the kernel returns EFAULT where a store would crash. No other
// thread writes to it at the same time, because the address belongs to a definition of CPython or torch and the caller
// holds the GIL.
bool can_be_rewritten(const void* address) {
  constexpr auto size = static_cast<ssize_t>(sizeof(void*));
  int ends[2] = {-1, -1};
  if (::pipe(ends) != 0) {  // no file descriptor is left; this call needs none, but some containers refuse it
    const iovec place{const_cast<void*>(address), sizeof(void*)};
    return ::process_vm_writev(::getpid(), &place, 1, &place, 1, 0) == size;
  }
  const bool done = ::write(ends[1], address, sizeof(void*)) == size &&
                    ::read(ends[0], const_cast<void*>(address), sizeof(void*)) == size;
  ::close(ends[0]);
  ::close(ends[1]);
  return done;
}

// Parses a line such as `7f12...-7f13... rw-p 00000000 103:02 4711   /path`: addresses, mode, offset, device, inode.
// Nullopt if it has another form.
std::optional<Mapping> mapping_of(std::string_view line) {
  const auto number = [&line](std::uint64_t& value, int base) {
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value, base);
    if (error != std::errc()) return false;
    line.remove_prefix(static_cast<std::size_t>(end - line.data()));
    return true;
  };
  const auto skip = [&line](std::size_t count) { line.remove_prefix(std::min(count, line.size())); };
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t offset = 0;
  std::uint64_t node = 0;
  if (!number(begin, 16)) return std::nullopt;
  skip(1);
  if (!number(end, 16) || line.size() < 6) return std::nullopt;
  const std::string_view mode = line.substr(1, 4);
  skip(6);
  if (!number(offset, 16)) return std::nullopt;
  skip(1);
  const std::size_t after_device = line.find(' ');
  if (after_device == std::string_view::npos) return std::nullopt;
  skip(after_device + 1);
  if (!number(node, 10)) return std::nullopt;
  return Mapping{begin, end, mode[1] == 'w', mode[3] == 's', node != 0};
}

const void* const constant = nullptr;
const void* variable = nullptr;

}  // namespace

const Mapping* MemoryMap::find(const void* address) {
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  for (const Mapping& mapping : mappings()) {
    if (value >= mapping.begin && value + sizeof(void*) <= mapping.end) return &mapping;
  }
  return nullptr;
}

const std::vector<Mapping>& MemoryMap::mappings() {
  if (!std::exchange(is_read_, true)) read();
  return mappings_;
}

void MemoryMap::read() {
  if (mappings_tell.is_broken()) {
    mappings_tell.settle(false);
    return;
  }
  const std::string text = read_all("/proc/self/maps");
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = rest.find('\n');
    if (const auto mapping = mapping_of(rest.substr(0, end))) mappings_.push_back(*mapping);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  }
  const Mapping* of_variable = find(&variable);
  const Mapping* of_constant = find(&constant);
  const bool tells =
      of_variable != nullptr && of_variable->writable && of_constant != nullptr && !of_constant->writable;
  if (!mappings_tell.settle(tells)) mappings_.clear();
}

static NeverDestroyed<std::set<std::uintptr_t>> writable_pages;

bool MemoryMap::is_writable(const void* address) {
  const std::uintptr_t page = reinterpret_cast<std::uintptr_t>(address) >> 12U;
  if (writable_pages->contains(page)) return true;
  const Mapping* mapping = find(address);
  if (mapping == nullptr || !mapping->writable) return false;
  writable_pages->insert(page);
  return true;
}

bool MemoryMap::may_write(const void* address) {
  return is_writable(address) || (!is_known() && can_be_rewritten(address));
}

}  // namespace habana_mp::host
