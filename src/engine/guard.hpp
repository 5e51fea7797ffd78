// The guard: checks whether the results of calls are finite, of all calls or of a share of them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "engine/answers.hpp"

namespace habana_mp::engine {

// Sets the answers of calls; a guard gets between them and `answer`.
void set_answers(const Answers& wanted) noexcept;

// Checks this share of the calls from now on, above 0 and at most 1. `found` is called with the object that was called,
// the operation's name, the arguments as a tuple and a dict, the result, and the worst values of the result and of the
// arguments before the call (-1 if they were not checked) as numbers of watch::Finite. It is called for results that
// are not finite or cannot be read here, and if all calls are checked for all others too. Its exceptions are those of
// the call. Null stops the guard.
// After `most` calls, if it is not 0, `found` is called once with the state -1.
void guard_calls(PyObject* found, double share, std::uint64_t most) noexcept;

// While it lives, calls in this thread are not checked.
class UnguardedBlock {
 public:
  UnguardedBlock() noexcept;
  ~UnguardedBlock();
  UnguardedBlock(const UnguardedBlock&) = delete;
  UnguardedBlock& operator=(const UnguardedBlock&) = delete;

 private:
  bool former_;
};

// Visits the largest magnitudes of checked results in float16, by operation.
void for_each_largest(const std::function<void(const std::string&, float)>& visit);
void forget_largest() noexcept;

}  // namespace habana_mp::engine
