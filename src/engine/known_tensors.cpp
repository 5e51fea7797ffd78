#include "engine/known_tensors.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "engine/region.hpp"
#include "host/inside.hpp"
#include "host/tensors.hpp"
#include "tensor/cast.hpp"
#include "weakrefs.hpp"
#include "weights/cache.hpp"

namespace habana_mp::engine {

namespace {

// Returns the address of the tensor's storage, which is fixed while one of its tensors lives. If storages cannot be
// read, returns the address of the tensor.
const void* memory_of(PyObject* tensor) noexcept {
  const void* storage = host::can_look_inside() ? host::storage_of(tensor) : nullptr;
  return storage == nullptr ? tensor : storage;
}

// Living tensors, by their memory. A view keeps its base alive, so the base's entry also finds the view. A detached
// tensor and a view in inference mode do not keep their base alive: each of several tensors with the same memory has an
// entry of its own, and the memory is found while one of them lives. Dead entries are dropped when the table grows, or
// when a new tensor gets the memory of a dead one.
class Tensors {
 public:
  // Returns false with an exception set when memory runs out.
  bool put_in(PyObject* tensor) {
    if (size_ != 0 && slot_for(tensor, memory_of(tensor)).tensor_is(tensor)) return true;
    Owned reference(PyWeakref_NewRef(tensor, nullptr));  // first, since it may collect garbage and run other code
    if (!reference || (room_ == 0 && !drop_dead())) return false;
    const void* memory = memory_of(tensor);
    Slot& slot = slot_for(tensor, memory);
    if (slot.memory == nullptr) --room_;
    slot.memory = memory;
    slot.tensor = std::move(reference);
    return true;
  }

  [[nodiscard]] bool holds_memory_of(PyObject* tensor) const noexcept {
    if (size_ == 0) return false;
    const void* memory = memory_of(tensor);
    for (std::size_t place = place_of(memory); at(place).memory != nullptr; ++place) {
      if (at(place).memory == memory && at(place).is_in_use()) return true;
    }
    return false;
  }

  void take_out(PyObject* tensor) noexcept {
    for (std::size_t i = 0; i < size_; ++i) {
      if (slots_[i].tensor_is(tensor)) slots_[i].tensor.reset();
    }
  }

  void clear() noexcept {
    const std::unique_ptr<Slot[]> former = std::exchange(slots_, nullptr);
    size_ = room_ = 0;
  }

 private:
  struct Slot {
    const void* memory = nullptr;
    Owned tensor;  // a weak reference

    [[nodiscard]] PyObject* living() const noexcept { return tensor ? referent_of(tensor.get()) : nullptr; }
    [[nodiscard]] bool tensor_is(PyObject* other) const noexcept { return living() == other; }
    // True if the tensor lives and has this memory. Its memory may have changed, as by `known.data = other`.
    [[nodiscard]] bool is_in_use() const noexcept {
      PyObject* const known = living();
      return known != nullptr && memory_of(known) == memory;
    }
  };

  static constexpr std::size_t smallest = 64;

  [[nodiscard]] static std::size_t place_of(const void* memory) noexcept {
    return (reinterpret_cast<std::uintptr_t>(memory) >> 4U) * std::size_t{0x9E3779B97F4A7C15U} >> 20U;
  }
  [[nodiscard]] Slot& at(std::size_t place) const noexcept { return slots_[place & (size_ - 1)]; }

  // Returns the slot of this tensor with this memory, or one of the memory that is not in use, or a free one.
  [[nodiscard]] Slot& slot_for(PyObject* tensor, const void* memory) const noexcept {
    Slot* unused = nullptr;
    std::size_t place = place_of(memory);
    for (; at(place).memory != nullptr; ++place) {
      if (at(place).memory != memory) continue;
      if (at(place).tensor_is(tensor)) return at(place);
      if (unused == nullptr && !at(place).is_in_use()) unused = &at(place);
    }
    return unused != nullptr ? *unused : at(place);
  }

