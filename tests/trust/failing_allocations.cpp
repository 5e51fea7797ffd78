// Preloaded, it lets allocations fail: the one that is chosen by its number, of those that this package's core makes,
// or of those that CPython makes.
//
// An allocation of the core is one that its library calls for, by itself or through the standard library. CPython's
// allocations count where neither torch nor another library runs inside of the core: what these do without memory is
// their affair. All of it holds for the thread that has called `fail_allocations`.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <unwind.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>

extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* block, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
}

namespace {

enum class Kind : int { none, core, python };

// The owner of the code at an address.
enum class Owner : std::uint8_t { unknown, core, standard, python, other };

struct Segment {
  std::uintptr_t begin;
  std::uintptr_t end;
  Owner owner;
};
std::array<Segment, 8192> segments;
std::size_t segment_count = 0;

// The request of the running attempt, and its outcome so far.
struct State {
  Kind kind = Kind::none;
  std::uint64_t count = 0;
  std::uint64_t first = 0;  // fails; 0: none does
  std::uint64_t most = 1;   // so many fail
  std::uint64_t failed = 0;
  bool records = false;
  bool core_was_inside = false;              // when the allocation failed
  bool interpreter_was_inside_core = false;  // CPython ran code that the core had called
};
State state;

__attribute__((tls_model("initial-exec"))) thread_local bool is_armed = false;

constexpr std::size_t most_keys = std::size_t{1} << 22;
std::uint64_t* keys = nullptr;

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

Owner owner_of(std::string_view path) {
  const std::string_view file = path.substr(path.rfind('/') + 1);
  if (contains(file, "_core.") && file.starts_with("_core")) return Owner::core;
  if (path.empty() || file.starts_with("libpython") || file.starts_with("python")) return Owner::python;
  for (const std::string_view standard : {"libstdc++", "libc.", "libc-", "libgcc_s", "ld-", "libm."}) {
    if (file.starts_with(standard)) return Owner::standard;
  }
  return Owner::other;
}

int add_library(dl_phdr_info* info, std::size_t, void*) {
  Owner owner = owner_of(info->dlpi_name);
  const auto own = reinterpret_cast<std::uintptr_t>(&add_library);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD || (header.p_flags & PF_X) == 0) continue;
    const std::uintptr_t begin = info->dlpi_addr + header.p_vaddr;
    if (own >= begin && own < begin + header.p_memsz) owner = Owner::standard;
  }
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD || (header.p_flags & PF_X) == 0 || segment_count == segments.size()) continue;
    const std::uintptr_t begin = info->dlpi_addr + header.p_vaddr;
    segments[segment_count++] = {begin, begin + header.p_memsz, owner};
  }
  return 0;
}

void find_libraries() {
  segment_count = 0;
  dl_iterate_phdr(&add_library, nullptr);
  std::sort(segments.begin(), segments.begin() + static_cast<std::ptrdiff_t>(segment_count),
            [](const Segment& a, const Segment& b) { return a.begin < b.begin; });
}

Owner owner_of(std::uintptr_t address) {
  const auto end = segments.begin() + static_cast<std::ptrdiff_t>(segment_count);
  const auto after = std::upper_bound(segments.begin(), end, address,
                                      [](std::uintptr_t value, const Segment& one) { return value < one.begin; });
  if (after == segments.begin()) return Owner::unknown;
  const Segment& segment = *(after - 1);
  return address < segment.end ? segment.owner : Owner::unknown;
}

// Goes through the native stack, the innermost frame first, until `visit` of an address says no.
template <typename Visit>
void walk_stack(Visit visit) {
  struct Walk {
    Visit* visit;
    int left;
  };
  Walk walk{&visit, 400};
  _Unwind_Backtrace(
      [](_Unwind_Context* context, void* data) {
        Walk& going = *static_cast<Walk*>(data);
        const bool goes_on = --going.left > 0 && (*going.visit)(static_cast<std::uintptr_t>(_Unwind_GetIP(context)));
        return goes_on ? _URC_NO_REASON : _URC_END_OF_STACK;
      },
      &walk);
}

