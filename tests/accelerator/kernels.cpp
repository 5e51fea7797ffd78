#include "kernels.hpp"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/set.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>
#include <string_view>

#include "memory.hpp"

namespace pretended {

bool has_empty_kernels = false;
Recording* recording = nullptr;

namespace {

using at::Tensor;
using torch::jit::Stack;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

bool is_ours(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == kType; }

// Returns a storage over the kernels' addresses, which holds the device's storage.
c10::Storage host_storage(const c10::Storage& storage) {
  auto held = std::make_unique<c10::Storage>(storage);
  void* const address = alias_of(storage.unsafeGetStorageImpl()->data_ptr().get());
  auto* const context = held.release();
  return {c10::Storage::use_byte_size_t(), context->nbytes(),
          c10::DataPtr(
              address, context, [](void* one) { delete static_cast<c10::Storage*>(one); }, c10::kCPU),
          c10::GetDefaultCPUAllocator(), /*resizable=*/true};
}

// Returns a tensor with the sizes of another one, over this storage.
Tensor like(const Tensor& other, const c10::Storage& storage, c10::DispatchKey key) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key), other.dtype());
  auto* const impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(other.sizes(), other.strides(), other.storage_offset());
  if (other.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  if (other.is_conj()) impl->_set_conj(true);
  if (other.is_neg()) impl->_set_neg(true);
  return made;
}

// The storages that a kernel uses, and true for those that it writes.
using Uses = std::vector<std::pair<c10::Storage, bool>>;

void check_again(const Uses& uses) {
  for (const auto& [storage, writes] : uses)
    if (auto* const block = block_of(storage)) use(*block, current_stream(storage.device().index()), writes);
}

// ---- the fallback ---------------------------------------------------------------------------------------------------

// The CPU tensors of one call. Those of tensors that share a storage share one too.
class Exchange {
 public:
  // True if the kernel's reads and writes are checked. A view reads nothing.
  explicit Exchange(bool is_kernel) : is_kernel_(is_kernel) {}

  int device() const { return device_; }

  void set_device(int device) {
    TORCH_CHECK(device_ < 0 || device_ == device, "Expected all tensors to be on the same device, but found at least ",
                "two devices, ", as_device(device_), " and ", as_device(device), "!");
    device_ = device;
  }

  Tensor to_host(const Tensor& given, bool writes) {
    if (!is_ours(given)) return given;
    for (auto& one : tensors_)
      if (one.device.is_same(given)) {
        one.writes |= writes;
        return one.host;
      }
    auto host = like(given, to_host(given.storage()), c10::DispatchKey::CPU);
    tensors_.push_back({given, host, writes});
    return host;
  }

  void check() const {
    if (!is_kernel_) return;
    const int stream = current_stream(device_);
    for (const auto& one : tensors_)
      if (auto* const block = block_of(one.device.storage())) use(*block, stream, one.writes);
  }

  // Returns the storages that the kernel used, and true for those that it wrote.
  Uses uses() const {
    Uses found;
    for (const auto& one : tensors_) found.emplace_back(one.device.storage(), one.writes);
    return found;
  }

  // Follows what the kernel did to the sizes and the memory of its arguments.
  void follow() {
    for (const auto& one : storages_) {
      const auto& pointer = one.host.unsafeGetStorageImpl()->data_ptr();
      if (pointer.get() == alias_of(one.device.unsafeGetStorageImpl()->data_ptr().get()) &&
          one.host.nbytes() == one.device.nbytes())
        continue;
      resize_storage(one.device, one.host.nbytes());
      copy_memory(one.device, one.host);
    }
    for (const auto& one : tensors_) {
      if (!one.writes || (one.device.sizes() == one.host.sizes() && one.device.strides() == one.host.strides() &&
                          one.device.storage_offset() == one.host.storage_offset()))
        continue;
      one.device.unsafeGetTensorImpl()->set_sizes_and_strides(one.host.sizes(), one.host.strides(),
                                                              one.host.storage_offset());
    }
  }

