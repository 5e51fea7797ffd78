#include "host/free_memory.hpp"

#include <algorithm>
#include <charconv>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "host/ledger.hpp"
#include "host/memory_map.hpp"

namespace habana_mp::host {

namespace {

Assumption memory_files{"system.free-memory",
                        "/proc/meminfo has `MemAvailable`; /proc/self/cgroup and /sys/fs/cgroup have the limits of the "
                        "process's control group, of version 1 or 2",
                        "`MemAvailable` is there and is a number",
                        "casts of weights are cached as if no memory was used by others"};

constexpr std::uint64_t unlimited = ~std::uint64_t{0};

std::string& root() {
  static auto* const the_root = new std::string;
  return *the_root;
}

std::string read(const std::string& path) { return read_all((root() + path).c_str()); }

std::optional<std::uint64_t> number_in(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

// Calls `look` with each line until it returns true.
template <typename Look>
void for_each_line(std::string_view text, const Look& look) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (look(text.substr(0, end))) return;
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
}

// Returns the number after `word`, which begins a line; nullopt if there is no such line.
std::optional<std::uint64_t> number_after(std::string_view text, std::string_view word) {
  std::optional<std::uint64_t> found;
  for_each_line(text, [&](std::string_view line) {
    if (line.starts_with(word)) found = number_in(line.substr(word.size()));
    return found.has_value();
  });
  return found;
}

std::uint64_t difference(std::uint64_t limit, std::uint64_t used) { return limit > used ? limit - used : 0; }

std::uint64_t free_of_system() {
  const std::optional<std::uint64_t> kilobytes = number_after(read("/proc/meminfo"), "MemAvailable:");
  if (!memory_files.holds_by([&] { return kilobytes.has_value(); })) return unlimited;
  return *kilobytes * 1024;
}

// The files of one version of control groups.
struct GroupFiles {
  std::string_view mount;
  const char* limit;
  const char* used;
  std::string_view inactive;  // keys in memory.stat for cached file contents
  std::string_view active;
};
constexpr GroupFiles version_2{"/sys/fs/cgroup", "/memory.max", "/memory.current", "inactive_file ", "active_file "};
constexpr GroupFiles version_1{"/sys/fs/cgroup/memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes",
                               "total_inactive_file ", "total_active_file "};

std::uint64_t free_of_group(const GroupFiles& files, const std::string& directory) {
  // Version 2 writes `max` for no limit.
  const std::optional<std::uint64_t> limit = number_in(read(directory + files.limit));
  const std::optional<std::uint64_t> used = limit ? number_in(read(directory + files.used)) : std::nullopt;
  if (!used) return unlimited;
  const std::string statistics = read(directory + "/memory.stat");
  const std::uint64_t of_files =
      number_after(statistics, files.inactive).value_or(0) + number_after(statistics, files.active).value_or(0);
  return difference(*limit, difference(*used, of_files));
}

// Each enclosing group also limits a group's memory. In a container the path may name groups that are not visible. So
// names are removed one by one up to the root, which then is the container's own group.
std::uint64_t free_of_groups(const GroupFiles& files, std::string path) {
  std::uint64_t found = unlimited;
  while (true) {
    if (path == "/") path.clear();
    found = std::min(found, free_of_group(files, std::string(files.mount) + path));
    if (path.empty()) return found;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

// A line of /proc/self/cgroup has a number, the controllers separated by commas, and the path. Version 2 has no
// controllers.
std::uint64_t free_of_own_groups() {
  std::uint64_t found = unlimited;
  for_each_line(read("/proc/self/cgroup"), [&](std::string_view line) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) return false;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string path(line.substr(second + 1));
    if (controllers.empty()) found = std::min(found, free_of_groups(version_2, path));
    if (controllers.find("memory") != std::string_view::npos) found = std::min(found, free_of_groups(version_1, path));
    return false;
  });
  return found;
}

}  // namespace

std::uint64_t free_memory() { return std::min(free_of_system(), free_of_own_groups()); }

void set_root_of_memory_files(std::string new_root) { root() = std::move(new_root); }

}  // namespace habana_mp::host
