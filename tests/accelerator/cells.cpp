// The cells of LSTM and GRU, which torch takes as one kernel on every device that is not the CPU.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <torch/library.h>

#include <tuple>

namespace pretended {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor with_bias(const Tensor& gates, const OptionalTensor& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

// Returns the new state, the new memory, and the gates after their activation, for the backward.
std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& input, const Tensor& hidden, const Tensor& memory,
                                        const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const auto gates = (with_bias(input, input_bias) + with_bias(hidden, hidden_bias)).chunk(4, 1);
  const Tensor in = gates[0].sigmoid(), forget = gates[1].sigmoid(), cell = gates[2].tanh(), out = gates[3].sigmoid();
  const Tensor next = forget * memory + in * cell;
  return {out * next.tanh(), next, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_backward(const OptionalTensor& of_state, const OptionalTensor& of_memory,
                                                 const Tensor& memory, const Tensor& next, const Tensor& workspace,
                                                 bool has_bias) {
  const auto gates = workspace.chunk(4, 1);
  const Tensor &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const Tensor active = next.tanh();
  const bool has_state = of_state && of_state->defined();
  const bool has_memory = of_memory && of_memory->defined();
  if (!has_state && !has_memory) return {};
  const Tensor of_out = has_state ? *of_state * active * out * (1 - out) : out * 0;
  Tensor of_next = has_state ? *of_state * out * (1 - active * active) : next * 0;
  if (has_memory) of_next = of_next + *of_memory;
  const Tensor of_gates = at::cat({of_next * cell * in * (1 - in), of_next * memory * forget * (1 - forget),
                                   of_next * in * (1 - cell * cell), of_out},
                                  1);
  return {of_gates, of_next * forget, has_bias ? of_gates.sum(0) : Tensor()};
}

// Returns the new state, and for the backward: the gates, the old state, and the hidden part of the new one.
std::tuple<Tensor, Tensor> gru(const Tensor& input, const Tensor& hidden, const Tensor& state,
                               const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const auto from_input = with_bias(input, input_bias).chunk(3, 1);
  const auto from_hidden = with_bias(hidden, hidden_bias).chunk(3, 1);
  const Tensor reset = (from_input[0] + from_hidden[0]).sigmoid();
  const Tensor update = (from_input[1] + from_hidden[1]).sigmoid();
  const Tensor fresh = (from_input[2] + reset * from_hidden[2]).tanh();
  return {fresh + update * (state - fresh), at::cat({reset, update, fresh, state, from_hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_backward(const Tensor& gradient, const Tensor& workspace,
                                                                bool has_bias) {
  const auto kept = workspace.chunk(5, 1);
  const Tensor &reset = kept[0], &update = kept[1], &fresh = kept[2], &state = kept[3], &hidden = kept[4];
  const Tensor of_fresh = gradient * (1 - update) * (1 - fresh * fresh);
  const Tensor of_update = gradient * (state - fresh) * update * (1 - update);
  const Tensor of_reset = of_fresh * hidden * reset * (1 - reset);
  const Tensor of_input = at::cat({of_reset, of_update, of_fresh}, 1);
  const Tensor of_hidden = at::cat({of_reset, of_update, of_fresh * reset}, 1);
  return {of_input, of_hidden, gradient * update, has_bias ? of_input.sum(0) : Tensor(),
          has_bias ? of_hidden.sum(0) : Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", &lstm);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_backward);
  m.impl("_thnn_fused_gru_cell", &gru);
  m.impl("_thnn_fused_gru_cell_backward", &gru_backward);
}

}  // namespace
}  // namespace pretended
