#include "watch/places.hpp"

#include <set>
#include <string>
#include <unordered_set>
#include <utility>

#include "errors.hpp"
#include "host/callers.hpp"
#include "watch/modules.hpp"
#include "watch/table.hpp"
#include "weakrefs.hpp"

namespace habana_mp::watch {

namespace {

enum class FrameKind : std::uint8_t { user, passed_over, call_impl };

struct Code {
  PyObject* object = nullptr;
  bool operator==(const Code&) const = default;
  [[nodiscard]] std::size_t hash() const noexcept { return hash_of(object); }
};
// Code objects are not held: programs generate functions and drop them. A new code object may get the address of a
// freed one, so each has a number.
struct KnownCode {
  Owned reference;  // weak
  FrameKind kind = FrameKind::user;
  std::uint64_t number = 0;
};

struct Position {
  std::uint64_t code = 0;
  int instruction = 0;
  bool operator==(const Position&) const = default;
  [[nodiscard]] std::size_t hash() const noexcept {
    return static_cast<std::size_t>(code) * 31 + static_cast<std::size_t>(instruction);
  }
};

struct Tables {
  Owned passed_over;
  Owned call_impl;
  Table<Code, KnownCode> codes;
  std::uint64_t next_code = 1;
  Table<Position, const Place*> by_position;
  std::set<Place> places;  // its elements never move
  std::uint64_t generation = 0;
};
NeverDestroyed<Tables> tables;

FrameKind kind_of_frame(PyObject* code) {
  if (code == tables->call_impl.get()) return FrameKind::call_impl;
  if (tables->passed_over && host::is_of_file(code, tables->passed_over.get())) return FrameKind::passed_over;
  return FrameKind::user;
}

// Removes code objects that no longer exist, and their positions.
void forget_old_code() {
  std::unordered_set<std::uint64_t> alive;
  tables->codes.keep_only([&](const Code& code, const KnownCode& known) {
    const bool is_alive = referent_of(known.reference.get()) == code.object;
    if (is_alive) alive.insert(known.number);
    return is_alive;
  });
  tables->by_position.keep_only([&](const Position& position, const Place*) { return alive.contains(position.code); });
}

const KnownCode& known_code(PyObject* code) {
  KnownCode* known = tables->codes.find({code});
  if (known != nullptr && referent_of(known->reference.get()) == code) [[likely]]
    return *known;
  Owned reference(checked(PyWeakref_NewRef(code, nullptr)));
  if (tables->codes.is_full()) forget_old_code();
  return tables->codes[{code}] = {std::move(reference), kind_of_frame(code), tables->next_code++};
}

const Place* place_at(const host::FrameWalk& frame, PyObject* code, std::uint64_t number) {
  const Position position{number, frame.position()};
  if (const Place** known = tables->by_position.find(position)) [[likely]]
    return *known;
  if (tables->by_position.is_full()) forget_old_code();
  const Place place{host::bytes_of(host::file_of(code)), host::bytes_of(host::function_of(code)), frame.line()};
  return tables->by_position[position] = &*tables->places.insert(place).first;
}

const Place* place_outwards(host::FrameWalk& frame, ModuleCall* call) {
  while (call != nullptr && !call->has_frame) call = call->outer();
  for (; frame; frame.outwards()) {
    PyObject* const code = frame.code();
    const KnownCode& known = known_code(code);
    switch (known.kind) {
      case FrameKind::passed_over:
        break;
      case FrameKind::call_impl:
        if (call == nullptr) break;
        if (!call->knows_caller || call->caller_generation != tables->generation) {
          frame.outwards();
          call->caller = place_outwards(frame, call->outer());
          call->caller_generation = tables->generation;
          call->knows_caller = true;
        }
        return call->caller;
      case FrameKind::user:
        return place_at(frame, code, known.number);
    }
  }
  return nullptr;
}

}  // namespace

void set_passed_over(PyObject* files, PyObject* call_impl_code) {
  tables->passed_over = Owned::borrowed(files);
  tables->call_impl = Owned::borrowed(call_impl_code);
}

const Place* place_of_call(ModuleCall* call) {
  const HeldError held;
  host::FrameWalk frame;
  return place_outwards(frame, call);
}

const Place* place_named(PyObject* file, const char* function, int line) {
  return &*tables->places.insert({host::bytes_of(file), function, line}).first;
}

void forget_places() noexcept {
  ++tables->generation;
  tables->by_position.clear();
  tables->places.clear();
}

std::uint64_t place_generation() noexcept { return tables->generation; }

std::size_t known_codes() noexcept { return tables->codes.count(); }
std::size_t known_places() noexcept { return tables->places.size(); }

}  // namespace habana_mp::watch
