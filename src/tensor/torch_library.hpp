// Functions of torch's libraries, found by name in what is already loaded. A torch that does not have one gets along
// without it.
#pragma once

#include <dlfcn.h>

namespace habana_mp::tensor {

class TorchLibrary {
 public:
  // "libtorch_cpu.so", say. What it was linked against is searched along with it.
  explicit TorchLibrary(const char* name) : library_(dlopen(name, RTLD_NOLOAD | RTLD_LAZY)) {}

  // Null where there is none.
  template <class Function>
  void find(const char* name, Function*& function) const {
    function = library_ == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library_, name));
  }

 private:
  void* library_;
};

}  // namespace habana_mp::tensor
