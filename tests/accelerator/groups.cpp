// The process group of the pretended accelerator: gloo works on the device's memory. As with NCCL, each collective runs
// on a stream of its own, for which the caller's stream must wait.
#include "groups.hpp"

#include <ATen/ops/div.h>
#include <c10/core/StreamGuard.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

#include "kernels.hpp"
#include "memory.hpp"

namespace pretended {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using c10d::Work;
using WorkPointer = c10::intrusive_ptr<Work>;

Tensors hosted(const Tensors& given) {
  Tensors made;
  for (const auto& one : given) made.push_back(host_alias(one));
  return made;
}

std::vector<Tensors> hosted(const std::vector<Tensors>& given) {
  std::vector<Tensors> made;
  for (const auto& one : given) made.push_back(hosted(one));
  return made;
}

Tensors flat(const std::vector<Tensors>& given) {
  Tensors made;
  for (const auto& one : given) made.insert(made.end(), one.begin(), one.end());
  return made;
}

// A collective on the group's stream. It holds its tensors until a stream has waited for it.
class Collective final : public Work {
 public:
  Collective(int rank, int stream, Tensors reads, Tensors writes)
      : Work(rank), stream_(stream), reads_(std::move(reads)), writes_(std::move(writes)) {
    record(event_, stream);
  }

  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override {
    pretended::wait(current_stream(device_of(stream_)), event_);
    reads_.clear();
    return true;
  }
  void synchronize() override { wait(c10d::kUnsetTimeout); }
  Tensors result() override { return writes_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const c10::StreamGuard guard(as_stream(stream_));
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                           std::vector<c10::Device>{as_device(device_of(stream_))});
    future->markCompleted(c10::IValue(writes_));
    return future;
  }

 private:
  int stream_;
  Tensors reads_, writes_;
  Event event_;
};

class Group final : public c10d::Backend {
 public:
  explicit Group(c10::intrusive_ptr<c10d::Backend> gloo)
      : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)), streams_{take_stream(0), take_stream(1)} {}

  const std::string getBackendName() const override { return "pretended_gloo"; }
  bool supportsSplitting() const override { return false; }
  void setTimeout(std::chrono::milliseconds timeout) override { gloo_->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo_->getSequenceNumberForGroup(); }

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return run(tensors, tensors, [&] { return gloo_->broadcast(kept(hosted(tensors)), options); });
  }
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    auto summed = options;
    return run(
        tensors, tensors, [&] { return gloo_->allreduce(kept(hosted(tensors)), summed); }, is_mean(summed.reduceOp));
  }
  WorkPointer allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions& options) override {
    return run(inputs, flat(outputs),
               [&] { return gloo_->allgather(kept(hosted(outputs)), kept(hosted(inputs)), options); });
  }
  WorkPointer _allgather_base(Tensor& output, Tensor& input, const c10d::AllgatherOptions& options) override {
    return run({input}, {output},
               [&] { return gloo_->_allgather_base(kept(host_alias(output)), kept(host_alias(input)), options); });
  }
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) override {
    return run(inputs, outputs, [&] {
      return gloo_->allgather_into_tensor_coalesced(kept(hosted(outputs)), kept(hosted(inputs)), options);
    });
  }
  WorkPointer scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    return run(flat(inputs), outputs,
               [&] { return gloo_->scatter(kept(hosted(outputs)), kept(hosted(inputs)), options); });
  }
  WorkPointer _reduce_scatter_base(Tensor& output, Tensor& input, const c10d::ReduceScatterOptions& options) override {
    auto summed = options;
    return run(
        {input}, {output},
        [&] { return gloo_->_reduce_scatter_base(kept(host_alias(output)), kept(host_alias(input)), summed); },
        is_mean(summed.reduceOp));
  }
  WorkPointer barrier(const c10d::BarrierOptions& options) override { return gloo_->barrier(options); }

 private:
  // Makes an lvalue of a value that lives until the end of the expression.
  template <class Value>
  static Value& kept(Value&& value) {
    return value;
  }

  // Gloo has no means: it sums, and a kernel divides.
  static bool is_mean(c10d::ReduceOp& operation) {
    if (operation != c10d::ReduceOp::AVG) return false;
    operation = c10d::ReduceOp::SUM;
    return true;
  }

  template <class Start>
  WorkPointer run(const Tensors& reads, const Tensors& writes, Start work, bool divides = false) {
    const int device = (writes.empty() ? reads : writes).at(0).device().index();
    const int stream = streams_.at(static_cast<size_t>(device));
    wait_for_stream(stream, current_stream(device));
    {
      const c10::StreamGuard guard(as_stream(stream));
      for (const auto& one : reads) use(one, false);
      for (const auto& one : writes) use(one, true);
    }
    work()->wait();
    if (divides)
      for (const auto& one : writes) host_alias(one).div_(size_);
    return c10::make_intrusive<Collective>(rank_, stream, reads, writes);
  }

  c10::intrusive_ptr<c10d::Backend> gloo_;
  std::array<int, kDevices> streams_;
};

}  // namespace

void add_groups(pybind11::module_& m) {
  pybind11::class_<Group, c10d::Backend, c10::intrusive_ptr<Group>>(m, "Group")
      .def(pybind11::init<c10::intrusive_ptr<c10d::Backend>>());
}

}  // namespace pretended
