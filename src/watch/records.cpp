#include "watch/records.hpp"

#include <array>
#include <unordered_map>
#include <unordered_set>

#include "host/inside.hpp"
#include "host/reader.hpp"

namespace habana_mp::watch {

namespace {

struct HashKey {
  std::size_t operator()(const Key& key) const noexcept {
    std::size_t hash = std::hash<const void*>()(key.operation);
    hash = hash * 31 + std::hash<const void*>()(key.place);
    hash = hash * 31 + std::hash<const void*>()(key.module);
    return hash * 31 + (static_cast<std::size_t>(key.decision.precision) << 16U |
                        static_cast<std::size_t>(key.decision.reason) << 8U | static_cast<std::size_t>(key.phase));
  }
};

// Memory is used again by others: an entry counts while all of this is the same.
struct Made {
  const void* storage = nullptr;
  const void* memory = nullptr;
  Kind kind = Kind::other;
  const Record* by = nullptr;
};
constexpr std::size_t remembered = 4096;

struct Tables {
  std::unordered_set<std::string> names;
  std::unordered_map<Key, Record*, HashKey> by_key;
  std::deque<Record> all;  // its elements never move
  std::array<Made, remembered> made{};
  std::uint64_t generation = 0;
};
Tables& tables() {
  static auto* all = new Tables;
  return *all;
}

Made identity_of(PyObject* tensor) noexcept {
  Made made{.kind = host::kind_of(tensor)};
  if (host::can_look_inside()) made.storage = host::storage_of(tensor);
  made.memory = made.storage == nullptr ? static_cast<const void*>(tensor)
                                        : host::memory_of(static_cast<const char*>(made.storage));
  return made;
}

Made& slot_of(const Made& made) noexcept {
  const std::size_t hash = std::hash<const void*>()(made.memory);
  return tables().made[(hash >> 4U ^ hash >> 16U) % remembered];
}

}  // namespace

const char* name(Phase phase) noexcept {
  switch (phase) {
    case Phase::backward:
      return "backward";
    case Phase::traced:
      return "traced";
    default:
      return "forward";
  }
}

const std::string* operation_named(const std::string& operation) { return &*tables().names.insert(operation).first; }

Record& record_of(const Key& key) {
  Record*& found = tables().by_key[key];
  if (found == nullptr) {
    found = &tables().all.emplace_back();
    found->key = key;
    found->number = tables().all.size() - 1;
  }
  return *found;
}

const std::deque<Record>& all_records() noexcept { return tables().all; }

std::uint64_t record_generation() noexcept { return tables().generation; }

void forget_records() noexcept {
  ++tables().generation;
  tables().by_key.clear();
  tables().made.fill({});
  tables().all.clear();
}

void remember_result(PyObject* tensor, const Record& made_by) {
  Made made = identity_of(tensor);
  made.by = &made_by;
  slot_of(made) = made;
}

const Record* maker_of(PyObject* tensor) noexcept {
  const Made wanted = identity_of(tensor);
  const Made& known = slot_of(wanted);
  const bool is_it = known.memory == wanted.memory && known.storage == wanted.storage && known.kind == wanted.kind;
  return is_it ? known.by : nullptr;
}

}  // namespace habana_mp::watch
