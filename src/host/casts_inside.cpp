#include "host/casts_inside.hpp"

#include <bit>
#include <utility>

#include "errors.hpp"
#include "host/inside.hpp"
#include "host/ledger.hpp"
#include "host/modes.hpp"

namespace habana_mp::host {

namespace {

Assumption casts_inside{
    "torch.autocast-functions",
    "functions of torch's libraries switch torch.autocast for the CPU, its dtype and its cache in a thread",
    "torch's headers declare them",
    "the core makes all casts itself; where gradients are recorded a call takes longer"};

using ScalarType = std::int8_t;
constexpr std::int8_t cpu = 0;
// Values of c10::ScalarType, which are part of torch's serialization format.
constexpr ScalarType half = 5;
constexpr ScalarType bfloat16 = 15;

AutocastFunctions functions;
NeverDestroyed<Owned> autocast_of_accelerator;

#if defined(__GNUC__)
__attribute__((tls_model("initial-exec")))
#endif
constinit thread_local const Autocast* at_work = nullptr;

}  // namespace

Autocast autocast_on_cpu;
Autocast autocast_on_accelerator;

void bind_casts_inside() {
  functions = autocast_functions();
  autocast_on_cpu.enabled = autocast_flag(cpu);
  autocast_on_cpu.is_usable = casts_inside.holds_by(
      [] { return can_look_inside() && autocast_on_cpu.enabled.is_known() && functions.are_known(); });
  clear_error();
}

void set_autocast_of_accelerator(PyObject* function) noexcept {
  *autocast_of_accelerator = Owned::borrowed_or_null(function);
}

// Sets the keys of tensors on the accelerator from one of them. A dense tensor has the keys of one on the CPU, but for
// those of its device and of the device's autocast. Returns false for a tensor of another kind.
static bool learn_keys(PyObject* tensor) noexcept {
  const std::uint64_t keys = keys_of(tensor);
  for (const std::uint64_t like : {inside.plain, inside.least}) {
    const std::uint64_t of_cpu = like & ~keys;
    const std::uint64_t of_device = keys & ~like;
    if (std::popcount(of_cpu) != 2 || std::popcount(of_device) != 2) continue;
    inside.accelerator = (inside.plain & ~of_cpu) | of_device;
    inside.least_accelerator = (inside.least & ~of_cpu) | of_device;
    return true;
  }
  return false;
}

// Asks whether torch.autocast casts tensors like this one, which is not on the CPU. After an answer the function is not
// asked again: a process has one accelerator.
static const Autocast* ask_for_accelerator(PyObject* tensor) {
  const Owned function = Owned::borrowed(autocast_of_accelerator->get());
  const Owned answer(PyObject_CallOneArg(function.get(), tensor));
  const long number = answer && answer.get() != Py_None ? PyLong_AsLong(answer.get()) : -1;
  const bool failed = PyErr_Occurred() != nullptr;
  clear_error();
  if (failed || answer.get() == Py_None || !learn_keys(tensor)) return nullptr;
  autocast_of_accelerator->reset();
  if (number < 0) return nullptr;
  const auto type = static_cast<std::int8_t>(number);
  const ThreadFlag flag = autocast_flag(type);
  autocast_on_accelerator = {flag.is_known(), type, flag};
  return autocast_on_accelerator.is_usable ? &autocast_on_accelerator : nullptr;
}

const Autocast* autocast_for(PyObject* tensor) {
  if (!autocast_on_cpu.is_usable || !is_plain_tensor(tensor)) return nullptr;
  if (keys_of(tensor) == inside.plain) [[likely]]
    return &autocast_on_cpu;
  if (is_plain_on_accelerator(tensor)) return autocast_on_accelerator.is_usable ? &autocast_on_accelerator : nullptr;
  if (!*autocast_of_accelerator || !is_off_cpu(tensor)) return nullptr;
  return ask_for_accelerator(tensor);
}

bool may_cast_inside(const Autocast& autocast) noexcept { return autocast.is_usable && !autocast.enabled.is_on(); }

bool autocast_is_off() noexcept { return !autocast_on_cpu.enabled.is_on(true); }

CastsInside::CastsInside(Kind to, const Autocast& autocast) noexcept
    : autocast_(autocast),
      cache_before_(functions.is_cache_enabled()),
      dtype_before_(functions.dtype(autocast.device_type)) {
  const ScalarType wanted = to == Kind::bf16 ? bfloat16 : half;
  dtype_changed_ = dtype_before_ != wanted;
  if (dtype_changed_) functions.set_dtype(autocast.device_type, wanted);
  // The autocast cache would keep the cast of a leaf input even after the leaf has changed.
  if (cache_before_) functions.set_cache_enabled(false);
  at_work = &autocast;
  autocast.enabled.turn(true);
}

CastsInside::~CastsInside() {
  at_work = nullptr;
  autocast_.enabled.turn(false);
  if (cache_before_) functions.set_cache_enabled(true);
  if (dtype_changed_) functions.set_dtype(autocast_.device_type, dtype_before_);
}

NoCastsInside::NoCastsInside() noexcept : was_on_(std::exchange(at_work, nullptr)) {
  if (was_on_ != nullptr) was_on_->enabled.turn(false);
}

NoCastsInside::~NoCastsInside() {
  at_work = was_on_;
  if (was_on_ != nullptr) was_on_->enabled.turn(true);
}

}  // namespace habana_mp::host
