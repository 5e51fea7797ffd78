// Regions (hmp.autocast): in one, other lists speak than convert's. Which lists those are is a part of a thread's
// state.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/state.hpp"
#include "engine/target.hpp"

namespace habana_mp::engine {

// What the lists of a region say. Sets are shared, and never freed: a call may be under way in another thread.
struct RuleSet {
  // Whose tensors are cast: torch tells each device from every other; here there is the CPU and the accelerator.
  enum class Device : std::uint8_t { cpu, accelerator, any };

  std::array<const Rule*, target_capacity> rules;  // by the target's index
  Device device = Device::cpu;
  PyObject* after_recorded_cast = nullptr;  // called with the result of a lowered call that autograd records, or null
  std::string name;                         // for the log

  std::uint16_t number = 0;        // 1 for the first set
  std::uint32_t installation = 0;  // the one that its targets were last put in under
  struct Covered {
    Target* target;
    const Rule* unlisted;
  };
  std::vector<Covered> covered;
};

// The set with this content, made and numbered where there is none. Null with a Python exception set where there are
// too many.
RuleSet* intern_rule_set(RuleSet&& content);
RuleSet* rule_set(std::uint64_t number) noexcept;  // null where there is none

// The set that stands for convert's lists where these speak within modules only (modules.hpp); there is one, whose
// content is exchanged. Null with a Python exception set where there are too many sets.
RuleSet* rule_set_of_modules();
// That set, if it was ever asked for; else null.
RuleSet* known_rule_set_of_modules() noexcept;
// Is it this one? Then no region of a user's is open.
bool is_of_modules(const RuleSet* set) noexcept;

// The number by which the mark of regions (RegionMark, below) tells torch.compile that the lists that speak here are
// silent. None with a Python exception set where there are no numbers left.
std::optional<std::uint64_t> number_of_silence(bool until_recording = false);
// In this thread the lists fall silent; how many regions are open. None with a Python exception set, and nothing done,
// where there is no number for it. In the end the lists speak again, in regions too that were entered meanwhile.
std::optional<std::size_t> begin_silence();
void end_silence(std::size_t regions_before) noexcept;

// Everything that decides in a thread whether and by what rules there are casts.
struct CastState {
  bool disabled = false;
  bool by_region = false;  // did a region of torch.autocast disable them?
  bool silent = false;     // are the lists?
  const RuleSet* region = nullptr;
  bool silent_until_recording = false;

  bool operator==(const CastState&) const = default;
};
CastState current_state() noexcept;
// The log has a line for casts that are left or entered again, where that `is_told`.
CastState exchange_state(const CastState& state, bool is_told = true) noexcept;

// A state as one number, for Python.
std::uint64_t pack(const CastState& state) noexcept;
CastState unpack(std::uint64_t packed) noexcept;

// A region begins in this thread, that of `set`, or with null one without casts; `owner` is whoever will end it. What
// was in force before is put back when it ends; where others that began later are still open (tasks of asyncio take
// turns), when the one that began next ends.
//
// Where there is no memory for it they throw std::bad_alloc, and nothing has changed. After `prepare_region` the next
// one has its memory.
void prepare_region();
void enter_region(const void* owner, const RuleSet* set);
void enter_state(const void* owner, const CastState& state);
// False where this owner began none.
bool leave_region(const void* owner) noexcept;
bool has_begun_region(const void* owner) noexcept;

// How torch.compile knows of regions: Dynamo guards on the autocast dtypes of all device types for which autocast is
// on. So autocast is on for one that no torch has a backend for, and its dtype, one of `dtypes`, tells the region's
// number; the first of these, torch's own, goes with no region. In compiled code a region is torch.autocast for this
// type with its dtype, not enabled: Dynamo knows how to leave that and enter it again around a graph break.
struct RegionMark {
  PyObject* device_type = nullptr;
  std::int8_t device = -1;                   // its c10::DeviceType, or -1
  PyObject* dtypes = nullptr;                // a tuple
  PyObject* set_autocast_enabled = nullptr;  // torch's functions
  PyObject* set_autocast_dtype = nullptr;
};
// Once for the process; all of it is kept.
void set_mark(const RegionMark& mark);
bool is_mark(PyObject* device_type) noexcept;
// The mark's dtype was set from outside, by such a region.
void mark_was_set(PyObject* dtype) noexcept;

}  // namespace habana_mp::engine
