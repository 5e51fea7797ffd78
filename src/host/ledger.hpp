// Everything private of torch, CPython and the system that is relied on, one entry each: what is assumed, how it is
// checked before it is relied on, and what happens where it does not hold. `habana-mp doctor --assumptions` prints it.
#pragma once

#include <cstdint>
#include <vector>

namespace habana_mp::host {

class Assumption {
 public:
  enum class State : std::uint8_t { not_asked, holds, fails };

  // All four are kept as they are given. The name is `whose.what`.
  Assumption(const char* name, const char* assumed, const char* check, const char* otherwise);
  Assumption(const Assumption&) = delete;
  Assumption& operator=(const Assumption&) = delete;

  // Is it broken on purpose, to see what happens then? The environment variable HABANA_MP_BREAK names such entries,
  // with commas between them.
  [[nodiscard]] bool is_broken() const { return is_broken_; }

  // Does it hold? The test is made each time it is asked so, and not at all where the entry is broken.
  template <typename Test>
  bool holds_by(const Test& test) {
    return settle(!is_broken_ && test());
  }
  // What a test has found. An entry with several parts fails with one of them.
  bool settle(bool holds) {
    if (!holds) {
      state_ = State::fails;
    } else if (state_ == State::not_asked) {
      state_ = State::holds;
    }
    return holds;
  }
  [[nodiscard]] bool holds() const { return state_ == State::holds; }

  [[nodiscard]] const char* name() const { return name_; }
  [[nodiscard]] const char* assumed() const { return assumed_; }
  [[nodiscard]] const char* check() const { return check_; }
  [[nodiscard]] const char* otherwise() const { return otherwise_; }
  [[nodiscard]] State state() const { return state_; }

 private:
  const char* name_;
  const char* assumed_;
  const char* check_;
  const char* otherwise_;
  State state_ = State::not_asked;
  bool is_broken_;
};

// All entries, in the order in which they were made.
const std::vector<const Assumption*>& ledger();

}  // namespace habana_mp::host
