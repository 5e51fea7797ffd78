// Finds functions of torch's loaded libraries by name. If a torch lacks one, its callers use a fallback.
#pragma once

namespace habana_mp::host {

// A mangled name contains a function's parameters, but not its result. So a name is trusted if torch's own header has
// this declaration.
struct Symbol {
  const char* library;  // "libtorch_cpu.so", for example; its dependencies are searched too
  const char* name;
  const char* header;       // relative to torch/include
  const char* declaration;  // what follows an export macro; compared without white space
};

// Returns the function; null if it is missing or not trusted.
void* find_symbol(const Symbol& symbol);

// Sets `function` to it; null and false if it is missing or not trusted.
template <class Function>
bool find(const Symbol& symbol, Function*& function) {
  function = reinterpret_cast<Function*>(find_symbol(symbol));
  return function != nullptr;
}

// Returns the address that the loader finds now. For a thread-local variable it is that of the calling thread. Does not
// check whether the symbol is trusted.
void* look_up(const Symbol& symbol) noexcept;

}  // namespace habana_mp::host
