// The private details of torch, CPython and the system on which the core relies. Each entry states the assumption, its
// check before use, and what happens if it does not hold. `habana-mp doctor --assumptions` prints them.
#pragma once

#include <cstdint>
#include <vector>

namespace habana_mp::host {

class Assumption {
 public:
  enum class State : std::uint8_t { not_asked, holds, fails };

  // Stores the four pointers; the texts must outlive the entry. The name has the form `owner.subject`.
  Assumption(const char* its_name, const char* its_assumption, const char* its_check, const char* its_fallback);
  Assumption(const Assumption&) = delete;
  Assumption& operator=(const Assumption&) = delete;

  // True if the entry is broken on purpose, to test the fallback. The environment variable HABANA_MP_BREAK lists such
  // entries, separated by commas.
  [[nodiscard]] bool is_broken() const { return is_broken_; }

  // Runs the test, and stores and returns its result. An entry that is broken on purpose fails without the test.
  template <typename Test>
  bool holds_by(const Test& test) {
    return settle(!is_broken_ && test());
  }
  // Stores and returns the result of a test. An entry with several parts fails if one of them fails.
  bool settle(bool holds) {
    if (!holds) {
      state_ = State::fails;
    } else if (state_ == State::not_asked) {
      state_ = State::holds;
    }
    return holds;
  }
  [[nodiscard]] bool holds() const { return state_ == State::holds; }

  [[nodiscard]] State state() const { return state_; }

  const char* const name;
  const char* const assumed;
  const char* const check;
  const char* const otherwise;

 private:
  State state_ = State::not_asked;
  bool is_broken_ = false;
};

// Returns all entries in the order in which they were made.
const std::vector<const Assumption*>& ledger();

}  // namespace habana_mp::host
