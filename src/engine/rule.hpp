// A policy's rule for one operation, resolved when the policy is installed. The hot path reads nothing else.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>

#include "rules/rule.hpp"

namespace habana_mp::engine {

using rules::Action;
using rules::Decision;
using rules::Precision;
using rules::Reason;

// The arguments that may be cast. Keywords are tuples of interned strings that live as long as the process, or null for
// none. Only the first 64 positions are distinguished; later ones may always be cast.
struct Castable {
  std::uint64_t positions = ~std::uint64_t{0};
  PyObject* kept_keywords = nullptr;  // of arguments that may not be cast
  // Arguments that may be cast to float32 but not to a lower precision.
  std::uint64_t raised_positions = 0;
  PyObject* raised_keywords = nullptr;
  // Arguments that are lowered off the CPU only: the CPU's kernels take them in float32 beside a lower input.
  std::uint64_t off_cpu_positions = 0;
  PyObject* off_cpu_keywords = nullptr;
  // The keywords of the argument that is written into, for Action::in_place.
  PyObject* target_keywords = nullptr;

  bool operator==(const Castable&) const = default;
};

// Conditions on the arguments of a call: Python functions of these, which live as long as the process, or null.
struct Conditions {
  // True if the call makes a matrix product: the list applies only then.
  PyObject* makes_product = nullptr;
  // True if one kernel computes the call as a whole. It is then lowered as a whole.
  PyObject* is_fused = nullptr;
  // True if the call or its gradient adds up in the lower precision. It is made in float32, and the result is rounded.
  PyObject* adds_up = nullptr;
  // True if the CPU library gets the call or its gradient wrong in bfloat16.
  PyObject* wrong_in_bf16 = nullptr;
  // The argument that makes the gradient of the first input sparse if it is true: its keyword (a tuple of that one
  // string, or null) and its position. A cast cannot pass on such a gradient, so the lists are suspended for that call.
  PyObject* sparse_keyword = nullptr;
  std::uint8_t sparse_position = 0;

  bool operator==(const Conditions&) const = default;
};

// The form of a product: the torch function that it calls.
enum class ProductForm : std::uint8_t {
  none,                    // no product, or one that torch's own function computes everywhere
  linear,                  // F.linear(input, weight, bias)
  addmm,                   // torch.addmm(bias, input, weight)
  mm,                      // torch.mm(input, weight)
  matmul,                  // torch.matmul(input, weight)
  mv,                      // torch.mv(weight, input)
  addmv,                   // torch.addmv(bias, weight, input)
  bmm,                     // torch.bmm(input, other)
  convolution,             // F.conv2d(input, weight, bias, stride, padding, dilation, groups), or 1d or 3d
  transposed_convolution,  // F.conv_transpose2d(input, weight, bias, ...), or 1d or 3d
  rounds_within,           // one within whose sum torch's function rounds
  other,
  count,
};
inline constexpr auto product_forms = static_cast<std::size_t>(ProductForm::count);

// True for products of rows and a matrix.
inline bool has_weight(ProductForm form) { return ProductForm::linear <= form && form <= ProductForm::addmv; }

// Execution options: how a call is computed.
struct ExecutionOptions {
  ProductForm form = ProductForm::none;
  // For a product that is slow if the rows of the first input are unevenly spaced: a Python function of both inputs
  // that returns the first one in evenly spaced rows, for tensors of tracers. It lives as long as the process. Null for
  // any other operation.
  PyObject* in_rows = nullptr;

  bool operator==(const ExecutionOptions&) const = default;
};

struct Rule : rules::Rule {
  Castable castable;
  Conditions conditions;
  ExecutionOptions execution;
  // For Action::none: the rule of calls with a tensor that is already lower, or null. It lives as long as the process.
  // Where nothing is lowered, lower tensors still follow this rule.
  const Rule* rule_for_lowered = nullptr;

  bool operator==(const Rule&) const = default;

  // True if each weight is used in one product only.
  bool takes_weights_once() const { return caches_weights && !is_recurrent; }
  bool may_cast(Py_ssize_t position) const { return position >= 64 || ((castable.positions >> position) & 1U) != 0; }
};

// Returns the one permanent copy of this rule. It is never freed, so a running call may still read it while another
// policy is installed.
const Rule* intern(const Rule& rule);

// The rule of operations that are not handled.
inline constexpr Rule no_rule{};

// Returns the rule where nothing may be lowered, made from the rule of the lists and the rule for suspended lists.
Rule without_lowering(const Rule& listed, const Rule& unlisted);

}  // namespace habana_mp::engine
