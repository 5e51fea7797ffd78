// A hash table whose lookup touches one cache line. The watched models evict the caches between two calls, so that each
// cache line costs as much as many instructions.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace habana_mp::watch {

// Keys are compared and hashed by their own members. A default-constructed key stands for a free slot.
template <typename Key, typename Value>
class Table {
 public:
  // Returns null if the key is not there.
  Value* find(const Key& key) noexcept {
    if (slots_.empty()) return nullptr;
    Slot& slot = slot_of(key);
    return slot.key == key ? &slot.value : nullptr;
  }
  // The value moves when other keys are added.
  Value& operator[](const Key& key) {
    if (is_full()) {
      keep_only([](const Key&, const Value&) { return true; });
    }
    Slot& slot = slot_of(key);
    if (!(slot.key == key)) {
      slot.key = key;
      ++count_;
    }
    return slot.value;
  }
  // True if the next new key makes the table grow. This is the time to remove entries that are no longer needed.
  [[nodiscard]] bool is_full() const noexcept { return 2 * (count_ + 1) > slots_.size(); }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }

  // Removes the entries for which `is_kept` is false. At least half of the room is free afterwards, so this is seldom
  // needed again. If memory runs out, the table is empty.
  template <typename Predicate>
  void keep_only(const Predicate& is_kept) {
    std::vector<Slot> former = std::exchange(slots_, {});
    count_ = 0;
    std::erase_if(former, [&](const Slot& slot) { return slot.key == Key{} || !is_kept(slot.key, slot.value); });
    std::size_t room = 64;
    while (4 * former.size() > room) room *= 2;
    slots_ = std::vector<Slot>(room);
    for (Slot& slot : former) slot_of(slot.key) = std::move(slot);
    count_ = former.size();
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
    std::size_t place = key.hash() * 0x9E3779B97F4A7C15U;
    for (place ^= place >> 32U;; ++place) {
      Slot& slot = slots_[place & (slots_.size() - 1)];
      if (slot.key == key || slot.key == Key{}) return slot;
    }
  }

  std::vector<Slot> slots_;
  std::size_t count_ = 0;
};

inline std::size_t hash_of(const void* pointer) noexcept { return reinterpret_cast<std::size_t>(pointer) >> 4U; }

}  // namespace habana_mp::watch
