// The calls that are under way in a thread: a ring from the innermost one outwards.
//
// An entry is allocated on the heap and can leave its ring at any time: a block that was deferred may end in any order,
// and after its thread.
#pragma once

namespace habana_mp::watch {

// The base class of an entry. The ring's beginning is an object of this class itself.
template <typename Entry>
class OpenCall {
 public:
  OpenCall() noexcept = default;
  ~OpenCall() { leave(); }
  OpenCall(const OpenCall&) = delete;
  OpenCall& operator=(const OpenCall&) = delete;

  // Returns the next entry outwards, or null. That of the beginning is the innermost one.
  [[nodiscard]] Entry* outer() const noexcept { return outer_->is_entry_ ? static_cast<Entry*>(outer_) : nullptr; }

  // Becomes the innermost entry.
  void enter(OpenCall& beginning) noexcept {
    is_entry_ = true;
    outer_ = beginning.outer_;
    inner_ = &beginning;
    outer_->inner_ = beginning.outer_ = this;
  }
  void leave() noexcept {
    outer_->inner_ = inner_;
    inner_->outer_ = outer_;
    outer_ = inner_ = this;
  }

 private:
  OpenCall* outer_ = this;
  OpenCall* inner_ = this;
  bool is_entry_ = false;
};

}  // namespace habana_mp::watch
