#include "engine/observer.hpp"

#include <optional>
#include <utility>

#include "engine/originals.hpp"
#include "errors.hpp"
#include "host/modes.hpp"
#include "listeners.hpp"

namespace habana_mp::engine {

namespace {

NeverDestroyed<Owned> observing;
Answers behind;

// The call for which the observer runs.
class ObservedCall {
 public:
  virtual PyObject* make() const = 0;

  const Target& target;
  std::optional<Decision> decision;

 protected:
  ObservedCall(const Target& called, std::optional<Decision> decided) : target(called), decision(decided) {}
  ~ObservedCall() = default;
};

template <typename Make>
class ObservedCallOf final : public ObservedCall {
 public:
  ObservedCallOf(const Target& called, std::optional<Decision> decided, const Make& made)
      : ObservedCall(called, decided), make_(made) {}
  PyObject* make() const override { return make_(); }

 private:
  const Make& make_;
};

thread_local bool is_unobserved = false;

// Null outside of the observer.
thread_local ObservedCall* current_call = nullptr;

class CurrentCall {
 public:
  explicit CurrentCall(ObservedCall& call) noexcept : former_(std::exchange(current_call, &call)) {}
  ~CurrentCall() { current_call = former_; }
  CurrentCall(const CurrentCall&) = delete;
  CurrentCall& operator=(const CurrentCall&) = delete;

 private:
  ObservedCall* former_;
};

// `decision`: that of calls that are not reported.
template <typename Make>
PyObject* observed(Target& target, const Arguments& arguments, std::optional<Decision> decision, const Make& make) {
  if (is_unobserved) return call_original(target, arguments);
  const Owned observer = Owned::borrowed_or_null(observing->get());
  const bool is_users = target.kind == host::CallableKind::user_function;  // its calls go through the observer
  if (!observer || is_users || current_call != nullptr || host::is_intercepted()) return make();
  const Owned positional = positional_of(arguments);
  const Owned keywords = keywords_of(arguments);
  if (!positional || !keywords) return nullptr;
  ObservedCallOf<Make> call(target, decision, make);
  const CurrentCall block(call);
  return PyObject_CallFunction(observer.get(), "OsOO", target.object.get(), target.operation.c_str(), positional.get(),
                               keywords.get());
}

PyObject* answer_by_rule_observed(Target& target, const Rule& rule, const Arguments& arguments) {
  return observed(target, arguments, std::nullopt, [&] { return behind.by_rule(target, rule, arguments); });
}

template <auto answer, Reason reason>
PyObject* answer_observed(Target& target, const Arguments& arguments) {
  return observed(target, arguments, Decision{Precision::unchanged, reason},
                  [&] { return (behind.*answer)(target, arguments); });
}

constexpr Answers answers_observed{&answer_by_rule_observed,
                                   &answer_observed<&Answers::in_protected_region, Reason::autocast_off>,
                                   &answer_observed<&Answers::under_disable_casts, Reason::disabled>,
                                   &answer_observed<&Answers::unlisted, Reason::unlisted>};

}  // namespace

void set_answers_behind_observer(const Answers& wanted) noexcept {
  behind = wanted;
  answers = *observing ? answers_observed : wanted;
}

Owned set_observer(PyObject* observer) noexcept {
  Owned former = std::exchange(*observing, Owned::borrowed_or_null(observer));
  set_answers_behind_observer(behind);
  set_listening(Listener::observer, observer != nullptr);
  return former;
}

void note_decision(const Target& target, Decision decision) noexcept {
  if (current_call != nullptr && &current_call->target == &target) current_call->decision = decision;
}

UnobservedBlock::UnobservedBlock() noexcept : former_(std::exchange(is_unobserved, true)) {}
UnobservedBlock::~UnobservedBlock() { is_unobserved = former_; }

std::optional<Decision> decision_of_observed_call() noexcept {
  return current_call == nullptr ? std::nullopt : current_call->decision;
}

PyObject* make_observed_call() {
  if (current_call != nullptr) return current_call->make();
  PyErr_SetString(PyExc_RuntimeError, "no observed call runs in this thread");
  return nullptr;
}

}  // namespace habana_mp::engine
