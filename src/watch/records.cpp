#include "watch/records.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <unordered_set>
#include <utility>

#include "forks.hpp"
#include "host/inside.hpp"
#include "host/reader.hpp"
#include "host/tensors.hpp"
#include "watch/table.hpp"

namespace habana_mp::watch {

namespace {

// Memory is reused, so an entry is valid only while `memory` and `rest` match. The array is small because most inputs
// of a call were made just before it: a few cache lines are searched, the last entry first.
struct Made {
  const void* memory = nullptr;
  std::uint32_t by = 0;    // the record's number
  std::uint32_t rest = 0;  // the storage's address, shortened, and the kind
};
constexpr std::size_t remembered = 32;

struct Tables {
  std::unordered_set<std::string> names;
  Table<Key, Record*> by_key;
  std::deque<Record> all;  // its elements never move
  std::array<Made, remembered> made{};
  std::size_t next = 0;
  std::uint64_t generation = 0;
  std::unordered_map<std::string, Sensitivity> sensitive;
};
NeverDestroyed<Tables> tables;

constexpr std::size_t most_events = 200'000;
NeverDestroyed<std::vector<Event>> ring;
std::size_t oldest = 0;  // index in a ring that is full

// In a forked child the thread has another number than before the fork.
thread_local std::uint64_t thread_number = 0;
[[maybe_unused]] const bool is_mended = forks::mend_in_child([] { thread_number = 0; });

Made identity_of(PyObject* tensor) noexcept {
  const char* const storage = host::can_look_inside() ? host::storage_of(tensor) : nullptr;
  const auto address = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(storage));
  return {.memory = storage == nullptr ? static_cast<const void*>(tensor) : host::memory_of(storage),
          .rest = address << 4U | static_cast<std::uint32_t>(host::kind_of(tensor))};
}

}  // namespace

std::size_t Key::hash() const noexcept {
  std::size_t hash = hash_of(operation);
  hash = hash * 31 + hash_of(place);
  hash = hash * 31 + hash_of(module);
  hash = hash * 31 + decision.line;
  hash = hash * 31 + hash_of(inside);
  return hash * 31 + (static_cast<std::size_t>(decision.precision) << 16U |
                      static_cast<std::size_t>(decision.reason) << 8U | static_cast<std::size_t>(phase));
}

void set_sensitive(const std::string& operation, Sensitivity sensitivity) {
  tables->sensitive[operation] = sensitivity;
}

Sensitivity sensitivity_of(const std::string& operation) { return tables->sensitive[operation]; }

const std::string* operation_named(const std::string& operation) { return &*tables->names.insert(operation).first; }

Record& record_of(const Key& key) {
  Record*& found = tables->by_key[key];
  if (found == nullptr) {
    found = &tables->all.emplace_back();
    found->key = key;
    found->number = tables->all.size() - 1;
    found->sensitivity = sensitivity_of(*key.operation);
  }
  return *found;
}

const std::deque<Record>& all_records() noexcept { return tables->all; }

std::uint64_t record_generation() noexcept { return tables->generation; }

void forget_records() noexcept {
  ++tables->generation;
  tables->by_key.clear();
  tables->made.fill({});
  tables->all.clear();
  tables->names.clear();
}

void bound_places() noexcept {
  constexpr std::size_t many = 1 << 14;
  if (tables->all.empty() && known_places() > many) forget_places();
}

void remember_result(PyObject* tensor, const Record& made_by) {
  Made made = identity_of(tensor);
  made.by = static_cast<std::uint32_t>(made_by.number);
  tables->made[tables->next++ % remembered] = made;
}

Record* maker_of(PyObject* tensor) noexcept {
  const Made wanted = identity_of(tensor);
  for (std::size_t back = 1; back <= remembered; ++back) {
    const Made& known = tables->made[(tables->next - back) % remembered];
    if (known.memory != wanted.memory) continue;
    return known.rest == wanted.rest && wanted.memory != nullptr ? &tables->all[known.by] : nullptr;
  }
  return nullptr;
}

void pass_on_maker(PyObject* from, PyObject* to) {
  const Record* const maker = host::is_exact_tensor(from) && host::is_exact_tensor(to) ? maker_of(from) : nullptr;
  if (maker != nullptr) remember_result(to, *maker);
}

void prepare_events() { ring->reserve(most_events); }

void note_event(Event event) noexcept {
  if (thread_number == 0) thread_number = static_cast<std::uint64_t>(syscall(SYS_gettid));
  event.thread = thread_number;
  if (ring->size() < most_events) {
    ring->push_back(event);
    return;
  }
  (*ring)[oldest] = event;
  oldest = (oldest + 1) % most_events;
}

std::vector<Event> events() {
  std::vector<Event> all = *ring;
  std::rotate(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(oldest), all.end());
  return all;
}

void forget_events() noexcept {
  ring->clear();
  oldest = 0;
}

}  // namespace habana_mp::watch
