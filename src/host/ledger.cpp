#include "host/ledger.hpp"

#include <cstdlib>
#include <sstream>
#include <string>

namespace habana_mp::host {

namespace {

std::vector<const Assumption*>& entries() {
  static std::vector<const Assumption*> all;
  return all;
}

}  // namespace

Assumption::Assumption(const char* name, const char* assumed, const char* check, const char* otherwise)
    : name_(name), assumed_(assumed), check_(check), otherwise_(otherwise) {
  const char* const broken = std::getenv("HABANA_MP_BREAK");
  std::istringstream names(broken == nullptr ? "" : broken);
  for (std::string one; std::getline(names, one, ',');) is_broken_ = is_broken_ || one == name;
  entries().push_back(this);
}

const std::vector<const Assumption*>& ledger() { return entries(); }

}  // namespace habana_mp::host
