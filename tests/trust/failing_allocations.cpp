// Preloaded, it lets `operator new` fail once: in the call of this thread with the chosen number, of those that the
// package's core makes itself.
#include <dlfcn.h>
#include <link.h>

#include <cstdint>
#include <cstdlib>
#include <new>
#include <string_view>

namespace {

std::uintptr_t begin_of_core = 0;
std::uintptr_t end_of_core = 0;

thread_local std::uint64_t chosen = 0;  // 0: none fails
thread_local std::uint64_t count = 0;

int find_core(dl_phdr_info* info, std::size_t, void*) {
  if (std::string_view(info->dlpi_name).find("/_core.") == std::string_view::npos) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD || (header.p_flags & PF_X) == 0) continue;
    begin_of_core = info->dlpi_addr + header.p_vaddr;
    end_of_core = begin_of_core + header.p_memsz;
  }
  return 1;
}

}  // namespace

extern "C" {

// From now on the allocation with this number fails.
void fail_allocation(std::uint64_t number) {
  if (begin_of_core == 0) dl_iterate_phdr(&find_core, nullptr);
  count = 0;
  chosen = number;
}

// Ends this, and returns the number of allocations that were counted.
std::uint64_t stop_failing() {
  chosen = 0;
  return count;
}
}

static void* made_by_new(std::size_t size, void* address) {
  const auto caller = reinterpret_cast<std::uintptr_t>(address);
  const bool counts = chosen != 0 && caller >= begin_of_core && caller < end_of_core;
  void* const made = counts && ++count == chosen ? nullptr : std::malloc(size == 0 ? 1 : size);
  if (made == nullptr) throw std::bad_alloc();
  return made;
}

void* operator new(std::size_t size) { return made_by_new(size, __builtin_return_address(0)); }
void* operator new[](std::size_t size) { return made_by_new(size, __builtin_return_address(0)); }
