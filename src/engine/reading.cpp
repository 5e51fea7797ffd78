#include "engine/reading.hpp"

#include <bit>
#include <cmath>

#include "tensor/cast.hpp"

namespace habana_mp::engine {

using tensor::bit;
using tensor::floating;
using tensor::is_floating;
using tensor::Kind;
using tensor::Kinds;

namespace {

struct Names {
  PyObject* out = PyUnicode_InternFromString("out");
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* input = PyUnicode_InternFromString("input");  // what torch calls nearly every operation's first input
  PyObject* query = PyUnicode_InternFromString("query");
};
const Names& names() {
  static const Names interned;
  return interned;
}

// The kinds of the tensors in a list or tuple. Lists of numbers, by far the most, are seen through at their first item.
Kinds read_sequence(const Rule& rule, PyObject* sequence, Reading& reading, int depth) {
  Kinds seen = 0;
  if (!may_exchange(rule, sequence)) return seen;
  const bool is_tuple = PyTuple_Check(sequence);
  const auto size = [&] { return is_tuple ? PyTuple_GET_SIZE(sequence) : PyList_GET_SIZE(sequence); };
  // Reading a subclass's dtype can run Python code, so the size is asked again each time and the item is held.
  for (Py_ssize_t i = 0; i < size(); ++i) {
    PyObject* item = is_tuple ? PyTuple_GET_ITEM(sequence, i) : PyList_GET_ITEM(sequence, i);
    if (PyLong_CheckExact(item) || PyFloat_CheckExact(item)) return seen;
    Py_INCREF(item);
    const Kind kind = tensor::kind_of(item);
    if (kind == Kind::sequence) {
      if (depth < deepest_sequence) seen |= read_sequence(rule, item, reading, depth + 1);
    } else if (kind != Kind::dtype) {
      seen |= bit(kind);
      reading.note(kind);
    }
    Py_DECREF(item);
  }
  return seen;
}

}  // namespace

void read(const Rule& rule, const Arguments& arguments, Reading& reading) {
  for (Py_ssize_t i = 0; i < arguments.positional; ++i) {
    Kind kind = Kind::other;
    if (rule.may_cast(i)) [[likely]] {
      kind = tensor::kind_of(arguments.values[i]);
      if (kind == Kind::sequence) {
        if ((read_sequence(rule, arguments.values[i], reading, 0) & floating) == 0) kind = Kind::other;
      } else if (kind == Kind::dtype) {
        reading.explicit_dtype = true;
      } else {
        reading.note(kind);
      }
    }
    reading.kinds[i] = kind;
  }
  const Py_ssize_t keyword_count = arguments.keyword_count();
  if (arguments.positional == 0 && rule.action == Rule::Action::in_place) [[unlikely]] {
    reading.target = keyword_count - 1;
    while (reading.target >= 0 && !holds(rule.target_keywords, PyTuple_GET_ITEM(arguments.keywords, reading.target))) {
      --reading.target;
    }
  }
  for (Py_ssize_t i = 0; i < keyword_count; ++i) {
    PyObject* name = PyTuple_GET_ITEM(arguments.keywords, i);
    PyObject* value = arguments.values[arguments.positional + i];
    Kind kind = Kind::other;
    if (value != Py_None) {
      if (same_name(name, names().out)) {
        reading.explicit_out = true;
      } else if (holds(rule.kept_keywords, name)) {
        // never cast, and not what decides
      } else if (same_name(name, names().dtype)) {
        reading.explicit_dtype = true;
      } else {
        kind = tensor::kind_of(value);
        if (kind == Kind::sequence) {
          if ((read_sequence(rule, value, reading, 0) & floating) == 0) kind = Kind::other;
        } else if (kind == Kind::dtype) {
          reading.explicit_dtype = true;
        } else {
          reading.note(kind);
          const bool is_first = arguments.positional == 0 && is_floating(kind) &&
                                (same_name(name, names().input) || same_name(name, names().query));
          if (is_first) reading.first = kind;
        }
      }
    }
    reading.kinds[arguments.positional + i] = kind;
  }
}

Precision precision_of(Kind kind) {
  switch (kind) {
    case Kind::bf16:
      return Precision::bf16;
    case Kind::f16:
      return Precision::fp16;
    default:
      return Precision::fp32;
  }
}

namespace {

bool holds_one_precision(const Reading& reading) {
  return std::has_single_bit(static_cast<Kinds>(reading.seen & floating));
}

}  // namespace

Kind widest(const Reading& reading) { return holds_one_precision(reading) ? reading.first : Kind::f32; }

namespace {

bool is_a_number(const Arguments& arguments, const Reading& reading, Py_ssize_t i) {
  return is_floating(reading.kinds[i]) && tensor::has_no_dimensions(arguments.values[i]);
}

// Rule 2 of several precisions: as in torch's promotion, a tensor without dimensions does not widen one that has some.
// An operation of torch's that promotes by itself gets it as it is, with all its digits.
Kind widest_of_those_with_dimensions(const Rule& rule, const Arguments& arguments, Reading& reading) {
  Reading rest(0);
  bool leaves_out = false;
  for (Py_ssize_t i = 0; i < arguments.count(); ++i) {
    // What a sequence holds counts as it is.
    if (reading.kinds[i] == Kind::sequence) return widest(reading);
    if (is_a_number(arguments, reading, i)) {
      leaves_out = true;
    } else if (is_floating(reading.kinds[i])) {
      rest.note(reading.kinds[i]);
    }
  }
  if (!leaves_out || rest.first == Kind::other) return widest(reading);
  if (rule.promotes && holds_one_precision(rest)) {
    for (Py_ssize_t i = 0; i < arguments.count(); ++i) {
      if (is_a_number(arguments, reading, i)) reading.kinds[i] = Kind::other;
    }
    reading.seen = static_cast<Kinds>((reading.seen & ~floating) | rest.seen);
    reading.first = rest.first;
  }
  return widest(rest);
}

}  // namespace

Plan decide(const Rule& rule, const Arguments& arguments, Reading& reading) {
  const auto leave = [](Reason reason) { return Plan{{Precision::unchanged, reason}, Kind::other}; };
  if (reading.explicit_out) return leave(Reason::explicit_out);
  if (reading.explicit_dtype) return leave(Reason::explicit_dtype);
  if ((reading.seen & floating) == 0 || (reading.seen & bit(Kind::wide)) != 0) return leave(Reason::ineligible);
  Kind to = Kind::other;
  switch (rule.action) {
    case Rule::Action::precision:
      to = rule.to;
      break;
    case Rule::Action::widest:
      to = holds_one_precision(reading) ? reading.first : widest_of_those_with_dimensions(rule, arguments, reading);
      break;
    case Rule::Action::in_place:
      to = reading.target < 0 ? Kind::other : reading.kinds[reading.target];
      if (!is_floating(to)) return leave(Reason::ineligible);
      break;
    case Rule::Action::first_input:
    case Rule::Action::scalars:
      to = reading.first;
      break;
    case Rule::Action::none:
    case Rule::Action::refused:
      return leave(rule.reason);
  }
  const Plan plan{{precision_of(to), rule.reason}, to};
  return plan;
}

bool has_sparse_gradient(const Rule& rule, const Arguments& arguments) {
  return find_argument(arguments, rule.sparse_position, PyTuple_GET_ITEM(rule.sparse_keyword, 0)) == Py_True;
}

bool holds_one_tensor(const Arguments& arguments, const Reading& reading) {
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
    if (is_floating(reading.kinds[i]) && tensor::is_sparse(arguments.values[i])) return true;
  }
  return false;
}

bool has_number_beyond(Kind precision, const Arguments& arguments) {
  const double limit = tensor::largest(precision);
  for (Py_ssize_t i = 0; i < arguments.count(); ++i) {
    PyObject* value = arguments.values[i];
    if (!is_number(value)) continue;
    int overflow = 0;
    const double number = PyFloat_CheckExact(value) ? PyFloat_AS_DOUBLE(value)
                                                    : static_cast<double>(PyLong_AsLongAndOverflow(value, &overflow));
    if (overflow != 0 || !(std::abs(number) <= limit)) return true;
  }
  return false;
}

}  // namespace habana_mp::engine