// True if the core asked for this memory, directly or through the standard library.
bool is_of_core(std::uintptr_t caller) {
  const Owner direct = owner_of(caller);
  if (direct != Owner::standard) return direct == Owner::core;
  Owner found = Owner::standard;
  int left = 12;
  walk_stack([&](std::uintptr_t address) {
    found = owner_of(address);
    return found == Owner::standard && --left > 0;
  });
  return found == Owner::core;
}

// True if code of this package or of a script runs innermost. Frames of CPython and of the standard library count as
// their callers.
bool is_for_python() {
  Owner found = Owner::python;
  walk_stack([&](std::uintptr_t address) {
    const Owner owner = owner_of(address);
    if (owner == Owner::core || owner == Owner::other) found = owner;
    return owner != Owner::core && owner != Owner::other;
  });
  return found != Owner::other;
}

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000
// CPython's own, as far as it is read here.
struct InterpreterFrame {
  void* function;
  void* globals;
  void* builtins;
  void* locals;
  void* code;
  void* frame;
  InterpreterFrame* previous;
  void* instruction;
};
std::uint64_t hash_of_python() {
  const PyThreadState* thread = _PyThreadState_UncheckedGet();
  if (thread == nullptr || thread->cframe == nullptr) return 0;
  std::uint64_t hash = 0;
  const auto* frame = reinterpret_cast<const InterpreterFrame*>(thread->cframe->current_frame);
  for (int depth = 0; frame != nullptr && depth < 3; ++depth, frame = frame->previous) {
    hash = hash * 1099511628211U + reinterpret_cast<std::uintptr_t>(frame->code);
    hash = hash * 1099511628211U + reinterpret_cast<std::uintptr_t>(frame->instruction);
  }
  return hash;
}
#else
std::uint64_t hash_of_python() { return 0; }
#endif

// Returns a key that distinguishes the places in the code that allocate.
std::uint64_t key_of_place() {
  std::uint64_t hash = state.kind == Kind::python ? hash_of_python() : 0;
  int left = state.kind == Kind::python ? 14 : 24;
  walk_stack([&](std::uintptr_t address) {
    hash = (hash ^ address) * 1099511628211U;
    return --left > 0;
  });
  return hash;
}

std::string_view name_of_function(std::uintptr_t address) {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(address), &info) == 0 || info.dli_sname == nullptr) return {};
  return info.dli_sname;
}

// Counts this allocation, and returns whether it is to fail.
bool is_chosen() {
  const std::uint64_t number = ++state.count;
  if (state.records && number <= most_keys) keys[number - 1] = key_of_place();
  if (state.first == 0 || number < state.first || state.failed >= state.most) return false;
  if (state.kind == Kind::python && !is_for_python()) return false;
  ++state.failed;
  walk_stack([](std::uintptr_t address) {
    state.core_was_inside = state.core_was_inside || owner_of(address) == Owner::core;
    if (!state.core_was_inside && name_of_function(address) == "_PyEval_EvalFrameDefault") {
      state.interpreter_was_inside_core = true;
    }
    return !state.core_was_inside;
  });
  if (std::getenv("SHOW_FAILED_ALLOCATION") != nullptr) {
    std::array<void*, 48> frames;
    backtrace_symbols_fd(frames.data(), backtrace(frames.data(), frames.size()), 2);
  }
  return true;
}

bool core_fails(void* caller) {
  if (!is_armed || state.kind != Kind::core) return false;
  is_armed = false;
  const bool fails = is_of_core(reinterpret_cast<std::uintptr_t>(caller)) && is_chosen();
  is_armed = true;
  return fails;
}

bool python_fails() {
  if (!is_armed || state.kind != Kind::python) return false;
  is_armed = false;
  const bool fails = is_chosen();
  is_armed = true;
  return fails;
}

// ---- CPython's allocators ------------------------------------------------------------------------------------------

constexpr std::array domains = {PYMEM_DOMAIN_RAW, PYMEM_DOMAIN_MEM, PYMEM_DOMAIN_OBJ};
std::array<PyMemAllocatorEx, domains.size()> originals;

void* python_malloc(void* context, std::size_t size) {
  const auto& original = *static_cast<PyMemAllocatorEx*>(context);
  return python_fails() ? nullptr : original.malloc(original.ctx, size);
}
void* python_calloc(void* context, std::size_t count, std::size_t size) {
  const auto& original = *static_cast<PyMemAllocatorEx*>(context);
  return python_fails() ? nullptr : original.calloc(original.ctx, count, size);
}
void* python_realloc(void* context, void* block, std::size_t size) {
  const auto& original = *static_cast<PyMemAllocatorEx*>(context);
  return python_fails() ? nullptr : original.realloc(original.ctx, block, size);
}
void python_free(void* context, void* block) {
  const auto& original = *static_cast<PyMemAllocatorEx*>(context);
  original.free(original.ctx, block);
}

