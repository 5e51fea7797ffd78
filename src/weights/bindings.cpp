#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "host/free_memory.hpp"
#include "pybind.hpp"
#include "weights/cache.hpp"
#include "weights/escapes.hpp"
#include "weights/memory_limit.hpp"

namespace py = pybind11;

namespace habana_mp {

namespace {

using Callers = std::pair<py::tuple, py::tuple>;

PyObject* or_null(const py::object& one) { return one.is_none() ? nullptr : one.ptr(); }

Owned held_or_null(const py::object& one) { return Owned::borrowed_or_null(or_null(one)); }

weights::Callers callers_of(const Callers& tuples) {
  return {Owned::borrowed(tuples.first.ptr()), Owned::borrowed(tuples.second.ptr())};
}

void watch(const py::dict& methods, const Callers& of_pointers, const Callers& of_arrays) {
  const auto method = [&methods](const char* name) { return or_null(methods[name]); };
  weights::MemoryMethods watched{method("untyped_storage"),
                                 method("data_ptr"),
                                 method("const_data_ptr"),
                                 method("apply_"),
                                 method("map_"),
                                 method("map2_"),
                                 method("set_"),
                                 method("resize_"),
                                 method("resize_as_"),
                                 method("unsafe_chunk"),
                                 method("unsafe_split"),
                                 method("unsafe_split_with_sizes"),
                                 method("_lazy_clone"),
                                 method("storage.data_ptr"),
                                 callers_of(of_pointers),
                                 callers_of(of_arrays)};
  if (!weights::watch_escapes(std::move(watched))) throw py::error_already_set();
}

py::dict statistics() {
  const weights::Statistics now = weights::statistics();
  py::dict result;
  result["hits"] = now.hits;
  result["refreshes"] = now.refreshes;
  result["refreshed_bytes"] = now.refreshed_bytes;
  result["refresh_seconds"] = static_cast<double>(now.refresh_nanoseconds) / 1e9;
  py::dict reasons;
  std::uint64_t refused = 0;
  for (std::size_t i = 0; i < weights::refusals; ++i) {
    if (now.refused[i] != 0) reasons[weights::describe(static_cast<weights::Refusal>(i))] = now.refused[i];
    refused += now.refused[i];
  }
  result["refused"] = refused;
  result["reasons"] = reasons;
  result["weights"] = now.weights;
  result["packed"] = now.packed;
  result["bytes"] = now.bytes;
  return result;
}

}  // namespace

void register_weights(py::module_& module) {
  module.def(
      "weights_configure",
      [](bool on, const py::object& view, const py::object& recorded, std::optional<std::uint64_t> most_bytes,
         std::int64_t least_part, std::int64_t least_tracked) {
        weights::configure({on, held_or_null(view), held_or_null(recorded), most_bytes, least_part, least_tracked});
      },
      py::arg("on"), py::arg("view"), py::arg("recorded"), py::arg("most_bytes"), py::arg("least_part"),
      py::arg("least_tracked"));
  // For tests.
  module.def("weights_set_root_of_memory_files", [](const std::string& root) {
    host::set_root_of_memory_files(root);
    weights::memory_limit = {};
  });
  module.def("weights_free_memory", &host::free_memory);
  module.def("weights_watch", &watch);
  module.def("weights_watch_exchange", &weights::watch_exchange);
  module.def("weights_stop_watching", &weights::stop_watching_escapes);
  module.def("weights_expect_changes", [](const py::tuple& parameters) {
    weights::expect_changes(PySequence_Fast_ITEMS(parameters.ptr()), PyTuple_GET_SIZE(parameters.ptr()));
  });
  module.def("weights_renew", [](const py::tuple& parameters, bool may_be_fresh) {
    weights::renew(PySequence_Fast_ITEMS(parameters.ptr()), PyTuple_GET_SIZE(parameters.ptr()), may_be_fresh);
  });
  module.def("weights_are_kept_in", [](const py::object& tensor) { return weights::is_cached_memory(tensor.ptr()); });
  module.def("weights_forget", [](const py::object& weight) { weights::forget(weight.ptr()); });
  module.def("weights_statistics", &statistics);
  module.def("weights_reset_statistics", &weights::reset_statistics);
}

}  // namespace habana_mp
