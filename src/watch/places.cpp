#include "watch/places.hpp"

#include <map>
#include <unordered_map>
#include <utility>

#include "errors.hpp"
#include "host/callers.hpp"
#include "watch/modules.hpp"

namespace habana_mp::watch {

namespace {

enum class Whose : std::uint8_t { user, passed_over, compiler, call_impl };

struct Code {
  Owned held;  // for good, so that no other one gets its address
  Whose whose = Whose::user;
};

struct Position {
  PyObject* code;
  int instruction;
  bool operator==(const Position&) const = default;
};
struct HashPosition {
  std::size_t operator()(const Position& position) const noexcept {
    return std::hash<PyObject*>()(position.code) * 31 + static_cast<std::size_t>(position.instruction);
  }
};

struct Tables {
  Owned passed_over;
  Owned compilers;
  Owned call_impl;
  std::unordered_map<PyObject*, Code> codes;
  std::unordered_map<Position, Place, HashPosition> places;  // its elements never move
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
  const auto known = tables->codes.find(code);
  if (known != tables->codes.end()) return known->second.whose;
  return tables->codes.emplace(code, Code{Owned::borrowed(code), whose_code(code)}).first->second.whose;
}

const Place* place_at(const host::FrameWalk& frame, PyObject* code, bool is_compiler) {
  const Position position{code, frame.position()};
  const auto known = tables->places.find(position);
  if (known != tables->places.end()) return &known->second;
  Place place{.file = Owned::borrowed(host::file_of(code)), .function = host::name_of(code), .line = frame.line()};
  place.is_compiler = is_compiler;
  return &tables->places.emplace(position, std::move(place)).first->second;
}

const Place* place_outwards(host::FrameWalk& frame, ModuleCall* call) {
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
          call->caller = place_outwards(frame, call->outer);
          call->knows_caller = true;
        }
        return call->caller;
      case Whose::compiler:
        return place_at(frame, code, true);
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

const Place* place_of_call(ModuleCall* call) noexcept {
  HeldError held;
  host::FrameWalk frame;
  const Place* const place = place_outwards(frame, call);
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
