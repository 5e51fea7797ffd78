#include "accel/products/packed_weights.hpp"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>
#include <vector>

#include "accel/products/image_order.hpp"
#include "accel/products/library.hpp"
#include "accel/products/own_products.hpp"
#include "accel/products/probe.hpp"
#include "accel/products/trial.hpp"
#include "errors.hpp"
#include "kernels/product.hpp"
#include "stopwatch.hpp"
#include "weights/entry.hpp"

namespace habana_mp::accel {

using weights::cache;
using weights::counts;
using weights::Entry;
using weights::entry_of;
using weights::is_unchanged;
using weights::Layout;

namespace {

Assumed assumed = Assumed::measured;

// A weight is packed after this many uses in a row without a gradient and without a change.
constexpr std::uint32_t least_quiet_uses = 4;

// Returns this number for a weight. The number doubles with each call for which the packed weight was of no use, so
// that a plain cast was made. The first several such calls do not count.
std::uint32_t quiet_uses_before_packing(const Entry& entry) {
  constexpr std::uint32_t free_misses = 8;
  constexpr std::uint32_t most_doublings = 20;
  return least_quiet_uses << (std::clamp(entry.uses_without_pack, free_misses, free_misses + most_doublings) -
                              free_misses);
}

// Below this many values the library's operator costs more than it saves.
constexpr std::int64_t least_elements_to_pack = 1 << 14;
// The packed call must be faster by this factor when it is measured.
constexpr double required_speedup = 1.1;
// Reordered images are tried for at most this many kinds of calls of a weight, since each call may have other sizes.
constexpr std::uint32_t most_probed_kinds = 8;

// A linear layer's weight with more values is not packed by the library, since a trial needs as much memory again.
constexpr std::int64_t most_elements_for_library = std::int64_t{1} << 28;

// A dictionary from (shape of the weight, options, size of the input, bias) to True if the packed weight is faster,
// measured once.
PyObject* verdicts() {
  static PyObject* const all = checked(PyDict_New());
  return all;
}

// Returns the options for which a packed form is valid: an empty tuple for a product, else (stride, padding, dilation,
// groups). For reordered images they include the input's sizes and the number of threads, since the order of sums
// depends on both, and was shown to be the same only for these. Returns null if that fails.
Owned options_of(const WeightCall& call) {
  if (call.is_product()) return Owned(PyTuple_New(0));
  PyObject* const* options = call.options;
  if (!call.reorders) return Owned(PyTuple_Pack(conv_options, options[0], options[1], options[2], options[3]));
  DLTensor view;
  if (!host::view_on_cpu(call.input, view) || view.ndim != 4) return nullptr;
  return Owned(Py_BuildValue("(OOOOLLLLI)", options[0], options[1], options[2], options[3],
                             static_cast<long long>(view.shape[0]), static_cast<long long>(view.shape[1]),
                             static_cast<long long>(view.shape[2]), static_cast<long long>(view.shape[3]),
                             host::torch_threads()));
}

// Returns the key of a measurement. It contains the number of binary digits of the input's size. Returns null if that
// fails.
Owned case_of(const Entry& entry, const WeightCall& call) {
  const auto digits = std::bit_width(static_cast<std::uint64_t>(host::count_elements(call.input)));
  const Owned options = options_of(call);
  if (!options) return nullptr;
  return Owned(Py_BuildValue("(OOiO)", entry.size.get(), options.get(), static_cast<int>(digits),
                             call.bias == Py_None ? Py_False : Py_True));
}

// For each kind of linear layer: true if the library sums in the same order with a packed weight as with a plain one.
// Each kind is tried once. (`gives_the_same_bits` tries the convolutions whose order may differ.) The GIL guards all
// state of this file. Like the cache, the map is never destroyed.
NeverDestroyed<std::unordered_map<ProductCase, bool, HashOfProductCase>> all_orders_of_sums;
std::unordered_map<ProductCase, bool, HashOfProductCase>& orders_of_sums() { return *all_orders_of_sums; }

std::optional<bool> known_to_sum_alike(const Entry& entry, const WeightCall& call) {
  if (!call.is_product()) return true;
  const std::optional<ProductCase> one = product_case_of(call);
  if (!one || entry.elements > most_elements_for_library) return false;
  const auto found = orders_of_sums().find(*one);
  return found == orders_of_sums().end() ? std::nullopt : std::optional(found->second);
}

// True if the sums are in the same order. If this is not known, tries it with other values than the call's. Other code
// may run meanwhile. An interrupt leaves its exception set.
bool sums_alike(const Entry& entry, const WeightCall& call) {
  if (const std::optional<bool> known = known_to_sum_alike(entry, call)) return *known;
  const std::optional<ProductCase> one = product_case_of(call);
  ProductTrial trial(*one, call);
  const bool alike = trial.show([&](PyObject* expected) {
    const Owned packed = pack(trial.call().weight, trial.call());
    const Owned made = packed ? call_packed(trial.call(), packed.get()) : nullptr;
    return are_same(made.get(), expected);
  });
  drop_error();
  if (PyErr_Occurred() != nullptr) return false;
  return orders_of_sums().insert_or_assign(*one, alike).first->second;
}

enum class Verdict : std::uint8_t { none, is_faster, is_not };

Verdict verdict_on(const Owned& one_case) {
  PyObject* known = one_case ? PyDict_GetItemWithError(verdicts(), one_case.get()) : nullptr;
  clear_error();  // the options of a layer can always be hashed
  if (known == nullptr) return Verdict::none;
  return known == Py_True ? Verdict::is_faster : Verdict::is_not;
}

// True if the packed weight gives the same bits. With reordered images a convolution may sum in another order. Then
// about one of ten thousand results differs, so enough results are compared to be sure. The weight's own values are not
// used, since they may all be equal at this time.
bool gives_the_same_bits(const WeightCall& call, PyObject* cast) {
  constexpr int probes = 5;
  constexpr std::int64_t least_compared = std::int64_t{1} << 17;
  WeightCall probe = call;
  void* values = nullptr;
  void* weights = nullptr;
  DLTensor view;
  const Owned input = host::view_on_cpu(call.input, view) ? host::allocate_like(view, Kind::bf16, values) : nullptr;
  probe.input = input.get();
  const Owned weight = host::view_on_cpu(cast, view) ? host::allocate_like(view, Kind::bf16, weights) : nullptr;
  if (weight) fill_with_noise(weights, host::count_elements(weight.get()), probes + 1);
  probe.weight = weight.get();
  const Owned packed = weight ? pack(weight.get(), call) : nullptr;
  bool same = input && packed;
  std::int64_t compared = 0;
  for (std::uint64_t seed = 1; same && compared < least_compared && seed <= probes; ++seed) {
    fill_with_noise(values, host::count_elements(probe.input), seed);
    const Owned plain = call_plain(probe);
    const Owned from_packed = plain ? call_packed(probe, packed.get()) : nullptr;
    same = are_same(plain.get(), from_packed.get());
    compared += same ? host::count_elements(plain.get()) : 0;
  }
  return same && compared >= least_compared;
}

// True if the packed weight is faster. Compares the shortest of several calls that are made in turn, since other work
// on this machine can only make a call longer.
bool is_faster_packed(const WeightCall& call, PyObject* cast, PyObject* packed) {
  if (call.reorders && !gives_the_same_bits(call, cast)) return false;
  if (assumed != Assumed::measured) return assumed == Assumed::library;
  WeightCall with_cast = call;
  with_cast.weight = cast;
  double plain = 1e9;
  double from_packed = 1e9;
  for (int i = 0; i < 5; ++i) {
    const double one = time_of([&] { return call_plain(with_cast); });
    const double other = time_of([&] { return call_packed(call, packed); });
    if (one < 0 || other < 0) return false;
    plain = std::min(plain, one);
    from_packed = std::min(from_packed, other);
  }
  return from_packed * required_speedup < plain;
}

// Packs the weight with torch's operators if that is faster for this call.
void pack_if_faster(Entry& entry, const WeightCall& call) {
  if (!library_packs(call) || entry.elements < least_elements_to_pack) return;
  Owned one_case = case_of(entry, call);
  const Verdict known = verdict_on(one_case);
  if (!one_case || known == Verdict::is_not || !entry.has(Layout::plain)) {
    clear_error();
    return;
  }
  if (call.reorders && known == Verdict::none) ++entry.probed;
  const Owned cast = Owned::borrowed(entry.cast.get());
  const bool is_alike = sums_alike(entry, call);
  Owned packed = is_alike ? pack(cast.get(), call) : nullptr;
  const bool worth = packed && (known == Verdict::is_faster || is_faster_packed(call, cast.get(), packed.get()));
  Owned holder = worth ? host::make_holder(packed.get()) : nullptr;
  drop_error();
  const bool interrupted = PyErr_Occurred() != nullptr;
  if (!interrupted && is_alike) PyDict_SetItem(verdicts(), one_case.get(), worth ? Py_True : Py_False);
  drop_error();
  one_case.reset();
  Owned options = worth && !interrupted ? options_of(call) : nullptr;
  // The cast may have been replaced meanwhile. No other code runs between this check and the change.
  if (options && entry.cast.get() == cast.get()) {
    entry.hold(std::move(packed), std::move(holder), Layout::library, std::move(options));
  }
}

bool options_match(PyObject* packed_for, const WeightCall& call) {
  if (call.is_product()) return PyTuple_GET_SIZE(packed_for) == 0;
  const Owned options = options_of(call);
  const int equal = options ? PyObject_RichCompareBool(packed_for, options.get(), Py_EQ) : 0;
  clear_error();
  return equal == 1;
}

bool is_packed_for(const Entry& entry, const WeightCall& call) {
  if (!entry.has(Layout::library) || !library_packs(call)) return false;
  const Owned packed_for = Owned::borrowed(entry.packed_for.get());
  return options_match(packed_for.get(), call);
}

// True if this call can be computed from a packed weight as it is. False if the input's values count as negated, or if
// the bias has another form than a layer's bias.
bool is_plain_call(const WeightCall& call, const Entry& entry) {
  const std::vector<std::int64_t>& sizes = entry.geometry.sizes;
  return !host::is_negative(call.input) && !sizes.empty() && has_bias_of_layer(call, sizes.front());
}

}  // namespace

void assume_products(Assumed wanted) noexcept {
  assumed = wanted;
  PyDict_Clear(verdicts());
  orders_of_sums().clear();
  forget_sums();
}

Assumed assumed_products() noexcept { return assumed; }

bool may_pack(const WeightCall& call) noexcept {
  return operators_of(call.what).plain && library_packs(call) && assumed != Assumed::nothing &&
         (!call.is_product() || assumed == Assumed::library || !kernels::can_multiply());
}

bool may_be_packed(const WeightCall& call, Kind to) {
  if (to != Kind::bf16) return false;
  const Entry* known = entry_of(call.weight, to);
  if (known == nullptr || !known->cast || known->device != weights::on_cpu) return false;
  if (known->elements < least_elements_to_pack) return false;
  const bool is_packed = known->layout == Layout::library;
  if (is_packed && !is_unchanged(*known, call.weight)) return false;
  if (!is_packed && known->untracked_uses < quiet_uses_before_packing(*known)) return false;
  if (!is_in_use() || !is_plain_call(call, *known) || known_to_sum_alike(*known, call) == false) return false;
  // If the weight is in channels-last order, so is the result, whatever the order of the input.
  if (!is_packed && call.reorders && !is_channels_first(known->cast.get())) return false;
  const std::shared_ptr<Entry> entry = cache().entries.at({call.weight, to});  // comparing may run other code
  if (is_packed) return is_packed_for(*entry, call);
  const Verdict verdict = verdict_on(case_of(*entry, call));
  if (call.reorders && verdict == Verdict::none && entry->probed >= most_probed_kinds) return false;
  return verdict != Verdict::is_not;
}

Owned compute_from_packed(const WeightCall& call, Kind to) {
  const auto found = cache().entries.find({call.weight, to});
  if (found == cache().entries.end()) return nullptr;
  const std::shared_ptr<Entry> held = found->second;
  Entry& entry = *held;
  if (!entry.cast) return nullptr;
  if (entry.layout == Layout::plain) {
    if (host::count_elements(call.input) == 0 || !is_unchanged(entry, call.weight)) return nullptr;
    pack_if_faster(entry, call);
    if (PyErr_Occurred() != nullptr) return nullptr;
  }
  if (!is_packed_for(entry, call) || !sums_alike(entry, call) || !entry.has(Layout::library) ||
      !is_unchanged(entry, call.weight)) {
    return nullptr;
  }
  const Owned packed = Owned::borrowed(entry.cast.get());
  Owned result = call_packed(call, packed.get());
  if (!result) {
    // The ordinary call raises the error.
    drop_error();
    return nullptr;
  }
  ++counts.hits;
  return result;
}

}  // namespace habana_mp::accel