  Tensor to_device(const Tensor& host) {
    if (!host.defined() || !host.device().is_cpu() || host.layout() != c10::kStrided) return host;
    for (const auto& one : tensors_)
      if (one.host.is_same(host)) return one.device;
    for (const auto& one : storages_)
      if (one.host.is_alias_of(host.storage())) return like(host, one.device, c10::DispatchKey::PrivateUse1);
    const size_t bytes = host.storage().nbytes();
    c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, allocator().allocate(bytes), &allocator(), true);
    copy_memory(storage, host.storage());
    storages_.push_back({storage, host.storage()});
    return like(host, storage, c10::DispatchKey::PrivateUse1);
  }

 private:
  struct Storages {
    c10::Storage device, host;
  };
  struct Tensors {
    Tensor device, host;
    bool writes;
  };

  c10::Storage to_host(const c10::Storage& given) {
    for (const auto& one : storages_)
      if (one.device.is_alias_of(given)) return one.host;
    set_device(given.device().index());
    storages_.push_back({given, host_storage(given)});
    return storages_.back().host;
  }

  void copy_memory(const c10::Storage& to, const c10::Storage& from) const {
    auto* const block = block_of(to);
    if (block == nullptr) return;
    use(*block, current_stream(device_), true);
    std::memcpy(alias_of(block->address), from.unsafeGetStorageImpl()->data_ptr().get(), from.nbytes());
  }

  bool is_kernel_;
  int device_ = -1;
  c10::SmallVector<Storages, 4> storages_;
  c10::SmallVector<Tensors, 8> tensors_;
};

// Exchanges the tensors in a value by a function of a tensor.
template <class Function>
c10::IValue exchanged(const c10::IValue& value, Function function) {
  if (value.isTensor()) return function(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> made;
    for (const Tensor& one : value.toTensorVector()) made.push_back(function(one));
    return made;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> made;
    for (const std::optional<Tensor> one : value.toOptionalTensorList())
      made.push_back(one ? std::make_optional(function(*one)) : std::nullopt);
    return made;
  }
  return value;
}

bool takes_generator(const c10::Argument& argument) {
  const auto* const optional = argument.type()->castRaw<c10::OptionalType>();
  return optional != nullptr && optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
}

// While it exists, the CPU's default generator yields the numbers of the device's: for operators without a generator.
class ExchangedNumbers {
 public:
  explicit ExchangedNumbers(const at::Generator& device)
      : device_(host_generator(device)), host_(at::detail::getDefaultCPUGenerator()), before_(host_.get_state()) {
    host_.set_state(device_.get_state());
  }
  ExchangedNumbers(const ExchangedNumbers&) = delete;
  ExchangedNumbers& operator=(const ExchangedNumbers&) = delete;
  ~ExchangedNumbers() {
    device_.set_state(host_.get_state());
    host_.set_state(before_);
  }

 private:
  at::Generator device_, host_;
  Tensor before_;
};

// Operators that take tensors of the CPU beside tensors of the device.
bool takes_both(std::string_view name) {
  for (const std::string_view one : {"aten::index", "aten::_index_put", "aten::_unsafe_index", "aten::_ctc_loss",
                                     "aten::_pack_padded", "aten::_fused_", "aten::_foreach_", "c10d::"})
    if (name.substr(0, one.size()) == one) return true;
  return false;
}

// Returns true if the result's size depends on numbers, so that the host must wait for them.
bool waits_for_numbers(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  if (op.hasTag(at::Tag::data_dependent_output)) return true;
  if (!op.hasTag(at::Tag::dynamic_output_shape)) return false;
  for (const auto& argument : arguments) {
    if (!argument.isOptionalTensorList()) continue;
    for (const std::optional<Tensor> one : argument.toOptionalTensorList())
      if (one && one->defined() && one->scalar_type() == at::kBool) return true;
    return false;
  }
  return true;
}

// Calls an operator on CPU tensors, without autograd and autocast.
void call_host(const c10::OperatorHandle& op, Stack* stack, const at::Generator* numbers) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  std::optional<ExchangedNumbers> exchanged_numbers;
  if (numbers != nullptr) exchanged_numbers.emplace(*numbers);
  op.callBoxed(stack);
}

void run_again(const c10::OperatorHandle& op, const Stack& arguments, const std::vector<Tensor>& results,
               const at::Generator* numbers) {
  auto stack = arguments;
  call_host(op, &stack, numbers);
  size_t i = 0;
  for (const auto& value : stack)
    exchanged(value, [&](const Tensor& one) {
      if (one.defined() && !one.is_alias_of(results[i])) results[i].copy_(one);
      ++i;
      return one;
    });
}

