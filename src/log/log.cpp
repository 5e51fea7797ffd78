#include "log/log.hpp"

#include <Python.h>
#include <fmt/compile.h>
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <exception>
#include <iterator>
#include <memory>
#include <thread>
#include <utility>

#include "errors.hpp"
#include "forks.hpp"
#include "gil.hpp"
#include "log/printable.hpp"
#include "log/sinks.hpp"
#include "owned.hpp"

namespace py = pybind11;

namespace habana_mp::log {

namespace {

// Guarded by the GIL. Never destroyed: a static's destructor would run after Python is gone, and sinks own Python
// objects. shut_down(), which atexit calls, empties it.
constinit NeverDestroyed<std::shared_ptr<Destination>> destination_in_force;
std::shared_ptr<Destination>& in_force() { return *destination_in_force; }

// The number of lines that all threads write now. Guarded by the GIL.
int lines_in_flight = 0;

// True while this thread writes a line. A sink in Python may itself call a handled operation (a logging handler that
// computes with tensors). The line of that operation is dropped, or it would call the sink again without end.
thread_local bool writing = false;

class LineScope {
 public:
  LineScope() noexcept : entered_(!writing) {
    if (!entered_) return;
    writing = true;
    ++lines_in_flight;
  }
  ~LineScope() {
    if (!entered_) return;
    --lines_in_flight;
    writing = false;
  }
  LineScope(const LineScope&) = delete;
  LineScope& operator=(const LineScope&) = delete;

  explicit operator bool() const noexcept { return entered_; }

 private:
  bool entered_;
};

void append_text(fmt::memory_buffer& out, std::string_view representation, rules::Decision decision,
                 const Origin* origin) {
  using rules::Precision;
  using rules::Reason;
  fmt::memory_buffer scratch;
  const std::string_view readable = printable(representation, scratch);
  if (decision.precision == Precision::unchanged) {
    fmt::format_to(std::back_inserter(out), FMT_COMPILE("leaving  {}  as it is: {}"), readable,
                   rules::describe(decision.reason));
  } else {
    fmt::format_to(std::back_inserter(out), FMT_COMPILE("casting  {}  to  to_{}"), readable,
                   rules::name(decision.precision));
    if (origin != nullptr || rules::has(decision.reason, rules::in_log)) {
      fmt::format_to(std::back_inserter(out), FMT_COMPILE("  ({})"), rules::describe(decision.reason));
    }
  }
  if (origin != nullptr && !origin->file.empty()) {
    fmt::memory_buffer file;
    fmt::format_to(std::back_inserter(out), FMT_COMPILE("  at  {}:{}"), printable(origin->file, file), origin->line);
  }
}

void append_quoted(fmt::memory_buffer& out, std::string_view text, std::string_view rest = {}) {
  out.push_back('"');
  append_for_json(out, text);
  append_for_json(out, rest);
  out.push_back('"');
}

// Appends the fields after the time and the thread, which the sink's formatter writes.
void append_fields(fmt::memory_buffer& out, std::string_view representation, std::string_view operation,
                   rules::Decision decision, unsigned casts, const Origin* origin) {
  out.append(std::string_view(R"("kind": "operation", "function": )"));
  append_quoted(out, representation);
  out.append(std::string_view(R"(, "operation": )"));
  append_quoted(out, operation);
  fmt::format_to(
      std::back_inserter(out), FMT_COMPILE(R"(, "precision": "{}", "reason": "{}", "description": "{}", "casts": {})"),
      rules::name(decision.precision), rules::row_of(decision.reason).word, rules::describe(decision.reason), casts);
  if (origin != nullptr && !origin->file.empty()) {
    out.append(std::string_view(R"(, "file": )"));
    append_quoted(out, origin->file);
    fmt::format_to(std::back_inserter(out), FMT_COMPILE(R"(, "line": {})"), origin->line);
  }
  out.push_back('}');
}

// Writes one line; `fill` writes its text.
template <typename Fill>
void write_line(Fill fill) noexcept {
  const LineScope scope;
  if (!scope) return;
  // A sink calls Python, which must neither see nor lose an exception that is set.
  const py::error_scope pending;
  // A copy: a sink in Python may let another thread run, or change the destination itself.
  const std::shared_ptr<Destination> destination = in_force();
  if (!destination) return;
  try {
    if (!destination->wants_line()) return;
    fmt::memory_buffer line;
    fill(line, destination->layout());
    destination->write({line.data(), line.size()});
  } catch (py::error_already_set& error) {
    error.restore();
    print_error(nullptr);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    print_error(nullptr);
  }
}

}  // namespace

bool explains() noexcept { return in_force() != nullptr && in_force()->explains; }

void operation(std::string_view representation, std::string_view operation, rules::Decision decision, unsigned casts,
               const Origin* origin) noexcept {
  write_line([&](fmt::memory_buffer& line, Layout layout) {
    if (layout == Layout::text) {
      append_text(line, representation, decision, origin);
    } else {
      append_fields(line, representation, operation, decision, casts, origin);
    }
  });
}

void event(std::string_view text, std::string_view rest) noexcept {
  write_line([&](fmt::memory_buffer& line, Layout layout) {
    if (layout == Layout::text) {
      for (const std::string_view part : {text, rest}) {
        fmt::memory_buffer scratch;
        line.append(printable(part, scratch));
      }
      return;
    }
    line.append(std::string_view(R"("kind": "event", "text": )"));
    append_quoted(line, text, rest);
    line.push_back('}');
  });
}

void flush() {
  const py::error_scope pending;
  if (const std::shared_ptr<Destination> destination = in_force()) destination->flush();
}

std::shared_ptr<Destination> destination() { return in_force(); }

void send_to(std::shared_ptr<Destination> destination) {
  set_listening(Listener::log, destination != nullptr);
  const std::shared_ptr<Destination> previous = std::exchange(in_force(), std::move(destination));
  // Closing the file would flush it too, but would not report a full disk.
  if (previous) previous->flush();
}

void shut_down() {
  send_to(nullptr);
  // When a daemon thread returns from a sink's Python code after the interpreter is gone, Python ends it by unwinding
  // through operation(). That function may not throw, so the process would abort. So wait for such lines to end, but
  // not for ever: a thread may be stuck in a pipe that is never read.
  constexpr int patience = 1000;
  const int own = writing ? 1 : 0;
  for (int waited = 0; lines_in_flight > own && waited < patience; ++waited) {
    without_gil([] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
  }
}

void before_fork() { flush(); }

// The other threads are gone, and with them the lines that they were writing.
static void mend_after_fork() {
  lines_in_flight = writing ? 1 : 0;
  write_each_line_at_once();
}
[[maybe_unused]] static const bool is_mended = forks::mend_in_child(&mend_after_fork);

}  // namespace habana_mp::log
