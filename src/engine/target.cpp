#include "engine/target.hpp"

#include <algorithm>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/known_tensors.hpp"
#include "engine/modules.hpp"
#include "host/frames.hpp"
#include "owned.hpp"

namespace habana_mp::engine {

std::array<Target*, target_capacity> targets{};
std::size_t target_count = 0;

namespace {
NeverDestroyed<std::unordered_map<PyObject*, Target*>> by_object;
// Those of Python functions. One without an object has the counts of functions that no longer exist.
NeverDestroyed<std::vector<Target*>> functions;

// By their line. The elements never move; a few dozen are enough for every policy.
NeverDestroyed<std::unordered_map<std::uint32_t, std::deque<Rule>>> rules;

std::unique_ptr<Target> make(PyObject* object, PyObject* shown, const std::string& operation) {
  const Owned text(PyObject_Repr(shown));
  if (!text) return nullptr;
  auto target = std::make_unique<Target>();
  target->object = Owned::borrowed(object);
  target->called = Owned::borrowed(object);
  target->operation = operation;
  target->representation = host::bytes_of(text.get());
  return target;
}

// Calls `use` with each decision that was counted, and its count.
template <typename Use>
void for_each_count(Target& target, const Use& use) {
  for (std::size_t precision = 0; precision < target.counts.size(); ++precision) {
    for (std::size_t reason = 0; reason < target.counts[precision].size(); ++reason) {
      const auto why = static_cast<Reason>(reason);
      const Decision decision{static_cast<Precision>(precision), why, rules::has_line(why) ? target.line : 0};
      use(decision, target.counts[precision][reason]);
    }
  }
  for (auto& [decision, count] : target.other_counts) use(decision, count);
}

}  // namespace

const Rule* intern(const Rule& rule) {
  std::deque<Rule>& of_line = (*rules)[rule.line];
  for (const Rule& known : of_line) {
    if (known == rule) return &known;
  }
  return &of_line.emplace_back(rule);
}

Rule without_lowering(const Rule& listed, const Rule& unlisted) {
  const bool lowers = listed.action == Action::precision && is_lower(listed.to);
  const Rule& rule = lowers ? unlisted : listed;
  if (rule.action == Action::none) return no_rule;
  if (lowers && listed.is_product) {
    Rule counted = rule;
    counted.reason = rules::Reason::outside;
    return counted;
  }
  Rule made;
  made.rule_for_lowered = intern(rule);
  return made;
}

Count& other_count(Target& target, Decision decision) {
  if (target.line == 0 && decision.line != 0) {
    target.line = decision.line;
    return count_of(target, decision);
  }
  const auto found = std::ranges::find(target.other_counts, decision, [](const auto& one) { return one.first; });
  return found != target.other_counts.end() ? found->second
                                            : target.other_counts.emplace_back(decision, Count{}).second;
}

Target* find_target(PyObject* object) noexcept {
  const auto found = by_object->find(object);
  return found == by_object->end() ? nullptr : found->second;
}

void set_equivalent_function(PyObject* method, PyObject* function) noexcept {
  Target* const target = find_target(method);
  if (target == nullptr || target->kind != host::CallableKind::method || target->equivalent) return;
  constexpr int convention = METH_VARARGS | METH_KEYWORDS | METH_FASTCALL;
  if (!PyCFunction_CheckExact(function) ||
      (PyCFunction_GET_FLAGS(function) & convention) != (METH_VARARGS | METH_KEYWORDS)) {
    return;
  }
  target->equivalent = Owned::borrowed(function);
}

Target* target_for(PyObject* object, host::CallableKind kind, const char* operation, PyObject* shown) {
  if (Target* known = find_target(object)) return known;
  if (target_count == target_capacity) {
    PyErr_Format(PyExc_RuntimeError, "habana_mp: more than %zu functions are covered", target_capacity);
    return nullptr;
  }
  std::unique_ptr<Target> target = make(object, shown, operation);
  if (target == nullptr) return nullptr;
  target->kind = kind;
  target->index = target_count;
  by_object->emplace(object, target.get());
  return targets[target_count++] = target.release();
}

Target* make_function_target(PyObject* function, PyObject* shown, const std::string& operation) {
  std::unique_ptr<Target> target = make(function, shown, operation);
  if (target == nullptr) return nullptr;
  target->kind = host::CallableKind::user_function;
  functions->push_back(target.get());
  return target.release();
}

void drop_function_target(Target* target) noexcept {
  // Released last, since that may run other code.
  const Owned called = std::move(target->called);
  const Owned object = std::move(target->object);
  const auto kept = std::ranges::find_if(*functions, [=](const Target* other) {
    return other != target && !other->object && other->operation == target->operation;
  });
  if (kept == functions->end()) return;
  try {
    for_each_count(*target, [&](Decision decision, const Count& count) { count_of(**kept, decision) += count; });
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): without memory, counts of other dtypes are lost
  }
  std::erase(*functions, target);
  delete target;
}

std::vector<Counted> counts() {
  std::vector<Counted> all;
  const auto add = [&all](Target& target) {
    for_each_count(target, [&](Decision decision, const Count& count) {
      if (count.calls != 0) all.push_back({target.operation, target.representation, decision, count});
    });
  };
  for (std::size_t i = 0; i < target_count; ++i) add(*targets[i]);
  for (Target* target : *functions) add(*target);
  return all;
}

void reset_counts() noexcept {
  const auto reset = [](Target& target) {
    target.counts = {};
    target.other_counts.clear();
    target.line = 0;
  };
  for (std::size_t i = 0; i < target_count; ++i) reset(*targets[i]);
  for (Target* target : *functions) reset(*target);
  model_results = {};
  lower_updates = 0;
}

}  // namespace habana_mp::engine