void run_as(const c10::OperatorHandle& called, const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = called.schema();
  const size_t count = op.schema().arguments().size();
  const size_t begin = stack->size() - count;
  bool is_view = false;
  for (const auto& one : schema.returns()) is_view |= one.alias_info() != nullptr && !one.alias_info()->isWrite();

  Exchange exchange(!is_view);
  bool has_generator = false;
  const Tensor* stranger = nullptr;
  const bool waits = waits_for_numbers(called, c10::ArrayRef<c10::IValue>(*stack).slice(begin));
  for (size_t i = 0; i < count; ++i) {
    auto& value = (*stack)[begin + i];
    const auto* const aliases = i < schema.arguments().size() ? schema.arguments()[i].alias_info() : nullptr;
    const bool writes = aliases != nullptr && aliases->isWrite();
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().device().is_cpu() &&
        value.toTensor().dim() > 0)
      stranger = &value.toTensor();
    if (value.isDevice() && value.toDevice().type() == kType) {
      exchange.set_device(value.toDevice().has_index() ? value.toDevice().index() : current_device());
      value = c10::Device(c10::kCPU);
    } else if (value.isGenerator()) {
      has_generator = true;
      if (value.toGenerator().device().type() == kType) value = host_generator(value.toGenerator());
    } else {
      value = exchanged(value, [&](const Tensor& one) { return exchange.to_host(one, writes); });
    }
  }
  const std::string& name = called.schema().name();
  TORCH_CHECK(stranger == nullptr || takes_both(name), "Expected all tensors to be on the same device, but found at ",
              "least two devices, ", as_device(std::max(exchange.device(), 0)), " and cpu! (", name, ")");
  if (exchange.device() < 0) exchange.set_device(current_device());

  const at::Generator* numbers = nullptr;
  if (called.hasTag(at::Tag::nondeterministic_seeded) && !has_generator) {
    const auto& generator = default_generator(exchange.device());
    numbers = &generator;
    for (size_t i = 0; i < schema.arguments().size(); ++i)
      if (takes_generator(schema.arguments()[i])) {
        (*stack)[begin + i] = host_generator(generator);
        numbers = nullptr;
      }
  }
  const c10::DeviceGuard guard(as_device(exchange.device()));
  exchange.check();
  if (waits) synchronize_stream(current_stream(exchange.device()));
  const bool records = recording != nullptr && !is_view;
  Stack arguments;
  if (records) arguments.assign(stack->begin() + static_cast<std::ptrdiff_t>(begin), stack->end());
  call_host(op, stack, numbers);
  exchange.follow();
  for (size_t i = begin; i < stack->size(); ++i) {
    const auto& value = (*stack)[i];
    (*stack)[i] = exchanged(value, [&](const Tensor& one) { return exchange.to_device(one); });
  }
  if (!records) return;
  auto uses = exchange.uses();
  std::vector<Tensor> results;
  for (size_t i = begin; i < stack->size(); ++i)
    exchanged((*stack)[i], [&](const Tensor& one) {
      results.push_back(host_alias(one));
      if (is_ours(one)) uses.emplace_back(one.storage(), true);
      return one;
    });
  recording->push_back(
      [op, arguments = std::move(arguments), results = std::move(results), uses = std::move(uses), numbers] {
        check_again(uses);
        run_again(op, arguments, results, numbers);
      });
}

c10::OperatorHandle find(const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); }

void convolution(const c10::OperatorHandle& op, Stack* stack) {
  static const auto on_host = find("aten::convolution");
  run_as(op, on_host, stack);
}

void convolution_backward(const c10::OperatorHandle& op, Stack* stack) {
  static const auto on_host = find("aten::convolution_backward");
  const size_t begin = stack->size() - op.schema().arguments().size();
  const auto gradient = (*stack)[begin].toTensor();
  stack->insert(stack->begin() + static_cast<std::ptrdiff_t>(begin) + 3,
                c10::IValue(std::vector<int64_t>{gradient.size(1)}));
  run_as(op, on_host, stack);
}

// ---- memory and views -----------------------------------------------------------------------------------------------

c10::Device device_or_current(std::optional<c10::Device> device) {
  return device && device->has_index() ? *device : as_device(current_device());
}

void refuse_pinned(std::optional<bool> pinned) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
}

Tensor empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<c10::Device> device, std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  refuse_pinned(pinned);
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_generic(sizes, &allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<c10::Device> device, std::optional<bool> pinned) {
  refuse_pinned(pinned);
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_strided_generic(sizes, strides, &allocator(), kKeys, c10::dtype_or_default(dtype));
}

