#include "host/system_memory.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "host/ledger.hpp"

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

std::ifstream open(const std::string& path) { return std::ifstream(root() + path); }

// Returns the number with which the file begins; nullopt if it has none. Version 2 writes `max` for no limit.
std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream file = open(path);
  std::uint64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

// Returns the number after `word`, which begins a line; nullopt if there is no such line.
std::optional<std::uint64_t> number_after(const std::string& word, const std::string& path) {
  std::ifstream file = open(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream parts(line);
    std::string first;
    std::uint64_t number = 0;
    if (parts >> first >> number && first == word) return number;
  }
  return std::nullopt;
}

std::uint64_t difference(std::uint64_t limit, std::uint64_t used) { return limit > used ? limit - used : 0; }

std::uint64_t free_of_system() {
  const std::optional<std::uint64_t> kilobytes = number_after("MemAvailable:", "/proc/meminfo");
  if (!memory_files.holds_by([&] { return kilobytes.has_value(); })) return unlimited;
  return *kilobytes * 1024;
}

// The files of one version of control groups.
struct GroupFiles {
  const char* mount;
  const char* limit;
  const char* used;
  const char* inactive;  // keys in memory.stat for cached file contents
  const char* active;
};
constexpr GroupFiles version_2{"/sys/fs/cgroup", "/memory.max", "/memory.current", "inactive_file", "active_file"};
constexpr GroupFiles version_1{"/sys/fs/cgroup/memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes",
                               "total_inactive_file", "total_active_file"};

std::uint64_t free_of_group(const GroupFiles& files, const std::string& directory) {
  const std::optional<std::uint64_t> limit = number_in(directory + files.limit);
  const std::optional<std::uint64_t> used = limit ? number_in(directory + files.used) : std::nullopt;
  if (!used) return unlimited;
  const std::string statistics = directory + "/memory.stat";
  const std::uint64_t of_files =
      number_after(files.inactive, statistics).value_or(0) + number_after(files.active, statistics).value_or(0);
  return difference(*limit, difference(*used, of_files));
}

// Each enclosing group also limits a group's memory. In a container the path may name groups that are not visible. So
// names are removed one by one up to the root, which then is the container's own group.
std::uint64_t free_of_groups(const GroupFiles& files, std::string path) {
  std::uint64_t found = unlimited;
  while (true) {
    if (path == "/") path.clear();
    found = std::min(found, free_of_group(files, files.mount + path));
    if (path.empty()) return found;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

// A line of /proc/self/cgroup has a number, the controllers separated by commas, and the path. Version 2 has no
// controllers.
std::uint64_t free_of_own_groups() {
  std::uint64_t found = unlimited;
  std::ifstream file = open("/proc/self/cgroup");
  for (std::string number, controllers, path;
       std::getline(std::getline(std::getline(file, number, ':'), controllers, ':'), path);) {
    if (controllers.empty()) found = std::min(found, free_of_groups(version_2, path));
    if (controllers.find("memory") != std::string::npos) found = std::min(found, free_of_groups(version_1, path));
  }
  return found;
}

Assumption mappings_tell{"system.mappings", "/proc/self/maps tells which memory is a file's",
                         "it is there, and tells that a constant of ours is a file's",
                         "slices of files that are mapped are not told, so no casts of weights in such are cached"};

const char constant = 0;

const void* answered_storage = nullptr;
const void* answered_address = nullptr;
bool last_answer = false;

bool is_mapped_privately(const void* address) {
  std::ifstream mappings;
  if (!mappings_tell.is_broken()) mappings.open("/proc/self/maps");
  bool is_private = false;
  bool tells = false;
  // Addresses, mode, offset, device, inode: `7f12...-7f13... rw-p 00000000 103:02 4711   /path`.
  for (std::string line; std::getline(mappings, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char mode[5] = {};
    std::uint64_t inode = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s %*s %*s %" SCNu64, &begin, &end, mode, &inode) != 4) {
      continue;
    }
    const auto holds = [&](const void* one) {
      const auto value = reinterpret_cast<std::uintptr_t>(one);
      return inode != 0 && value >= begin && value < end;
    };
    if (holds(address)) is_private = mode[3] != 's';
    if (holds(&constant)) tells = true;
  }
  return mappings_tell.settle(tells) && is_private;
}

}  // namespace

std::uint64_t free_memory() { return std::min(free_of_system(), free_of_own_groups()); }

void set_root_of_memory_files(std::string new_root) { root() = std::move(new_root); }

bool is_of_private_file(const void* storage, const void* address) {
  if (storage != answered_storage || address != answered_address) last_answer = is_mapped_privately(address);
  answered_storage = storage;
  answered_address = address;
  return last_answer;
}

void forget_files() noexcept { answered_storage = nullptr; }

}  // namespace habana_mp::host
