#include "engine/observer.hpp"

#include <utility>

#include "errors.hpp"
#include "host/modes.hpp"

namespace habana_mp::engine {

namespace {

NeverDestroyed<Owned> observing;
Answers behind;

// The call for which the observer runs.
class ObservedCall {
 public:
  virtual PyObject* make() const = 0;

 protected:
  ObservedCall() = default;
  ~ObservedCall() = default;
};

template <typename Make>
class ObservedCallOf final : public ObservedCall {
 public:
  explicit ObservedCallOf(const Make& made) : make_(made) {}
  PyObject* make() const override { return make_(); }

 private:
  const Make& make_;
};

// Null outside of the observer.
thread_local const ObservedCall* current_call = nullptr;

class CurrentCall {
 public:
  explicit CurrentCall(const ObservedCall& call) noexcept : former_(std::exchange(current_call, &call)) {}
  ~CurrentCall() { current_call = former_; }
  CurrentCall(const CurrentCall&) = delete;
  CurrentCall& operator=(const CurrentCall&) = delete;

 private:
  const ObservedCall* former_;
};

template <typename Make>
PyObject* observed(Target& target, const Arguments& arguments, const Make& make) {
  const Owned observer = Owned::borrowed_or_null(observing->get());
  const bool is_users = target.kind == host::CallableKind::user_function;  // its calls go through the observer
  if (!observer || is_users || current_call != nullptr || host::is_intercepted()) return make();
  const Owned positional = positional_of(arguments);
  const Owned keywords = keywords_of(arguments);
  if (!positional || !keywords) return nullptr;
  const ObservedCallOf<Make> call(make);
  const CurrentCall block(call);
  return PyObject_CallFunction(observer.get(), "OsOO", target.object.get(), target.operation.c_str(), positional.get(),
                               keywords.get());
}

PyObject* answer_by_rule_observed(Target& target, const Rule& rule, const Arguments& arguments) {
  return observed(target, arguments, [&] { return behind.by_rule(target, rule, arguments); });
}

template <auto answer>
PyObject* answer_observed(Target& target, const Arguments& arguments) {
  return observed(target, arguments, [&] { return (behind.*answer)(target, arguments); });
}

constexpr Answers answers_observed{&answer_by_rule_observed, &answer_observed<&Answers::in_protected_region>,
                                   &answer_observed<&Answers::under_disable_casts>,
                                   &answer_observed<&Answers::unlisted>};

}  // namespace

void set_answers_behind_observer(const Answers& wanted) noexcept {
  behind = wanted;
  answers = *observing ? answers_observed : wanted;
}

void set_observer(PyObject* observer) noexcept {
  const Owned former = std::exchange(*observing, Owned::borrowed_or_null(observer));
  set_answers_behind_observer(behind);
}

PyObject* make_observed_call() {
  if (current_call != nullptr) return current_call->make();
  PyErr_SetString(PyExc_RuntimeError, "no observed call runs in this thread");
  return nullptr;
}

}  // namespace habana_mp::engine