void watch_python() {
  for (std::size_t i = 0; i < domains.size(); ++i) {
    PyMem_GetAllocator(domains[i], &originals[i]);
    PyMemAllocatorEx watched{&originals[i], python_malloc, python_calloc, python_realloc, python_free};
    PyMem_SetAllocator(domains[i], &watched);
  }
}

void leave_python() {
  for (std::size_t i = 0; i < domains.size(); ++i) PyMem_SetAllocator(domains[i], &originals[i]);
}

}  // namespace

// ---- what the driver calls -----------------------------------------------------------------------------------------

extern "C" {

// From now on allocations of this kind are counted, and those from number `first` on fail, `most` of them. `first` 0:
// none fails. With `records` the place of each is remembered.
void fail_allocations(int kind, std::uint64_t first, std::uint64_t most, int records) {
  if (keys == nullptr) keys = static_cast<std::uint64_t*>(__libc_malloc(most_keys * sizeof *keys));
  find_libraries();
  state = {static_cast<Kind>(kind), 0, first, most, 0, records != 0};
  walk_stack([](std::uintptr_t) { return true; });  // what unwinding loads, it loads now
  if (state.kind == Kind::python) watch_python();
  is_armed = true;
}

// Ends the failures, and returns how many allocations were counted.
std::uint64_t stop_failing() {
  is_armed = false;
  if (state.kind == Kind::python) leave_python();
  state.kind = Kind::none;
  return state.count;
}

// Lets all allocations of this thread succeed, and counts none. Returns whether some could fail, for `go_on_failing`.
int pause_failing() {
  const bool was_armed = is_armed;
  is_armed = false;
  return was_armed ? 1 : 0;
}
void go_on_failing(int was_armed) { is_armed = was_armed != 0; }

std::uint64_t failed_allocations() { return state.failed; }
int core_was_inside() { return state.core_was_inside ? 1 : 0; }
int interpreter_was_inside_core() { return state.interpreter_was_inside_core ? 1 : 0; }
const std::uint64_t* places_of_allocations() { return keys; }
std::uint64_t most_places() { return most_keys; }

// ---- the C library's, and C++'s ------------------------------------------------------------------------------------

void* malloc(std::size_t size) {
  if (core_fails(__builtin_return_address(0))) {
    errno = ENOMEM;
    return nullptr;
  }
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  if (core_fails(__builtin_return_address(0))) {
    errno = ENOMEM;
    return nullptr;
  }
  return __libc_calloc(count, size);
}
void* realloc(void* block, std::size_t size) {
  if (core_fails(__builtin_return_address(0))) {
    errno = ENOMEM;
    return nullptr;
  }
  return __libc_realloc(block, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  if (core_fails(__builtin_return_address(0))) {
    errno = ENOMEM;
    return nullptr;
  }
  return __libc_memalign(alignment, size);
}

}  // extern "C"

namespace {

void* made_by_new(std::size_t size, std::size_t alignment) {
  for (;;) {
    const std::size_t least = size == 0 ? 1 : size;
    void* const made = alignment == 0 ? __libc_malloc(least) : __libc_memalign(alignment, least);
    if (made != nullptr) return made;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) return nullptr;
    handler();
  }
}

void* new_or_throw(std::size_t size, std::size_t alignment, void* caller) {
  void* const made = core_fails(caller) ? nullptr : made_by_new(size, alignment);
  if (made == nullptr) throw std::bad_alloc();
  return made;
}

}  // namespace

void* operator new(std::size_t size) { return new_or_throw(size, 0, __builtin_return_address(0)); }
void* operator new[](std::size_t size) { return new_or_throw(size, 0, __builtin_return_address(0)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return new_or_throw(size, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return new_or_throw(size, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return core_fails(__builtin_return_address(0)) ? nullptr : made_by_new(size, 0);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return core_fails(__builtin_return_address(0)) ? nullptr : made_by_new(size, 0);
}
