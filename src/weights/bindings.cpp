#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "host/modes.hpp"
#include "host/reader.hpp"
#include "host/system_memory.hpp"
#include "host/tensors.hpp"
#include "pybind.hpp"
#include "weights/cache.hpp"
#include "weights/escapes.hpp"

namespace py = pybind11;

namespace habana_mp {

namespace {

PyObject* or_null(const py::object& one) { return one.is_none() ? nullptr : one.ptr(); }

Owned held_or_null(const py::object& one) { return Owned::borrowed_or_null(or_null(one)); }

py::dict statistics() {
  const weights::Statistics& now = weights::counts;
  py::dict result;
  result["hits"] = now.hits;
  result["refreshes"] = now.refreshes;
  result["refreshed_bytes"] = now.refreshed_bytes;
  py::dict reasons;
  std::uint64_t refused = 0;
  for (std::size_t i = 0; i < weights::refusals; ++i) {
    if (now.refused[i] != 0) reasons[weights::describe(static_cast<weights::Refusal>(i))] = now.refused[i];
    refused += now.refused[i];
  }
  result["refused"] = refused;
  result["reasons"] = reasons;
  result["products"] = now.products;
  result["weights"] = now.weights;
  result["bytes"] = now.bytes;
  return result;
}

}  // namespace

void register_weights(py::module_& module) {
  module.def(
      "weights_configure",
      [](bool on, const py::object& view, const py::object& recorded, std::optional<std::uint64_t> most_bytes,
         std::int64_t least_part, std::int64_t least_tracked, const py::object& accelerator_of,
         const py::object& free_memory, const py::object& wait_for_stream) {
        weights::configure({on, held_or_null(view), held_or_null(recorded), held_or_null(accelerator_of),
                            held_or_null(free_memory), held_or_null(wait_for_stream), most_bytes, least_part,
                            least_tracked});
      },
      py::arg("on"), py::arg("view") = py::none(), py::arg("recorded") = py::none(), py::arg("most_bytes") = py::none(),
      py::arg("least_part") = 0, py::arg("least_tracked") = 0, py::arg("accelerator_of") = py::none(),
      py::arg("free_memory") = py::none(), py::arg("wait_for_stream") = py::none());
  module.def("weights_doubt_all", &weights::doubt_all);
  module.def("weights_capture_begins", &weights::capture_begins);
  module.def("weights_capture_ends", &weights::capture_ends);
  module.def("is_capturing", &weights::is_capturing);
  module.def("current_stream", &host::current_stream);
  // For tests.
  module.def("weights_set_root_of_memory_files", [](const std::string& root) {
    host::set_root_of_memory_files(root);
    weights::forget_free_memory();
  });
  module.def("weights_free_memory", &host::free_memory);
  module.def("weights_tap", [](const py::dict& methods) {
    if (!weights::tap_escapes(methods.ptr())) throw py::error_already_set();
  });
  module.def("weights_untap", &weights::untap_escapes);
  module.def("is_cached_memory", [](const py::object& tensor) { return weights::is_cached_memory(tensor.ptr()); });
  module.def("weights_cast", [](const py::object& weight, const py::object& dtype) {
    std::int64_t elements = 0;
    const bool may_cast =
        weights::may_be_cached() && host::is_parameter(weight.ptr()) && host::kind_of_tensor(weight.ptr()) == Kind::f32;
    if (may_cast)
      weights::cached_cast(weight.ptr(), host::kind_of_dtype(dtype.ptr()), weights::Tracking::none, elements);
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  });
  module.def("weights_forget", [](const py::object& weight) { weights::forget(weight.ptr()); });
  module.def("weights_statistics", &statistics);
  module.def("weights_reset_statistics", &weights::reset_statistics);
}

}  // namespace habana_mp