  // Drops dead entries and makes room for a quarter as many new tensors as are alive, so adding one takes amortized
  // constant time. Returns false with an exception set when memory runs out.
  bool drop_dead() {
    std::size_t alive = 0;
    for (std::size_t i = 0; i < size_; ++i) alive += slots_[i].is_in_use() ? 1 : 0;
    std::size_t size = smallest;
    while (size < 4 * (alive + 1)) size *= 2;
    std::unique_ptr<Slot[]> made(new (std::nothrow) Slot[size]);
    if (made == nullptr) {
      PyErr_NoMemory();
      return false;
    }
    const std::unique_ptr<Slot[]> former = std::exchange(slots_, std::move(made));
    const std::size_t former_size = std::exchange(size_, size);
    room_ = std::max(smallest / 2, alive / 4);
    for (std::size_t i = 0; i < former_size; ++i) {
      if (!former[i].is_in_use()) continue;
      std::size_t place = place_of(former[i].memory);
      while (at(place).memory != nullptr) ++place;
      at(place) = std::move(former[i]);
    }
    return true;
  }

  std::unique_ptr<Slot[]> slots_;
  std::size_t size_ = 0;
  std::size_t room_ = 0;  // number of new entries until dead ones are dropped
};

NeverDestroyed<Tensors> lowered_results;
NeverDestroyed<Tensors> conversions;

}  // namespace

bool remember_lowered(PyObject* result) {
  if (PyTuple_Check(result)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(result); ++i) {
      if (!remember_lowered(PyTuple_GET_ITEM(result, i))) return false;
    }
    return true;
  }
  return !host::is_plain_tensor(result) || host::requires_grad(result) || lowered_results->put_in(result);
}

bool was_lowered(PyObject* tensor) noexcept {
  return host::is_plain_tensor(tensor) && is_lower(host::kind_of(tensor)) && lowered_results->holds_memory_of(tensor);
}

bool may_be_lowered_in_graph(PyObject* tensor) {
  return is_lower(host::kind_of(tensor)) && host::requires_grad(tensor) && casts_are_made_here();
}

namespace {

// The memory of the last result in this thread that was computed from widened values. It is compared only.
thread_local const void* last_widened = nullptr;

}  // namespace

void note_update_of_weight(const Arguments& arguments) {
  PyObject* target = arguments.values[0];
  if (host::kind_of(target) == Kind::sequence && PySequence_Fast_GET_SIZE(target) != 0) {
    target = PySequence_Fast_GET_ITEM(target, 0);
  }
  if (!host::is_tensor_base(target)) return;
  const bool is_weight = host::is_parameter(target) || weights::is_weight_memory(target);
  if (is_weight && holds_lower_tensor(arguments)) ++lower_updates;
}

void note_data_of_weight(PyObject* weight, PyObject* value) noexcept {
  if (host::is_parameter(weight) && (memory_of(value) == last_widened || was_lowered(value))) ++lower_updates;
}

std::uint64_t lower_updates = 0;

bool remember_if_lowered(const Facts& facts, const rules::Plan& plan, const CastContext& context, PyObject* result) {
  if (context.casts == 0) return true;
  if (!is_lower(plan.to)) {
    if (facts.rule.action == Action::in_place) note_update_of_weight(facts.arguments);
    if (facts.rule.action == Action::widest && host::is_plain_tensor(result)) last_widened = memory_of(result);
    return true;
  }
  // In-place operations return an argument: a tensor of the user's, or one that is remembered already.
  PyObject* const* const end = facts.arguments.values + facts.arguments.count();
  if (result == Py_None || std::find(facts.arguments.values, end, result) != end) return true;
  const auto is_lowered = [](PyObject* value, Kind kind) { return is_lower(kind) && was_lowered(value); };
  const bool sums_lowered = plan.computed_in != plan.to && is_any_tensor(facts.arguments, is_lowered);
  if (!rules::must_cast(plan.to, facts.reading) && !sums_lowered) return true;
  if (!context.made.recorded) return remember_lowered(result);
  const RuleSet* region = thread_state.region;
  if (region == nullptr || region->after_tracked_cast == nullptr) return true;
  return static_cast<bool>(Owned(PyObject_CallOneArg(region->after_tracked_cast, result)));
}

bool remember_converted(PyObject* tensor, PyObject* result) {
  const bool is_conversion = host::kind_of(tensor) == Kind::f32 && host::is_plain_tensor(result) &&
                             is_lower(host::kind_of(result)) && !host::requires_grad(result);
  return !is_conversion || conversions->put_in(result);
}

bool was_converted(PyObject* tensor) noexcept {
  return host::is_plain_tensor(tensor) && conversions->holds_memory_of(tensor);
}

void forget_known(PyObject* tensor) noexcept {
  lowered_results->take_out(tensor);
  conversions->take_out(tensor);
}

void forget_all_known() noexcept {
  lowered_results->clear();
  conversions->clear();
}

}  // namespace habana_mp::engine
