// Preloaded, it shows who reads or writes beside a tensor: code that a library generates as it runs too, which no
// sanitizer sees.
//
// Each block that is asked for aligned, as torch's allocator does, ends where a page ends, in pages of its own; the
// ones before and behind must not be touched. What alignment leaves between the block and a page is looked at when the
// block is freed. A fresh block holds NaNs.

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>

extern "C" {
void* __libc_malloc(std::size_t size);
void __libc_free(void* block);
void* __libc_memalign(std::size_t alignment, std::size_t size);
void* __libc_realloc(void* block, std::size_t size);
}

namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t smallest_alignment = 64;
constexpr std::size_t smallest_block = 64;
constexpr std::size_t filled_at_most = std::size_t{1} << 16;
// Linux gives a process 65,530 mappings, of which a block takes two.
constexpr std::size_t most_blocks = 25'000;
constexpr int filling = 0xFF;
constexpr unsigned char untouched = 0xA5;

struct Block {
  unsigned char* pages;
  std::size_t length;  // of the pages between those that must not be touched
  std::size_t size;
};

// The table's own memory, which is freed while it is locked.
template <typename T>
struct Unguarded {
  using value_type = T;
  Unguarded() = default;
  template <typename Other>
  Unguarded(const Unguarded<Other>&) {}
  T* allocate(std::size_t count) { return static_cast<T*>(__libc_malloc(count * sizeof(T))); }
  void deallocate(T* memory, std::size_t) { __libc_free(memory); }
  bool operator==(const Unguarded&) const { return true; }
};

using Blocks =
    std::unordered_map<void*, Block, std::hash<void*>, std::equal_to<>, Unguarded<std::pair<void* const, Block>>>;

std::mutex mutex;

Blocks& blocks() {
  static auto* const the_blocks = new Blocks;
  return *the_blocks;
}

std::size_t rounded_up(std::size_t size, std::size_t to) { return (size + to - 1) / to * to; }

void* with_guards(std::size_t alignment, std::size_t size) {
  if (alignment < smallest_alignment) alignment = smallest_alignment;
  if (size < smallest_block || alignment > page) return nullptr;
  const std::lock_guard lock(mutex);
  if (blocks().size() >= most_blocks) return nullptr;
  const std::size_t body = rounded_up(size, alignment);
  const std::size_t length = rounded_up(body, page);
  void* mapped = mmap(nullptr, length + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const pages = static_cast<unsigned char*>(mapped) + page;
  if (mprotect(pages, length, PROT_READ | PROT_WRITE) != 0) {
    munmap(mapped, length + 2 * page);
    return nullptr;
  }
  unsigned char* const block = pages + length - body;
  std::memset(pages, untouched, static_cast<std::size_t>(block - pages));
  std::memset(block, filling, size < filled_at_most ? size : filled_at_most);
  std::memset(block + size, untouched, body - size);
  blocks().emplace(block, Block{pages, length, size});
  return block;
}

void expect_untouched(const unsigned char* from, const unsigned char* to, const char* where, std::size_t size) {
  for (; from != to; ++from) {
    if (*from == untouched) continue;
    char text[128];
    const int length =
        std::snprintf(text, sizeof(text), "guard_pages: %s a block of %zu bytes was written\n", where, size);
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, static_cast<std::size_t>(length));
    std::abort();
  }
}

bool find(void* address, Block* found, bool and_forget) {
  if (address == nullptr || reinterpret_cast<std::uintptr_t>(address) % smallest_alignment != 0) return false;
  const std::lock_guard lock(mutex);
  const auto place = blocks().find(address);
  if (place == blocks().end()) return false;
  *found = place->second;
  if (and_forget) blocks().erase(place);
  return true;
}

}  // namespace

extern "C" {

int posix_memalign(void** block, std::size_t alignment, std::size_t size) {
  *block = with_guards(alignment, size);
  if (*block == nullptr) *block = __libc_memalign(alignment, size);
  return *block == nullptr ? ENOMEM : 0;
}

void* memalign(std::size_t alignment, std::size_t size) {
  void* block = nullptr;
  return posix_memalign(&block, alignment, size) == 0 ? block : nullptr;
}

void* aligned_alloc(std::size_t alignment, std::size_t size) { return memalign(alignment, size); }

void free(void* address) {
  Block block{};
  if (!find(address, &block, true)) {
    __libc_free(address);
    return;
  }
  const auto* const start = static_cast<unsigned char*>(address);
  expect_untouched(block.pages, start, "before", block.size);
  expect_untouched(start + block.size, block.pages + block.length, "behind", block.size);
  munmap(block.pages - page, block.length + 2 * page);
}

void* realloc(void* address, std::size_t size) {
  Block block{};
  if (!find(address, &block, false)) return __libc_realloc(address, size);
  void* moved = std::malloc(size);
  if (moved == nullptr) return nullptr;
  std::memcpy(moved, address, size < block.size ? size : block.size);
  free(address);
  return moved;
}
}
