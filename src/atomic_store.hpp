// Stores a pointer that other threads may read at the same time, in memory that belongs to CPython or torch.
#pragma once

#include <atomic>

namespace habana_mp {

template <typename T>
void store(T* place, T value) {
  std::atomic_ref<T>(*place).store(value, std::memory_order_release);
}

}  // namespace habana_mp
