#include "host/symbols.hpp"

#include <dlfcn.h>

#include <fstream>
#include <iterator>
#include <string>

#include "host/torch_api.hpp"

namespace habana_mp::host {

namespace {

// Returns the text without comments and white space, so that it can be compared.
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
  return words;
}

}  // namespace

void* look_up(const Symbol& symbol) noexcept {
  void* library = dlopen(symbol.library, RTLD_NOLOAD | RTLD_LAZY);
  return library == nullptr ? nullptr : dlsym(library, symbol.name);
}

void* find_symbol(const Symbol& symbol) {
  void* found = look_up(symbol);
  if (found == nullptr) return nullptr;
  std::ifstream file(api.folder + "/include/" + symbol.header);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return condensed(text).find(condensed(symbol.declaration)) != std::string::npos ? found : nullptr;
}

}  // namespace habana_mp::host
