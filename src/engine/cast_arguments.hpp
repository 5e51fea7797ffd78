// The arguments of a call as a plan wants them.
#pragma once

#include "engine/reading.hpp"
#include "owned.hpp"
#include "tensor/cast.hpp"
#include "tensor/cast_memory.hpp"

namespace habana_mp::engine {

// What was cast for a call, and how it may be.
struct Tally {
  bool may_reuse_memory = false;  // nobody but this call sees what is cast of an activation
  bool transient = false;         // was the last cast such a one?
  bool leaves_casts = false;      // what no cast is kept of is left for torch to cast
  bool left_casts = false;        // and there was something
  unsigned casts = 0;             // arguments that were exchanged
  unsigned kept = 0;              // for casts that were there already
  unsigned small = 0;             // weights that are left for torch since they are small
  // What is looked up for the first weight of a call and holds for all.
  bool looked_around = false;
  bool may_keep = false;
  bool records = false;
  bool of_steps = false;  // is the next to be cast a weight of an operation that takes steps?
  tensor::CastResult made;

  // Torch will cast this one.
  void note_left(PyObject* item, Kind to, std::int64_t elements);
};

// Is this float32 tensor to be looked for among the kept casts? A small weight that torch is to cast is counted.
bool may_have_kept_cast(const Rule& rule, PyObject* item, Tally& tally);

// One tensor, or itself where there is nothing to cast. Null with a Python exception when it failed.
Owned cast_item(const Rule& rule, PyObject* item, Kind kind, Kind to, Tally& tally);

// Of what cast_item made; `transient` as the tally said then.
inline void let_go(Owned value, bool transient) {
  if (transient) tensor::give_back(value.release());
}

// Rule 9: a Python number that float32 holds and the lower precision does not, brought into its range; null for others.
// Null with a Python exception set where there is no memory.
Owned saturated(PyObject* number, Kind precision);

// Does one of the arguments stay in float32 beside a lower input, since the kernel takes it so?
bool one_stays_in_float32(const Rule& rule, const Arguments& arguments, const Reading& reading);
inline bool one_stays_in_float32(const Call& call) {
  return one_stays_in_float32(call.rule, call.arguments, call.reading);
}

// New arguments with everything cast that the plan wants. Owns what it holds.
class CastArguments {
 public:
  explicit CastArguments(const Arguments& given) : given_(given), values_(given.count()), transient_(given.count()) {}
  ~CastArguments() {
    for (Py_ssize_t i = 0; i < made_; ++i) let_go(Owned(values_[i]), transient_[i]);
  }
  CastArguments(const CastArguments&) = delete;
  CastArguments& operator=(const CastArguments&) = delete;

  // False with a Python exception set when a cast failed.
  bool make(const Rule& rule, const Reading& reading, Kind to, Tally& tally);

  bool scalar_changed() const { return scalar_changed_; }
  Arguments arguments() { return {values_.data(), given_.positional, given_.keywords}; }

 private:
  // The one at this place.
  Owned cast_one(const Rule& rule, const Reading& reading, Py_ssize_t i, Kind to, bool keeps_float32, Tally& tally);
  bool keep_all();

  const Arguments& given_;
  SmallBuffer<PyObject*> values_;  // of which so many are owned
  Py_ssize_t made_ = 0;
  SmallBuffer<bool> transient_;
  bool scalar_changed_ = false;
};

}  // namespace habana_mp::engine
