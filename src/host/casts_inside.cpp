#include "host/casts_inside.hpp"

#include <utility>

#include "errors.hpp"
#include "host/inside.hpp"
#include "host/ledger.hpp"
#include "host/symbols.hpp"
#include "host/thread_flag.hpp"

namespace habana_mp::host {

namespace {

Assumption casts_inside{
    "torch.autocast-functions",
    "functions of torch's libraries switch torch.autocast for the CPU, its dtype and its cache in a thread",
    "what they give back, by torch's headers in releases that are not known; what they say, against torch's Python "
    "functions; and what they set is what they read",
    "the core makes all casts itself; where gradients are recorded a call takes longer"};

using ScalarType = std::int8_t;
constexpr std::int8_t cpu = 0;
// Values of c10::ScalarType, which are part of torch's serialization format.
constexpr ScalarType half = 5;
constexpr ScalarType bfloat16 = 15;

// Functions of at::autocast.
struct Functions {
  AutocastDtype dtype;
  bool (*is_cache_enabled)() = nullptr;
  void (*set_cache_enabled)(bool) = nullptr;

  [[nodiscard]] bool are_complete() const {
    return dtype.is_known() && is_cache_enabled != nullptr && set_cache_enabled != nullptr;
  }
};
Functions functions;
DeviceFlag enabled;

#if defined(__GNUC__)
__attribute__((tls_model("initial-exec")))
#endif
constinit thread_local bool is_at_work = false;

// True if torch's Python functions return the same values as these functions.
bool agree_with_python() {
  const Owned list = made_by(
      "import torch\n"
      "def make():\n"
      "    return [torch.is_autocast_enabled('cpu'), torch.get_autocast_dtype('cpu'),\n"
      "            torch.is_autocast_cache_enabled()]\n");
  if (!list) return false;
  const ScalarType dtype = functions.dtype.ask(cpu);
  PyObject* const seen = PyList_GET_ITEM(list.get(), 1);
  return enabled.is_on() == (PyList_GET_ITEM(list.get(), 0) == Py_True) &&
         functions.is_cache_enabled() == (PyList_GET_ITEM(list.get(), 2) == Py_True) &&
         (dtype == bfloat16) == (seen == api.bfloat16) && (dtype == half) == (seen == api.float16);
}

// True if each getter returns what its setter set.
bool are_set() {
  const ScalarType dtype = functions.dtype.ask(cpu);
  const ScalarType other = dtype == half ? bfloat16 : half;
  functions.dtype.set(cpu, other);
  const bool sets_dtype = functions.dtype.ask(cpu) == other;
  functions.dtype.set(cpu, dtype);
  const bool cache = functions.is_cache_enabled();
  functions.set_cache_enabled(!cache);
  const bool sets_cache = functions.is_cache_enabled() != cache;
  functions.set_cache_enabled(cache);
  return sets_dtype && sets_cache && functions.dtype.ask(cpu) == dtype && functions.is_cache_enabled() == cache;
}

}  // namespace

bool detail::autocast_was_found = false;

void bind_casts_inside() {
  constexpr const char* header = "ATen/autocast_mode.h";
  functions.dtype = autocast_dtype();
  find({"libtorch_cpu.so", "_ZN2at8autocast25is_autocast_cache_enabledEv", header, "bool is_autocast_cache_enabled();"},
       functions.is_cache_enabled);
  find({"libtorch_cpu.so", "_ZN2at8autocast26set_autocast_cache_enabledEb", header,
        "void set_autocast_cache_enabled(bool enabled);"},
       functions.set_cache_enabled);
  enabled = autocast_flag(cpu);
  detail::autocast_was_found = casts_inside.holds_by([] {
    return can_look_inside() && enabled.is_known() && functions.are_complete() && agree_with_python() && are_set();
  });
  clear_error();
}

bool may_cast_inside() noexcept { return detail::autocast_was_found && autocast_is_off(); }

bool autocast_is_off() noexcept { return !enabled.is_on(); }

CastsInside::CastsInside(Kind to) noexcept
    : cache_before_(functions.is_cache_enabled()), dtype_before_(functions.dtype.ask(cpu)) {
  const ScalarType wanted = to == Kind::bf16 ? bfloat16 : half;
  dtype_changed_ = dtype_before_ != wanted;
  if (dtype_changed_) functions.dtype.set(cpu, wanted);
  // The autocast cache would keep the cast of a leaf input even after the leaf has changed.
  if (cache_before_) functions.set_cache_enabled(false);
  is_at_work = true;
  enabled.turn(true);
}

CastsInside::~CastsInside() {
  is_at_work = false;
  enabled.turn(false);
  if (cache_before_) functions.set_cache_enabled(true);
  if (dtype_changed_) functions.dtype.set(cpu, dtype_before_);
}

NoCastsInside::NoCastsInside() noexcept : was_on_(std::exchange(is_at_work, false)) {
  if (was_on_) enabled.turn(false);
}

NoCastsInside::~NoCastsInside() {
  is_at_work = was_on_;
  if (was_on_) enabled.turn(true);
}

}  // namespace habana_mp::host
