// Functions of torch's libraries, found by name in what is already loaded. A torch that does not have one gets along
// without it.
#pragma once

#include <vector>

namespace habana_mp::host {

// A mangled name tells what a function takes, and not what it gives back. So a name is trusted in the releases of torch
// in which what it gives was looked up, and in others where torch's own header declares it so.
struct Symbol {
  const char* library;  // "libtorch_cpu.so", say. What it was linked against is searched along with it.
  const char* name;
  const char* header;       // below torch/include
  const char* declaration;  // white space and macros of export apart
};

// Null where there is none, or none that is trusted.
void* find_symbol(const Symbol& symbol);

template <class Function>
void find(const Symbol& symbol, Function*& function) {
  function = reinterpret_cast<Function*>(find_symbol(symbol));
}

// As the loader finds it now: of a variable that each thread has its own of, the calling thread's. It is not asked
// whether it may be trusted.
void* look_up(const Symbol& symbol) noexcept;

// All that were asked for.
const std::vector<Symbol>& known_symbols() noexcept;

// Does torch's header declare it so? False too where torch came without its headers.
bool is_declared(const Symbol& symbol) noexcept;

}  // namespace habana_mp::host
