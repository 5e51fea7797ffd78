#include "weights/packs.hpp"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace habana_mp::weights {

Packs packs_named(const std::string& name) {
  static constexpr std::pair<std::string_view, Packs> names[] = {{"", Packs::nothing},      {"linear", Packs::linear},
                                                                 {"conv2d", Packs::conv2d}, {"addmm", Packs::addmm},
                                                                 {"mm", Packs::mm},         {"matmul", Packs::matmul}};
  static_assert(std::size(names) == packs_count);
  const auto found = std::ranges::find(names, name, [](const auto& one) { return one.first; });
  if (found == std::end(names)) throw std::invalid_argument("nothing packs: " + name);
  return found->second;
}

}  // namespace habana_mp::weights
