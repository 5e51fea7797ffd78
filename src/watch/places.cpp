#include "watch/places.hpp"

#include <deque>
#include <map>
#include <utility>

#include "errors.hpp"
#include "host/callers.hpp"
#include "watch/modules.hpp"
#include "watch/table.hpp"

namespace habana_mp::watch {

namespace {

enum class Whose : std::uint8_t { user, passed_over, compiler, call_impl };

// Kept for good once it was seen, so that no other one gets its address.
struct Code {
  PyObject* object = nullptr;
  bool operator==(const Code&) const = default;
  [[nodiscard]] std::size_t hash() const noexcept { return hash_of(object); }
};

struct Position {
  PyObject* code = nullptr;
  int instruction = 0;
  bool operator==(const Position&) const = default;
  [[nodiscard]] std::size_t hash() const noexcept { return hash_of(code) * 31 + static_cast<std::size_t>(instruction); }
};

struct Tables {
  Owned passed_over;
  Owned compilers;
  Owned call_impl;
  Table<Code, Whose> codes;
  Table<Position, const Place*> by_position;
  std::deque<Place> places;  // its elements never move
  std::map<std::pair<std::string, int>, Place> named;
};
NeverDestroyed<Tables> tables;

Whose whose_code(PyObject* code) {
  if (code == tables->call_impl.get()) return Whose::call_impl;
  if (tables->compilers && host::is_of_file(code, tables->compilers.get())) return Whose::compiler;
  if (tables->passed_over && host::is_of_file(code, tables->passed_over.get())) return Whose::passed_over;
  return Whose::user;
}

Whose whose(PyObject* code) {
  if (const Whose* known = tables->codes.find({code})) [[likely]]
    return *known;
  return tables->codes[{kept_for_good(code)}] = whose_code(code);
}

const Place* place_at(const host::FrameWalk& frame, PyObject* code, bool is_compiler) {
  const Position position{code, frame.position()};
  if (const Place** known = tables->by_position.find(position)) [[likely]]
    return *known;
  Place place{.file = Owned::borrowed(host::file_of(code)), .function = host::name_of(code), .line = frame.line()};
  place.is_compiler = is_compiler;
  return tables->by_position[position] = &tables->places.emplace_back(std::move(place));
}

const Place* place_outwards(host::FrameWalk& frame, ModuleCall* call, bool finds_compilers) {
  while (call != nullptr && !call->has_frame) call = call->outer;
  for (; frame; frame.outwards()) {
    PyObject* const code = frame.code();
    switch (whose(code)) {
      case Whose::passed_over:
        break;
      case Whose::call_impl:
        if (call == nullptr) break;
        if (!call->knows_caller) {
          frame.outwards();
          call->caller = place_outwards(frame, call->outer, finds_compilers);
          call->knows_caller = true;
        }
        return call->caller;
      case Whose::compiler:
        if (finds_compilers) return place_at(frame, code, true);
        break;
      case Whose::user:
        return place_at(frame, code, false);
    }
  }
  return nullptr;
}

}  // namespace

void set_passed_over(PyObject* files, PyObject* compilers, PyObject* call_impl_code) {
  tables->passed_over = Owned::borrowed(files);
  tables->compilers = Owned::borrowed(compilers);
  tables->call_impl = Owned::borrowed(call_impl_code);
}

const Place* place_of_call(ModuleCall* call, bool finds_compilers) noexcept {
  HeldError held;
  host::FrameWalk frame;
  const Place* const place = place_outwards(frame, call, finds_compilers);
  held.restore();
  return place;
}

const Place* place_named(PyObject* file, const char* function, int line) {
  const char* const text = PyUnicode_AsUTF8(file);
  if (text == nullptr) return nullptr;
  Place& place = tables->named[{text, line}];
  if (!place.file) {
    place.file = Owned::borrowed(file);
    place.function = function;
    place.line = line;
  }
  return &place;
}

}  // namespace habana_mp::watch
