#include "host/memory_map.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "host/ledger.hpp"

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

Assumption mappings_tell{"system.mappings", "/proc/self/maps tells which memory is a file's",
                         "it is there, and tells that a constant of ours is a file's",
                         "slices of files that are mapped are not told, so no casts of weights in such are cached"};

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
  return Mapping{begin, end, mode[3] == 's', node != 0};
}

std::optional<Mapping> mapping_in(std::string_view mappings, const void* address) {
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  while (!mappings.empty()) {
    const std::size_t end = mappings.find('\n');
    const std::optional<Mapping> mapping = mapping_of(mappings.substr(0, end));
    if (mapping && value >= mapping->begin && value < mapping->end) return mapping;
    mappings = end == std::string_view::npos ? std::string_view() : mappings.substr(end + 1);
  }
  return std::nullopt;
}

const char constant = 0;

}  // namespace

std::optional<Mapping> find_mapping(const void* address) {
  const std::string mappings = mappings_tell.is_broken() ? std::string() : read_all("/proc/self/maps");
  const std::optional<Mapping> of_constant = mapping_in(mappings, &constant);
  const bool tells = mappings_tell.settle(of_constant && of_constant->of_file);
  return tells ? mapping_in(mappings, address) : std::nullopt;
}

}  // namespace habana_mp::host
