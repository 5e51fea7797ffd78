#include "engine/lowered.hpp"

#include <array>
#include <cstddef>
#include <utility>

#include "engine/state.hpp"
#include "errors.hpp"
#include "tensor/cast.hpp"
#include "weakrefs.hpp"

namespace habana_mp::engine {

namespace {

// The last results of calls whose inputs were lowered, held weakly. What autograd records is passed over: it would cost
// every call of a training step, and the graph tells.
NeverDestroyed<std::array<Owned, 8>> references;
std::size_t next = 0;

}  // namespace

void remember_lowered(PyObject* result) {
  if (!host::is_plain_tensor(result) || host::requires_grad(result)) return;
  Owned& place = (*references)[next++ % references->size()];
  Owned reference(PyWeakref_NewRef(result, nullptr));
  if (!reference) clear_error();
  place = std::move(reference);
}

void forget_lowered(PyObject* tensor) noexcept {
  for (Owned& reference : *references) {
    if (reference && referent_of(reference.get()) == tensor) reference.reset();
  }
}

bool was_lowered(PyObject* tensor) noexcept {
  for (const Owned& reference : *references) {
    if (reference && referent_of(reference.get()) == tensor) return true;
  }
  return false;
}

bool may_be_lowered_in_graph(PyObject* tensor) noexcept {
  return is_lower(host::kind_of(tensor)) && host::requires_grad(tensor) && casts_are_made_here();
}

}  // namespace habana_mp::engine
