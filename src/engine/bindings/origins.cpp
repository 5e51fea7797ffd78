// Tensors whose origin is known, and casts that autograd tracks.
#include "engine/bindings/bindings.hpp"
#include "engine/known_tensors.hpp"
#include "engine/taps.hpp"
#include "host/reader.hpp"
#include "tensor/cast.hpp"

namespace habana_mp {

namespace {

py::object cast_in_block(const py::object& tensor, const py::object& dtype) {
  const Kind to = host::kind_of_dtype(dtype.ptr());
  Owned made = is_floating(to) ? tensor::cast_in_block(tensor.ptr(), to) : nullptr;
  return made ? py::reinterpret_steal<py::object>(made.release()) : py::none();
}

}  // namespace

void register_origins(py::module_& module) {
  module.def("set_tracked_cast", [](const py::object& function) {
    tensor::set_tracked_cast(function.is_none() ? nullptr : function.ptr());
  });
  module.def("set_number_in_range", [](const py::object& function) {
    tensor::set_number_in_range(function.is_none() ? nullptr : function.ptr());
  });
  module.def("cast_in_block", &cast_in_block);
  module.def("forget_known", [](const py::object& tensor) { engine::forget_known(tensor.ptr()); });
  module.def("was_converted", [](const py::object& tensor) { return engine::was_converted(tensor.ptr()); });
  module.def("check_state",
             [](const py::object& set_function) { or_throw(engine::may_tap_state(set_function.ptr())); });
  module.def("tap_state", [](const py::object& set_function) { or_throw(engine::tap_state(set_function.ptr())); });
  module.def("was_lowered", [](const py::object& tensor) { return engine::was_lowered(tensor.ptr()); });
  module.def("may_be_lowered_in_graph",
             [](const py::object& tensor) { return engine::may_be_lowered_in_graph(tensor.ptr()); });
}

}  // namespace habana_mp
