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

Assumption::Assumption(const char* its_name, const char* its_assumption, const char* its_check,
                       const char* its_fallback)
    : name(its_name), assumed(its_assumption), check(its_check), otherwise(its_fallback) {
  const char* const broken = std::getenv("HABANA_MP_BREAK");
  std::istringstream names(broken == nullptr ? "" : broken);
  for (std::string one; std::getline(names, one, ',');) is_broken_ = is_broken_ || one == name;
  entries().push_back(this);
}

const std::vector<const Assumption*>& ledger() { return entries(); }

}  // namespace habana_mp::host
