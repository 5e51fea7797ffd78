// Calls that are under way in a thread: a list from the innermost one outwards.
//
// The calls of a thread end in the opposite order of their beginnings, but for greenlets: there others may begin and
// end in between. So each entry lies on the heap, and leaves whatever list it is in.
#pragma once

namespace habana_mp::watch {

// Stands in a ring: the list's own link, and one for each entry.
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

// The base of an entry.
template <typename Entry>
class OpenCall : public Link {
 public:
  // The next one outwards, or null.
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
  // All entries of the other list, which is empty afterwards. This one must be empty.
  void take(OpenCalls& other) noexcept {
    if (other.innermost() == nullptr) return;
    outer_ = other.outer_;
    inner_ = other.inner_;
    outer_->inner_ = this;
    inner_->outer_ = this;
    other.outer_ = other.inner_ = &other;
  }
};

}  // namespace habana_mp::watch
