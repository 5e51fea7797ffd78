// The arguments of a call with the casts of its plan.
#pragma once

#include <optional>

#include "engine/reading.hpp"
#include "owned.hpp"
#include "tensor/buffers.hpp"
#include "tensor/cast.hpp"

namespace habana_mp::engine {

// The casts of one call and the options for them.
struct CastContext {
  bool may_reuse_memory = false;          // casts of activations are visible to this call alone
  bool transient = false;                 // the last cast has such memory
  bool leaves_casts_to_autocast = false;  // arguments without a cached cast are left for torch to cast
  bool has_autocast_casts = false;        // at least one argument was left
  unsigned casts = 0;                     // arguments that were cast
  unsigned cached = 0;                    // of these, casts that were in the cache
  unsigned needed = 0;                    // weights without a cached cast, or left for torch because they are small
  // Looked up for the first weight of a call; valid for all its weights.
  bool state_is_read = false;
  bool may_cache = false;
  bool records = false;
  bool is_recurrent_weight = false;  // the next tensor is a weight that every step of the operation uses
  tensor::CastResult made;

  // Counts an argument that torch will cast.
  void count_autocast_cast(PyObject* item, Kind to, std::int64_t elements);
};

// True if this float32 tensor may have a cached cast. Counts a small weight that torch will cast.
bool may_have_cached_cast(const Rule& rule, PyObject* item, CastContext& context);

// Returns the cast of one tensor, or the tensor itself if it needs no cast. Null with a Python exception set on
// failure.
Owned cast_item(const Rule& rule, PyObject* item, Kind kind, Kind to, CastContext& context);

// Rule 9: for a Python number that float32 holds and the lower precision does not, returns the nearest number in that
// precision's range. Returns nullopt for other numbers.
std::optional<double> saturated(PyObject* number, Kind precision);

// True if an argument stays in float32 beside a lowered input because the kernel takes it so.
bool one_stays_in_float32(const Rule& rule, const Arguments& arguments, const Reading& reading);

// New arguments with all casts of the plan. Owns the objects in it.
class CastArguments {
 public:
  explicit CastArguments(const Arguments& given) : given_(given), values_(given.count()), transient_(given.count()) {}
  ~CastArguments() {
    for (Py_ssize_t i = 0; i < made_; ++i) {
      Owned value(values_[i]);
      if (transient_[i]) tensor::give_back(value.release());
    }
  }
  CastArguments(const CastArguments&) = delete;
  CastArguments& operator=(const CastArguments&) = delete;

  // Returns false with a Python exception set if a cast failed.
  bool make(const Rule& rule, const Reading& reading, Kind to, CastContext& context);

  bool scalar_changed() const { return scalar_changed_; }
  Arguments arguments() { return {values_.data(), given_.positional, given_.keywords}; }

 private:
  // Returns the argument at position `i` as the call needs it. Null with a Python exception set on failure.
  Owned cast_one(const Rule& rule, const Reading& reading, Py_ssize_t i, Kind to, bool keeps_float32,
                 CastContext& context);
  void trace_casts(const Reading& reading, Kind to) const noexcept;

  const Arguments& given_;
  SmallBuffer<PyObject*> values_;  // the first `made_` are owned
  Py_ssize_t made_ = 0;
  SmallBuffer<bool> transient_;
  bool scalar_changed_ = false;
};

// Returns the float32 result of a call, or the tuple of results, rounded to `to`. Null with an exception set on
// failure.
Owned rounded(PyObject* result, Kind to, CastContext& context);

}  // namespace habana_mp::engine