// A tensor of zeros without memory, which autograd uses.
Tensor zeros_without_memory(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                            std::optional<c10::Device> device, std::optional<bool>) {
  at::native::ZeroTensorAllocator no_memory(device_or_current(device));
  return at::detail::empty_generic(sizes, &no_memory, kKeys | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor),
                                   c10::dtype_or_default(dtype), std::nullopt);
}

void fit_storage(const Tensor& tensor) {
  const size_t needed = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size(),
                                                         static_cast<size_t>(tensor.storage_offset()));
  if (tensor.numel() > 0 && needed > tensor.storage().nbytes()) resize_storage(tensor.storage(), needed);
}

const Tensor& resize_(const Tensor& self, c10::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  auto* const impl = self.unsafeGetTensorImpl();
  if (self.sizes() != sizes) impl->set_sizes_contiguous(sizes);
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  fit_storage(self);
  return self;
}

Tensor& set_all(Tensor& self, c10::Storage storage, int64_t offset, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  TORCH_CHECK(storage.device() == self.device(), "Attempted to set the storage of a tensor on device ", self.device(),
              " to a storage on different device ", storage.device());
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset);
  if (strides.data() == nullptr) {
    impl->set_sizes_contiguous(sizes);
  } else {
    impl->set_sizes_and_strides(sizes, strides, offset);
  }
  fit_storage(self);
  return self;
}

Tensor& set_storage(Tensor& self, c10::Storage storage) {
  const int64_t count = static_cast<int64_t>(storage.nbytes() / self.element_size());
  return set_all(self, std::move(storage), 0, {count}, {});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_all(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor& set_nothing(Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  return set_all(self, c10::Storage(c10::Storage::use_byte_size_t(), 0, allocator().allocate(0), &allocator(), true), 0,
                 {0}, {});
}

void record_stream(Tensor& self, c10::Stream stream) { allocator().recordStream(self.storage().data_ptr(), stream); }

// ---- copies ---------------------------------------------------------------------------------------------------------

int stream_of(const Tensor& tensor) { return current_stream(tensor.device().index()); }

void copy_aliases(const Tensor& from, const Tensor& to) {
  if (has_empty_kernels) return;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  to.copy_(from);
}

// Copies between tensors of which one at least is of the device.
void copy_and_record(const Tensor& from, const Tensor& to) {
  const Tensor source = host_alias(from);
  const Tensor target = host_alias(to);
  copy_aliases(source, target);
  if (recording == nullptr) return;
  Uses uses;
  if (is_ours(from)) uses.emplace_back(from.storage(), false);
  if (is_ours(to)) uses.emplace_back(to.storage(), true);
  recording->push_back([source, target, uses = std::move(uses)] {
    check_again(uses);
    copy_aliases(source, target);
  });
}

void copy_to_host(const Tensor& from, const Tensor& to, bool non_blocking) {
  const int stream = stream_of(from);
  use(from, false);
  if (!non_blocking) {
    synchronize_stream(stream);
    copy_aliases(host_alias(from), to);
    return;
  }
  // The numbers arrive when the host waits, as they may on a real device.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  when_host_waits(stream, [numbers = host_alias(from).clone(), to] {
    const at::AutoDispatchBelowADInplaceOrView below;
    to.copy_(numbers);
  });
}

// Copies between devices on the current stream of the source, as torch does with CUDA.
void copy_to_peer(const Tensor& from, const Tensor& to) {
  const int source = stream_of(from);
  const int target = stream_of(to);
  if (source != target) wait_for_stream(source, target);
  use(from, false);
  if (auto* const block = block_of(to.storage())) use(*block, source, true);
  copy_and_record(from, to);
  if (source != target) wait_for_stream(target, source);
}

Tensor copy_from(const Tensor& self, const Tensor& to, bool non_blocking) {
  if (!is_ours(to)) {
    copy_to_host(self, to, non_blocking);
  } else if (is_ours(self)) {
    copy_to_peer(self, to);
  } else {
    use(to, true);
    copy_and_record(self, to);
    if (!non_blocking) synchronize_stream(stream_of(to));
  }
  return to;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  to.resize_(self.sizes());
  return copy_from(self, to, false);
}

at::Scalar local_scalar(const Tensor& self) {
  use(self, false);
  synchronize_stream(stream_of(self));
  return at::_local_scalar_dense(host_alias(self));
}

// ---- kernels that may be empty --------------------------------------------------------------------------------------

// Calls the fallback for an operator.
template <class Op, class... Arguments>
auto fall_back(Arguments&&... arguments) {
  return at::native::call_fallback_fn<&run_on_host, Op>::call(std::forward<Arguments>(arguments)...);
}

