#include "host/memory_map.hpp"

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#include "host/ledger.hpp"

namespace habana_mp::host {

namespace {

Assumption mappings_tell{"system.mappings", "/proc/self/maps tells which memory is a file's",
                         "it is there, and tells that a constant of ours is a file's",
                         "slices of files that are mapped are not told, so no casts of weights in such are cached"};

const char constant = 0;

const void* answered_storage = nullptr;
const void* answered_address = nullptr;
bool last_answer = false;

bool look_up(const void* address) {
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

bool is_of_private_file(const void* storage, const void* address) {
  if (storage != answered_storage || address != answered_address) last_answer = look_up(address);
  answered_storage = storage;
  answered_address = address;
  return last_answer;
}

void forget_files() noexcept { answered_storage = nullptr; }

}  // namespace habana_mp::host
