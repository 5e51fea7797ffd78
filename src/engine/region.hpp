// Regions (hmp.autocast): code in which other lists apply than those of convert. A thread's state contains the lists
// that apply.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/state.hpp"
#include "engine/target.hpp"
#include "errors.hpp"

namespace habana_mp::engine {

// The rules of a region's lists. Sets are shared, and neither changed nor freed: a call may be running in another
// thread, and a checkpointed block may run again. (The content of the set for modules, below, is exchanged by
// `convert`.)
struct RuleSet {
  // The device whose tensors are cast. torch distinguishes all devices; this type distinguishes the CPU and the
  // accelerator.
  enum class Device : std::uint8_t { cpu, accelerator, any };

  std::array<const Rule*, target_capacity> rules;  // by the target's index
  Device device = Device::cpu;
  PyObject* after_tracked_cast = nullptr;  // called with the result of a lowered call that autograd tracks, or null
  std::string name;                        // for the log
  bool casts = true;                       // false: these are rules of opt_level="O0"

  // For the rules in some module (modules.hpp): the set whose lists they change, or null for convert's.
  bool is_in_modules = false;
  const RuleSet* base = nullptr;

  std::uint32_t number = 0;  // from 1 on; never reused
  // The number of the region dtype by which torch.compile sees it, as it sees those that decide the same by other
  // lines; 0 if there is none.
  std::uint16_t mark = 0;
  std::uint32_t installation = 0;  // the installation under which its targets were last patched
  struct Covered {
    Target* target;
    const Rule* unlisted;
  };
  std::vector<Covered> covered;
};

// Returns the set with this content; makes and numbers it if it is new. Null with a Python exception set if there are
// too many sets for regions.
RuleSet* intern_rule_set(RuleSet&& content);
RuleSet* rule_set(std::uint64_t number) noexcept;  // null if there is no such set

// Returns the set that stands for convert's lists if they apply within modules only (modules.hpp). There is one such
// set, whose content is exchanged. Null with a Python exception set if there are too many sets.
RuleSet* rule_set_of_modules();
// Returns that set if it exists, else null.
RuleSet* known_rule_set_of_modules() noexcept;
// True if `set` is that set or was made from it. In this case the user has opened no region.
bool is_of_modules(const RuleSet* set) noexcept;

// Takes the marks from the sets for rules in modules, for others. Called when the configuration changes and compiled
// code is dropped.
void free_marks_in_modules() noexcept;
// Returns the set of the innermost region. For the rules in a module, returns the set whose lists they change.
inline const RuleSet* base_of(const RuleSet* set) noexcept {
  return set != nullptr && set->is_in_modules ? set->base : set;
}

// Returns the number of the region dtype (RegionDevice, below) by which torch.compile sees that the current lists are
// suspended. Nullopt with a Python exception set if no number is left.
std::optional<std::uint64_t> number_of_suspension(bool until_tracking = false);

CastState current_state() noexcept;
// Sets the state and returns the former one. The log gets a line when casts are left or entered again.
CastState exchange_state(const CastState& state) noexcept;
// Returns the result of `call`, made in this state, and restores the former state.
template <typename Call>
PyObject* in_state(const CastState& wanted, const Call& call) {
  const CastState before = exchange_state(wanted);
  PyObject* result = call();
  const HeldError held;
  exchange_state(before);
  return result;
}

// Convert a state to one number, for Python, and back.
std::uint64_t pack(const CastState& state) noexcept;
CastState unpack(std::uint64_t packed) noexcept;

// Begin a region in this thread: one with the lists of `set`, or without casts if `set` is null. `owner` identifies the
// code that will end the region. The end of a region restores the state from before the region. If a region that began
// later is still open then (tasks of asyncio take turns), the state is not restored yet. It is restored at the end of
// the region that began next after it.
//
// These functions throw std::bad_alloc when memory runs out, and change nothing. `prepare_region` allocates the memory
// of the next region.
void prepare_region();
// `set`: null for a region without casts; then `inside` is the name of the function that it belongs to, which the owner
// holds, or null for a block of the user.
void enter_region(const void* owner, const RuleSet* set, PyObject* inside = nullptr);
// Returns the name of the function of torch or of a library in which casts are disabled; null if a block of the user
// disables them.
PyObject* function_without_casts() noexcept;
void enter_state(const void* owner, const CastState& state);
// Ends the region of this owner. False if the owner has begun no region.
bool leave_region(const void* owner) noexcept;
bool has_begun_region(const void* owner) noexcept;

// Makes regions visible to torch.compile. Dynamo guards on the autocast dtypes of all device types for which autocast
// is on. So autocast is on for a device type for which no release of torch has a backend. Its dtype, one of `dtypes`,
// represents the number of the region. The first dtype, torch's own default, means that there is no region. In compiled
// code a region is torch.autocast for this device type with its dtype and enabled=False: Dynamo can leave that and
// enter it again around a graph break.
struct RegionDevice {
  PyObject* device_type = nullptr;
  std::int8_t device = -1;                   // its c10::DeviceType, or -1
  PyObject* dtypes = nullptr;                // a tuple
  PyObject* set_autocast_enabled = nullptr;  // torch functions
  PyObject* set_autocast_dtype = nullptr;
};
// Only the first call in a process has an effect. Its objects are never freed.
void set_mark(const RegionDevice& region_device);
bool is_mark(PyObject* device_type) noexcept;
// Called after such a region of torch.autocast has set the dtype. Sets the state that this dtype represents.
void region_dtype_was_set(PyObject* dtype) noexcept;

}  // namespace habana_mp::engine
