#include "host/symbols.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "host/torch_api.hpp"

namespace habana_mp::host {

namespace {

// Returns the text without comments, white space and export macros, so that it can be compared.
std::string condensed(const std::string& text) {
  std::string words;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "//") == 0) {
      i = text.find('\n', i);
      if (i == std::string::npos) break;
    } else if (std::isspace(static_cast<unsigned char>(text[i])) == 0) {
      words += text[i];
    }
  }
  for (const char* macro : {"TORCH_API", "TORCH_PYTHON_API", "C10_API", "AOTI_TORCH_EXPORT"}) {
    for (std::size_t at = words.find(macro); at != std::string::npos; at = words.find(macro, at)) {
      words.erase(at, std::char_traits<char>::length(macro));
    }
  }
  return words;
}

std::vector<Symbol>& asked_for() {
  static std::vector<Symbol> all;
  return all;
}

}  // namespace

const std::vector<Symbol>& known_symbols() noexcept { return asked_for(); }

bool is_declared(const Symbol& symbol) {
  std::ifstream file(api.folder + "/include/" + symbol.header);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return condensed(text).find(condensed(symbol.declaration)) != std::string::npos;
}

void* look_up(const Symbol& symbol) noexcept {
  void* library = dlopen(symbol.library, RTLD_NOLOAD | RTLD_LAZY);
  return library == nullptr ? nullptr : dlsym(library, symbol.name);
}

void* find_symbol(const Symbol& symbol) {
  std::vector<Symbol>& known = asked_for();
  if (std::none_of(known.begin(), known.end(), [&](const Symbol& one) { return one.name == symbol.name; })) {
    known.push_back(symbol);
  }
  void* found = look_up(symbol);
  if (found == nullptr) return nullptr;
  return api.is_known_release || is_declared(symbol) ? found : nullptr;
}

}  // namespace habana_mp::host
