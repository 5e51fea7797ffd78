// Converts the results of models to float32: convert(results="fp32").
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>

#include "engine/arguments.hpp"
#include "host/reader.hpp"
#include "owned.hpp"

namespace habana_mp::engine {

// Makes results of this lower kind float32; Kind::other: none. `convert` is a Python function for results and arguments
// that are no tensors: it takes the result, the positional arguments and the keyword arguments, and returns the result.
void set_model_results(Kind lower, PyObject* convert) noexcept;

// The converted tensors so far.
struct ModelResults {
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;  // of the new tensors
};
extern ModelResults model_results;

// A call of a module. The outermost one is that of a model.
class ModelCall {
 public:
  explicit ModelCall(PyObject* module) noexcept;
  ~ModelCall();
  ModelCall(const ModelCall&) = delete;
  ModelCall& operator=(const ModelCall&) = delete;

  [[nodiscard]] bool is_outermost() const noexcept { return is_outermost_; }
  // Returns the result of the call as it leaves the model. The first argument is the module.
  PyObject* leave(PyObject* result, const Arguments& arguments) const;

 private:
  bool is_outermost_;
  bool used_before_ = false;
};

// Notes that an operation of the running model uses a Parameter in lower precision: the results stay what they are.
void note_lower_parameters(const Arguments& arguments) noexcept;

}  // namespace habana_mp::engine
