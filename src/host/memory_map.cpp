#include "host/memory_map.hpp"

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>

#include "host/ledger.hpp"

namespace habana_mp::host {

namespace {

Assumption mappings_tell{"system.mappings", "/proc/self/maps tells which memory is a file's",
                         "it is there, and tells that a constant of ours is a file's",
                         "slices of files that are mapped are not told, so no casts of weights in such are cached"};

const char constant = 0;

}  // namespace

std::optional<Mapping> find_mapping(const void* address) {
  std::ifstream mappings;
  if (!mappings_tell.is_broken()) mappings.open("/proc/self/maps");
  std::optional<Mapping> found;
  bool tells = false;
  // Addresses, mode, offset, device, inode: `7f12...-7f13... rw-p 00000000 103:02 4711   /path`.
  for (std::string line; std::getline(mappings, line);) {
    Mapping one{};
    char mode[5] = {};
    std::uint64_t inode = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s %*s %*s %" SCNu64, &one.begin, &one.end, mode,
                    &inode) != 4) {
      continue;
    }
    one.shared = mode[3] == 's';
    one.of_file = inode != 0;
    if (one.holds(address)) found = one;
    tells = tells || (one.of_file && one.holds(&constant));
  }
  return mappings_tell.settle(tells) ? found : std::nullopt;
}

}  // namespace habana_mp::host
