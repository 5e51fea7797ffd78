// Objects that the garbage collector has set aside.
#pragma once

#include "owned.hpp"

namespace habana_mp::engine {

// Returns a list of all objects that the garbage collector knows, also of those that `gc.freeze()` has set aside.
// Returns null with an exception set if there is no memory for it. Afterwards the same objects are set aside as before.
[[nodiscard]] Owned objects_with_frozen() noexcept;

}  // namespace habana_mp::engine
