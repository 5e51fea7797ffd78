// The functions of the log that Python calls.

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "host/frames.hpp"
#include "log/destinations.hpp"
#include "log/log.hpp"
#include "pybind.hpp"

namespace py = pybind11;

namespace habana_mp {

namespace {

std::shared_ptr<log::Destination> destination_of(const std::string& kind, const py::object& target, bool append) {
  if (kind == "console") return log::console();
  if (kind == "file") return log::file(target, append, false);
  if (kind == "json") return log::file(target, append, true);
  if (kind == "python") return log::python(target);
  throw py::value_error("`kind` must be \"console\", \"file\", \"json\" or \"python\"; got \"" + kind + "\"");
}

void log_to(const std::string& kind, const py::object& target, bool append, bool explains) {
  // Flush before a file is opened: it may be the same file, which opening empties.
  log::flush();
  const std::shared_ptr<log::Destination> destination = destination_of(kind, target, append);
  destination->explains = explains;
  log::send_to(destination);
}

void log_operation(const py::str& representation, const std::string& operation, int precision, int reason,
                   unsigned casts) {
  log::operation(host::bytes_of(representation.ptr()), operation,
                 {static_cast<rules::Precision>(precision), static_cast<rules::Reason>(reason)}, casts, nullptr);
}

}  // namespace

void register_log(py::module_& module) {
  const py::class_<log::Destination, std::shared_ptr<log::Destination>> destination(
      module, "LogDestination", "Where the cast log went, to be given back.");
  module.def("log_destination", &log::destination, "Where the cast log goes, or None.");
  module.def("log_back_to", &log::send_to, py::arg("destination").none(true),
             "Sends the cast log where it went before, or nowhere; a file is complete when this returns.");
  module.def("log_to", &log_to, py::arg("kind"), py::arg("target") = py::none(), py::kw_only(),
             py::arg("append") = false, py::arg("explains") = false,
             "Sends the cast log to \"console\", \"file\", \"json\" or \"python\". A destination that cannot be opened "
             "raises and leaves the previous one in force.");
  module.def("log_flush", &log::flush, "Writes out what the log's file still buffers.");

  module.def(
      "printable", [](const py::str& text) { return log::printable(host::bytes_of(text.ptr())); }, py::arg("text"),
      "The text with what controls a terminal or ends a line spelled out, as in the log.");

  py::dict reasons;
  for (const rules::ReasonRow& row : rules::reasons) {
    const bool casts_off = (row.flags & rules::casts_off) != 0;
    reasons[row.word] = py::make_tuple(row.rule, casts_off, row.finding, row.description, row.when);
  }
  module.attr("reasons") = reasons;
  module.attr("precisions") =
      py::tuple(py::cast(std::vector<const char*>(rules::precisions.begin(), rules::precisions.end())));

  // Only for the tests of the log, which must not depend on the engine. Nothing in the package calls these two.
  module.def("_log_operation", &log_operation, py::arg("representation"), py::arg("operation"), py::arg("precision"),
             py::arg("reason"), py::arg("casts"));
  module.def(
      "_log_event", [](const py::str& text) { log::event(host::bytes_of(text.ptr())); }, py::arg("text"));

  // A line left in the buffer during a fork would be written by both processes.
  py::module_::import("os").attr("register_at_fork")(py::arg("before") = py::cpp_function(&log::flush));
  // atexit calls the first registered function last, so lines from the script's own atexit functions are still logged.
  py::module_::import("atexit").attr("register")(py::cpp_function(&log::shut_down));
}

}  // namespace habana_mp
