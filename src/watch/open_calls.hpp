// The calls that are under way in a thread: a list from the innermost one outwards.
//
// An entry is allocated on the heap and can leave its list at any time: a block that was deferred may end in any order.
#pragma once

namespace habana_mp::watch {

// A link of a ring, which has one for the list itself and one for each entry.
class Link {
 public:
  Link() noexcept = default;
  ~Link() { leave(); }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  void leave() noexcept {
    outer_->inner_ = inner_;
    inner_->outer_ = outer_;
    outer_ = inner_ = this;
  }

 protected:
  Link* outer_ = this;
  Link* inner_ = this;
  bool is_list_ = false;

  template <typename Entry>
  friend class OpenCall;
  template <typename Entry>
  friend class OpenCalls;
};

// The base class of an entry.
template <typename Entry>
class OpenCall : public Link {
 public:
  // Returns the next entry outwards, or null.
  [[nodiscard]] Entry* outer() const noexcept { return outer_->is_list_ ? nullptr : static_cast<Entry*>(outer_); }
};

template <typename Entry>
class OpenCalls : Link {
 public:
  OpenCalls() noexcept { is_list_ = true; }

  [[nodiscard]] Entry* innermost() const noexcept { return outer_->is_list_ ? nullptr : static_cast<Entry*>(outer_); }

  void add(Entry& entry) noexcept {
    entry.outer_ = outer_;
    entry.inner_ = this;
    outer_->inner_ = &entry;
    outer_ = &entry;
  }
};

}  // namespace habana_mp::watch
