// The kernels of the pretended accelerator.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <vector>

namespace pretended {

// Runs the operator on the CPU, over the memory of the device's tensors.
void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Returns a CPU tensor over the memory of the device's tensor.
at::Tensor host_alias(const at::Tensor& tensor);

// The current stream of the tensor's device uses its memory.
void use(const at::Tensor& tensor, bool writes);

const at::Generator& default_generator(int device);
// Returns the CPU generator that computes the numbers of the device's generator.
at::Generator host_generator(const at::Generator& generator);

// True if products and other frequent operations compute nothing.
extern bool has_empty_kernels;

// The kernels of a capture. Each function runs its kernel again, over the same memory.
using Recording = std::vector<std::function<void()>>;
extern Recording* recording;

}  // namespace pretended
