// The functions of the watch that Python calls: they begin and end it, and return its records as plain data.

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "pybind.hpp"
#include "watch/calls.hpp"
#include "watch/values.hpp"
#include "weights/cache.hpp"

namespace py = pybind11;

namespace habana_mp {

namespace {

py::object path_or_none(const watch::ModulePath* path) {
  return path == nullptr ? py::none() : text_of_bytes(path->name);
}

py::dict shown(const watch::Record& record) {
  const watch::Key& key = record.key;
  py::dict row;
  row["operation"] = text_of_bytes(*key.operation);
  row["precision"] = rules::name(key.decision.precision);
  row["reason"] = rules::row_of(key.decision.reason).word;
  row["listed"] = key.decision.line;
  row["phase"] = watch::name(key.phase);
  const watch::Place* const place = key.place;
  row["file"] = place == nullptr ? py::none() : text_of_bytes(place->file);
  row["line"] = place == nullptr ? py::object(py::none()) : py::int_(place->line);
  row["function"] = place == nullptr ? py::none() : text_of_bytes(place->function);
  row["module"] = path_or_none(key.module);
  row["inside"] = text_of_bytes(key.inside == nullptr ? std::string() : *key.inside);
  row["calls"] = record.calls;
  row["casts"] = record.amounts.casts;
  row["bytes"] = record.amounts.bytes;
  row["hits"] = record.amounts.hits;
  row["needed"] = record.amounts.needed;
  row["nanoseconds"] = record.nanoseconds;
  row["cast_nanoseconds"] = record.cast_nanoseconds;
  py::dict refused;
  static_assert(std::tuple_size_v<decltype(record.refused)> == weights::refusals);
  for (std::size_t why = 0; why < weights::refusals; ++why) {
    if (record.refused[why] != 0) refused[weights::describe(static_cast<weights::Refusal>(why))] = record.refused[why];
  }
  row["refused"] = refused;
  py::dict noticed;
#define ROW(type, name, words) \
  if (record.noticed.name != 0) noticed[words] = record.noticed.name;
  HABANA_MP_NOTICED(ROW)
#undef ROW
  row["noticed"] = noticed;
  py::list from;
  for (const watch::Record::From& one : record.from) {
    from.append(py::make_tuple(one.record->number, one.calls, one.casts));
  }
  row["from"] = from;
  return row;
}

// In each of these functions a collection could run code that drops what is read.
py::list watched_calls() {
  const NoCollection none;
  py::list rows;
  for (const watch::Record& record : watch::all_records()) rows.append(shown(record));
  return rows;
}

// Returns a list of (path, class name, calls, nanoseconds).
py::list watched_modules() {
  const NoCollection none;
  py::list rows;
  for (const std::shared_ptr<watch::ModulePath>& path : watch::all_paths()) {
    rows.append(
        py::make_tuple(text_of_bytes(path->name), text_of_bytes(path->class_name), path->calls, path->nanoseconds));
  }
  return rows;
}

// Returns a list of (record or -1, path of the module or None, begin, end, thread). The times are nanoseconds since
// 1970.
py::list watched_events() {
  const NoCollection none;
  const std::uint64_t shift = watch::nanoseconds<std::chrono::system_clock>() - watch::nanoseconds();
  py::list rows;
  for (const watch::Event& event : watch::events()) {
    const watch::ModulePath* const path =
        event.module < 0 ? nullptr : watch::path_numbered(static_cast<std::uint64_t>(event.module));
    rows.append(py::make_tuple(event.record, path_or_none(path), event.begin + shift, event.end + shift, event.thread));
  }
  return rows;
}

}  // namespace

void register_watch(py::module_& module) {
  module.def("set_watch", [](const py::tuple& passed_over, const py::object& call_impl_code, const py::object& names,
                             const py::object& traced_place, const py::object& mark, const py::object& took) {
    watch::set_passed_over(passed_over.ptr(), call_impl_code.ptr());
    watch::set_module_names(names.ptr());
    watch::set_traced_place(traced_place.ptr());
    watch::set_device_clock(mark.ptr(), took.ptr());
  });
  module.def("set_sensitive", [](const std::unordered_map<std::string, int>& operations) {
    for (const auto& [name, number] : operations) watch::set_sensitive(name, static_cast<watch::Sensitivity>(number));
  });
  module.def("notice_loss", [](const py::object& tensor) { watch::notice_loss(tensor.ptr()); });
  module.def("begin_watch", &watch::begin);
  module.def("stop_watch", &watch::stop);
  module.def("watched_calls", &watched_calls);
  module.def("watched_modules", &watched_modules);
  module.def("watched_events", &watched_events);
  module.def("reset_watch", [] {
    watch::forget_events();
    watch::forget_records();
    watch::forget_places();
    watch::forget_module_calls();
  });
  const py::class_<watch::RunningModule, std::shared_ptr<watch::RunningModule>> running(
      module, "RunningModule", "A module that runs within certain others.");
  module.def("running_module", &watch::running_module);
  module.def("set_module_names", [](const py::object& names) { watch::set_module_names(names.ptr()); });
  module.def("forget_module_names", &watch::forget_module_names);
  py::class_<watch::ModuleCall>(module, "Block", "A block that was deferred in a module, and runs now.")
      .def("leave", &watch::ModuleCall::leave);
  module.def("enter_block", &watch::enter_block);
  module.def("watch_sizes", [] {
    py::dict sizes;
    sizes["codes"] = watch::known_codes();
    sizes["places"] = watch::known_places();
    sizes["modules"] = watch::known_modules();
    sizes["records"] = watch::all_records().size();
    return sizes;
  });
}

}  // namespace habana_mp
