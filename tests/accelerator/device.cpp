// Registers the device with torch: the guard, the hooks, the generators; and what Python calls.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <memory>
#include <mutex>

#include "groups.hpp"
#include "kernels.hpp"
#include "memory.hpp"

namespace pretended {
namespace {

// ---- the guard ------------------------------------------------------------------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return as_device(current_device()); }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) set_current_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < kDevices) set_current_device(device.index());
  }
  c10::Stream getStream(c10::Device device) const override { return as_stream(current_stream(index_of(device))); }
  c10::Stream getDefaultStream(c10::Device device) const override { return as_stream(index_of(device) * kStreams); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return as_stream(take_stream(index_of(device)));
  }
  c10::Stream getNewStream(c10::Device device, int) const override { return as_stream(take_stream(index_of(device))); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = getStream(stream.device());
    set_current_stream(number_of(stream));
    return before;
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag flag) const override {
    if (*event == nullptr) *event = new Event;
    auto& one = *static_cast<Event*>(*event);
    one.is_timed = flag == c10::EventFlag::BACKEND_DEFAULT;
    pretended::record(one, number_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) wait(number_of(stream), *static_cast<Event*>(event));
  }
  bool queryEvent(void*) const override { return true; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize_stream(number_of(stream)); }
  bool isStreamCapturing(const c10::Stream&) const override { return is_capturing(); }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) synchronize_event(*static_cast<Event*>(event));
  }
  void synchronizeDevice(c10::DeviceIndex device) const override { synchronize_device(device); }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    allocator().recordStream(pointer, stream);
  }
  double elapsedTime(void* begin, void* end, c10::DeviceIndex) const override {
    TORCH_CHECK(begin != nullptr && end != nullptr, "both events must be recorded before elapsed_time");
    return static_cast<Event*>(end)->milliseconds - static_cast<Event*>(begin)->milliseconds;
  }

 private:
  static int index_of(c10::Device device) { return device.has_index() ? device.index() : current_device(); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// ---- generators -----------------------------------------------------------------------------------------------------

struct Generator final : c10::GeneratorImpl {
  Generator(int device, at::Generator numbers)
      : c10::GeneratorImpl(as_device(device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host(std::move(numbers)) {}

  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { host.set_offset(offset); }
  uint64_t get_offset() const override { return host.get_offset(); }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }
  void set_state(const c10::TensorImpl& state) override { host.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return host.unsafeGetGeneratorImpl()->get_state(); }
  Generator* clone_impl() const override { return new Generator(device().index(), host.clone()); }

  at::Generator host;
};

at::Generator new_generator(int device) {
  return at::make_generator<Generator>(device, at::detail::createCPUGenerator());
}

// ---- pinned memory --------------------------------------------------------------------------------------------------

// Memory of the host, with a note of where it is.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    auto memory = std::make_unique<c10::DataPtr>(c10::GetDefaultCPUAllocator()->allocate(bytes));
    void* const address = memory->get();
    const std::scoped_lock lock(mutex_);
    pinned_[static_cast<const char*>(address)] = bytes;
    return {address, memory.release(), &release, c10::kCPU};
  }
  bool holds(const void* address) {
    const std::scoped_lock lock(mutex_);
    const auto* const at = static_cast<const char*>(address);
    auto next = pinned_.upper_bound(at);
    return next != pinned_.begin() && at < std::prev(next)->first + std::prev(next)->second;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  static PinnedAllocator& instance() {
    static auto* one = new PinnedAllocator;
    return *one;
  }

 private:
  static void release(void* context) {
    const std::unique_ptr<c10::DataPtr> memory(static_cast<c10::DataPtr*>(context));
    const std::scoped_lock lock(instance().mutex_);
    instance().pinned_.erase(static_cast<const char*>(memory->get()));
  }

  std::mutex mutex_;
  std::map<const char*, size_t> pinned_;
};

// ---- the hooks ------------------------------------------------------------------------------------------------------

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current_device()); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto before = getCurrentDevice();
    set_current_device(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? getCurrentDevice() : exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device < 0 ? current_device() : device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return new_generator(device < 0 ? current_device() : device);
  }
  c10::Device getDeviceFromPtr(void* address) const override {
    TORCH_CHECK(is_device_address(address), "not an address of the pretended accelerator");
    const c10::Storage storage(c10::Storage::use_byte_size_t(), 1, c10::DataPtr(address, as_device(0)));
    const auto* const block = block_of(storage);
    return as_device(block == nullptr ? current_device() : block->device);
  }
  bool isPinnedPtr(const void* address) const override { return PinnedAllocator::instance().holds(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &PinnedAllocator::instance(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

// ---- graphs ---------------------------------------------------------------------------------------------------------

// The kernels of a capture, with their memory.
struct Graph {
  Recording kernels;

  void begin() {
    TORCH_CHECK(recording == nullptr, "a capture is under way");
    kernels.clear();
    recording = &kernels;
    set_capturing(true);
  }
  static void end() {
    recording = nullptr;
    set_capturing(false);
  }
  void replay() const {
    for (const auto& run : kernels) run();
  }
};

}  // namespace

const at::Generator& default_generator(int device) {
  static auto* const generators = new std::array<at::Generator, kDevices>{new_generator(0), new_generator(1)};
  return generators->at(static_cast<size_t>(device));
}

at::Generator host_generator(const at::Generator& generator) { return generator.get<Generator>()->host; }

PYBIND11_MODULE(pretended_accelerator, m) {
  c10::SetAllocator(kType, &allocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks);

  m.def("device_count", [] { return kDevices; });
  m.def("current_device", &current_device);
  m.def("set_device", &set_current_device);
  m.def("default_generator",
        [](int device) { return py::reinterpret_steal<py::object>(THPGenerator_Wrap(default_generator(device))); });
  m.def("synchronizations", &synchronizations);
  m.def("set_memory_limit", &set_memory_limit);
  m.def("host_alias", &host_alias);
  m.def("use", py::overload_cast<const at::Tensor&, bool>(&use));
  m.def("wait_for_stream", [](const c10::Stream& stream, const c10::Stream& other) {
    wait_for_stream(number_of(stream), number_of(other));
  });
  m.def("empty_kernels", [](bool enabled) { has_empty_kernels = enabled; });
  m.def("is_capturing", &is_capturing);
  py::class_<Graph>(m, "Graph")
      .def(py::init<>())
      .def("begin", &Graph::begin)
      .def_static("end", &Graph::end)
      .def("replay", &Graph::replay, py::call_guard<py::gil_scoped_release>());
  add_groups(m);
}

}  // namespace pretended
