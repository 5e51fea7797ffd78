// A hash table whose look-up touches one line of memory: the models that are watched empty the processor's caches
// between two calls, and each line that is touched then costs as much as many instructions.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace habana_mp::watch {

// Keys are compared and hashed by their own members, and a new one stands for a free slot. Nothing is taken out.
template <typename Key, typename Value>
class Table {
 public:
  // Null where it is not there.
  Value* find(const Key& key) noexcept {
    if (slots_.empty()) return nullptr;
    Slot& slot = slot_of(key);
    return slot.key == key ? &slot.value : nullptr;
  }
  // The value moves when others are put in.
  Value& operator[](const Key& key) {
    if (2 * (count_ + 1) > slots_.size()) grow();
    Slot& slot = slot_of(key);
    if (!(slot.key == key)) {
      slot.key = key;
      ++count_;
    }
    return slot.value;
  }
  void clear() noexcept {
    slots_.clear();
    count_ = 0;
  }

 private:
  struct Slot {
    Key key{};
    Value value{};
  };

  Slot& slot_of(const Key& key) noexcept {
    std::size_t place = mixed(key.hash());
    while (!(slots_[place & (slots_.size() - 1)].key == key) && !(slots_[place & (slots_.size() - 1)].key == Key{})) {
      ++place;
    }
    return slots_[place & (slots_.size() - 1)];
  }
  static std::size_t mixed(std::size_t hash) noexcept {
    hash *= 0x9E3779B97F4A7C15U;
    return hash ^ hash >> 32U;
  }
  void grow() {
    std::vector<Slot> former = std::exchange(slots_, std::vector<Slot>(slots_.empty() ? 64 : 2 * slots_.size()));
    count_ = 0;
    for (Slot& slot : former) {
      if (!(slot.key == Key{})) (*this)[slot.key] = std::move(slot.value);
    }
  }

  std::vector<Slot> slots_;
  std::size_t count_ = 0;
};

inline std::size_t hash_of(const void* pointer) noexcept { return reinterpret_cast<std::size_t>(pointer) >> 4U; }

}  // namespace habana_mp::watch
