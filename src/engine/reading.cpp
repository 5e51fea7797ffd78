#include "engine/reading.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "errors.hpp"
#include "host/frames.hpp"
#include "tensor/cast.hpp"

namespace habana_mp::engine {

namespace {

struct Names {
  PyObject* out = interned("out");
  PyObject* dtype = interned("dtype");
  PyObject* input = interned("input");  // torch's name for the first input of nearly every operation
  PyObject* query = interned("query");
};
const Names& names() {
  static const Names interned;
  return interned;
}

// Returns the precision of an argument `dtype`. Torch also takes Python's types for it.
Precision precision_of_dtype(PyObject* dtype) {
  const Kind kind = host::kind_of_dtype(dtype);
  if (is_floating(kind)) return rules::precision_of(kind);
  const Owned text(PyObject_Str(dtype));
  if (!text) clear_error();
  std::string name = text ? host::bytes_of(text.get()) : "";
  name = dtype == reinterpret_cast<PyObject*>(&PyFloat_Type)  ? "float64"
         : dtype == reinterpret_cast<PyObject*>(&PyLong_Type) ? "int64"
         : dtype == reinterpret_cast<PyObject*>(&PyBool_Type) ? "bool"
                                                              : name.substr(name.find('.') + 1);
  const auto found = std::ranges::find(rules::precisions, name);
  const bool is_known = found != rules::precisions.end();
  return is_known ? static_cast<Precision>(found - rules::precisions.begin()) : Precision::another;
}

// Calls `note` with each item of a list or tuple, and of those inside it, and with the item's kind. Stops at the first
// number, since most lists contain only numbers.
template <typename Note>
void for_each_in_sequence(const Rule& rule, PyObject* sequence, int depth, const Note& note) {
  if (!may_exchange(rule, sequence)) return;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence); ++i) {
    PyObject* const item = PySequence_Fast_GET_ITEM(sequence, i);
    if (PyLong_CheckExact(item) || PyFloat_CheckExact(item)) return;
    const Kind kind = host::kind_of(item);
    if (kind == Kind::sequence) {
      if (depth < deepest_sequence) for_each_in_sequence(rule, item, depth + 1, note);
    } else {
      note(item, kind);
    }
  }
}

// Returns the kind of an argument that may be cast, and notes it in `reading`.
[[gnu::always_inline]] inline Kind read_one(const Rule& rule, PyObject* value, Reading& reading) {
  const Kind kind = host::kind_of(value);
  if (kind == Kind::sequence) {
    Kinds seen = 0;
    for_each_in_sequence(rule, value, 0, [&](PyObject*, Kind item) {
      if (item == Kind::dtype) return;
      seen |= bit(item);
      reading.present.note(item);
    });
    return (seen & floating) == 0 ? Kind::other : kind;
  }
  if (kind == Kind::dtype) {
    reading.explicit_dtype = true;
    reading.given = precision_of_dtype(value);
  } else {
    reading.present.note(kind);
  }
  return kind;
}

// Returns the position of the argument that is written into, or -1.
Py_ssize_t place_of_target(const Rule& rule, const Arguments& arguments) {
  if (arguments.positional != 0) return 0;
  Py_ssize_t place = arguments.keyword_count() - 1;
  while (place >= 0 && !holds(rule.castable.target_keywords, PyTuple_GET_ITEM(arguments.keywords, place))) --place;
  return place;
}

}  // namespace