// Returns an empty result, after the checks of a kernel that reads these tensors.
template <class... Inputs>
Tensor unfilled(c10::IntArrayRef sizes, const Tensor& of, const Inputs&... inputs) {
  const c10::DeviceGuard guard(of.device());
  Tensor made = at::detail::empty_generic(sizes, &allocator(), kKeys, of.scalar_type(), std::nullopt);
  use(of, false);
  (use(inputs, false), ...);
  use(made, true);
  return made;
}

Tensor mm(const Tensor& a, const Tensor& b) {
  if (!has_empty_kernels) return fall_back<at::_ops::mm>(a, b);
  return unfilled({a.size(0), b.size(1)}, a, b);
}

Tensor bmm(const Tensor& a, const Tensor& b) {
  if (!has_empty_kernels) return fall_back<at::_ops::bmm>(a, b);
  return unfilled({a.size(0), a.size(1), b.size(2)}, a, b);
}

Tensor addmm(const Tensor& sum, const Tensor& a, const Tensor& b, const at::Scalar& beta, const at::Scalar& alpha) {
  if (!has_empty_kernels) return fall_back<at::_ops::addmm>(sum, a, b, beta, alpha);
  return unfilled({a.size(0), b.size(1)}, a, b, sum);
}

bool is_simple(const Tensor& a, const Tensor& b) {
  return has_empty_kernels && is_ours(a) && is_ours(b) && a.scalar_type() == b.scalar_type();
}

Tensor add(const Tensor& a, const Tensor& b, const at::Scalar& alpha) {
  if (!is_simple(a, b)) return fall_back<at::_ops::add_Tensor>(a, b, alpha);
  if (a.sizes() == b.sizes()) return unfilled(a.sizes(), a, b);
  return unfilled(at::infer_size_dimvector(a.sizes(), b.sizes()), a, b);
}

Tensor mul(const Tensor& a, const Tensor& b) {
  if (!is_simple(a, b)) return fall_back<at::_ops::mul_Tensor>(a, b);
  if (a.sizes() == b.sizes()) return unfilled(a.sizes(), a, b);
  return unfilled(at::infer_size_dimvector(a.sizes(), b.sizes()), a, b);
}

Tensor relu(const Tensor& self) {
  return has_empty_kernels ? unfilled(self.sizes(), self) : fall_back<at::_ops::relu>(self);
}

Tensor softmax(const Tensor& self, int64_t dim, bool to_float) {
  return has_empty_kernels ? unfilled(self.sizes(), self) : fall_back<at::_ops::_softmax>(self, dim, to_float);
}

std::tuple<Tensor, Tensor, Tensor> layer_norm(const Tensor& self, c10::IntArrayRef normalized,
                                              const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                                              double eps) {
  if (!has_empty_kernels) return fall_back<at::_ops::native_layer_norm>(self, normalized, weight, bias, eps);
  at::DimVector outer(self.sizes().begin(), self.sizes().end());
  for (size_t i = outer.size() - normalized.size(); i < outer.size(); ++i) outer[i] = 1;
  return {unfilled(self.sizes(), self), unfilled(outer, self), unfilled(outer, self)};
}

}  // namespace

void run_on_host(const c10::OperatorHandle& op, Stack* stack) { run_as(op, op, stack); }

Tensor host_alias(const Tensor& tensor) {
  return is_ours(tensor) ? like(tensor, host_storage(tensor.storage()), c10::DispatchKey::CPU) : tensor;
}

void use(const Tensor& tensor, bool writes) {
  if (!is_ours(tensor)) return;
  if (auto* const block = block_of(tensor.storage())) use(*block, stream_of(tensor), writes);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_efficientzerotensor", &zeros_without_memory);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", &set_all);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_", &set_nothing);
  m.impl("record_stream", &record_stream);
  m.impl("view", &at::native::view);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  m.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
  // Else torch composes it, in another order of roundings.
  m.impl("native_group_norm", torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  m.impl("mm", &mm);
  m.impl("bmm", &bmm);
  m.impl("addmm", &addmm);
  m.impl("add.Tensor", &add);
  m.impl("mul.Tensor", &mul);
  m.impl("relu", &relu);
  m.impl("_softmax", &softmax);
  m.impl("native_layer_norm", &layer_norm);
}

// A copy resolves these itself: torch's fallbacks would copy first, and so without end.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

}  // namespace pretended
