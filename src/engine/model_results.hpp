// Converts the results of models to float32: convert(results="fp32").
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>

#include "engine/arguments.hpp"
#include "host/reader.hpp"
#include "owned.hpp"

namespace habana_mp::engine {

// Settings of the conversion. `holds` and `convert` are Python functions for arguments and results that
// are no tensors: the first one tells if there is a tensor of the lower kind in one, the second one returns the result.
struct ResultSettings {
  Kind lower = Kind::other;  // other: they stay as they are
  Owned holds;
  Owned convert;
};
void set_model_results(ResultSettings settings) noexcept;

// The converted tensors so far.
struct ModelResults {
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;  // of the new tensors
};
extern ModelResults model_results;

// A call of a module. The outermost one is that of a model.
class ModelCall {
 public:
  // The first argument is the module.
  explicit ModelCall(const Arguments& arguments);
  ~ModelCall();
  ModelCall(const ModelCall&) = delete;
  ModelCall& operator=(const ModelCall&) = delete;

  [[nodiscard]] bool is_outermost() const noexcept { return is_outermost_; }
  // Returns the result of the call as it leaves the model.
  PyObject* leave(PyObject* result) const;

 private:
  bool is_outermost_;
  Kind lower_ = Kind::other;  // of the results that become float32; other: an argument has it
  Owned convert_;             // held, since the model may call `restore`
  bool used_before_ = false;
};

// Notes that an operation of the running model uses a Parameter in lower precision: the results stay what they are.
void note_lower_parameters(const Arguments& arguments) noexcept;

}  // namespace habana_mp::engine
