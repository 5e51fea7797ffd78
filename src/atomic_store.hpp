// Storing a pointer that other threads read meanwhile, in memory of CPython's or torch's.
#pragma once

#include <atomic>

namespace habana_mp {

template <typename T>
void store(T* place, T value) {
  std::atomic_ref<T>(*place).store(value, std::memory_order_release);
}

}  // namespace habana_mp