void read(const Rule& rule, const Arguments& arguments, Reading& reading) {
  for (Py_ssize_t i = 0; i < arguments.positional; ++i) {
    reading.kinds[i] = rule.may_cast(i) ? read_one(rule, arguments.values[i], reading) : Kind::other;
  }
  const Py_ssize_t keyword_count = arguments.keyword_count();
  for (Py_ssize_t i = 0; i < keyword_count; ++i) {
    PyObject* name = PyTuple_GET_ITEM(arguments.keywords, i);
    PyObject* value = arguments.values[arguments.positional + i];
    Kind& kind = reading.kinds[arguments.positional + i] = Kind::other;
    if (value == Py_None) continue;
    if (same_name(name, names().out)) {
      reading.explicit_out = true;
    } else if (holds(rule.castable.kept_keywords, name)) {
      // never cast, and without effect on the decision
    } else if (same_name(name, names().dtype)) {
      reading.explicit_dtype = true;
      reading.given = precision_of_dtype(value);
    } else {
      kind = read_one(rule, value, reading);
      const bool is_first = arguments.positional == 0 && is_floating(kind) &&
                            (same_name(name, names().input) || same_name(name, names().query));
      if (is_first) reading.present.first = kind;
    }
  }
  if (rule.action == Action::in_place) [[unlikely]] {
    const Py_ssize_t target = place_of_target(rule, arguments);
    if (target >= 0) reading.target = reading.kinds[target];
  }
}

Precision given_precision(const Arguments& arguments) {
  Reading reading(arguments.count());
  read(no_rule, arguments, reading);
  return reading.given;
}

std::optional<rules::Present> Call::inputs_with_dimensions() const {
  rules::Present rest;
  bool leaves_out = false;
  const auto note = [&](PyObject* value, Kind kind) {
    if (!is_floating(kind)) return;
    if (host::has_no_dimensions(value)) {
      leaves_out = true;
    } else {
      rest.note(kind);
    }
  };
  for (Py_ssize_t i = 0; i < arguments.count(); ++i) {
    if (reading.kinds[i] == Kind::sequence) {
      for_each_in_sequence(rule, arguments.values[i], 0, note);
    } else {
      note(arguments.values[i], reading.kinds[i]);
    }
  }
  if (!leaves_out) return std::nullopt;
  return rest;
}

void leave_out_numbers(const Call& call, Reading& reading) {
  if (const auto rest = call.inputs_with_dimensions()) reading.present.leave_only(*rest);
  for (Py_ssize_t i = 0; i < call.arguments.count(); ++i) {
    const bool is_number = is_floating(reading.kinds[i]) && host::has_no_dimensions(call.arguments.values[i]);
    if (is_number) reading.kinds[i] = Kind::other;
  }
}

bool Call::holds_one_tensor() const {
  Py_ssize_t tensors = 0;
  for (Py_ssize_t i = 0; i < arguments.count(); ++i) {
    if (reading.kinds[i] == Kind::sequence) {
      tensors += PySequence_Fast_GET_SIZE(arguments.values[i]);
    } else if (is_floating(reading.kinds[i])) {
      ++tensors;
    }
  }
  return tensors == 1;
}

bool holds_sparse_tensor(const Arguments& arguments, const Reading& reading) {
  for (Py_ssize_t i = 0; i < arguments.count(); ++i) {
    if (is_floating(reading.kinds[i]) && host::is_sparse(arguments.values[i])) return true;
  }
  return false;
}

bool may_cast(const Rule& rule, const Arguments& arguments, Py_ssize_t i) {
  if (i < arguments.positional) return rule.may_cast(i);
  return !holds(rule.castable.kept_keywords, PyTuple_GET_ITEM(arguments.keywords, i - arguments.positional));
}

bool Call::has_number_beyond(Kind precision) const {
  const double limit = tensor::largest(precision);
  for (Py_ssize_t i = 0; i < arguments.count(); ++i) {
    PyObject* value = arguments.values[i];
    if (!is_number(value) || !may_cast(rule, arguments, i)) continue;
    int overflow = 0;
    const double number = PyFloat_CheckExact(value) ? PyFloat_AS_DOUBLE(value)
                                                    : static_cast<double>(PyLong_AsLongAndOverflow(value, &overflow));
    if (overflow != 0 || !(std::abs(number) <= limit)) return true;
  }
  return false;
}

}  // namespace habana_mp::engine
