#include "log/log.hpp"

#include <Python.h>
#include <fmt/compile.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

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
#include "log/destinations.hpp"
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

// True for what controls a terminal or ends a line: control characters, separators of lines and paragraphs, marks that
// change the direction of text, and lone surrogates.
constexpr bool controls(char32_t c) {
  const bool is_control = c < 0x20 || (c >= 0x7F && c <= 0x9F);
  const bool is_surrogate = c >= 0xD800 && c <= 0xDFFF;
  const bool ends_line = c == 0x2028 || c == 0x2029;
  const bool turns_text = c == 0x061C || c == 0x200E || c == 0x200F || (c >= 0x202A && c <= 0x202E) ||
                          (c >= 0x2066 && c <= 0x2069) || c == 0xFEFF;
  return is_control || is_surrogate || ends_line || turns_text;
}

// Appends text, which is Python's: valid UTF-8, but with lone surrogates of three bytes. Escapes what `controls`, and
// with `is_json` as the inside of a JSON string.
void append_escaped(fmt::memory_buffer& out, std::string_view text, bool is_json) {
  for (std::string_view sequence; !text.empty(); text.remove_prefix(sequence.size())) {
    const auto first = static_cast<unsigned char>(text.front());
    const unsigned length = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    sequence = text.substr(0, length);
    char32_t c = length == 1 ? first : first & (0x7FU >> length);
    for (const char more : sequence.substr(1)) c = c << 6U | (static_cast<unsigned char>(more) & 0x3FU);
    if (c == '\n' || c == '\r' || c == '\t') {
      out.push_back('\\');
      out.push_back(c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
    } else if (controls(c)) {
      const bool is_short = !is_json && c <= 0xFF;
      fmt::format_to(std::back_inserter(out), "\\{}{:0{}x}", is_short ? 'x' : 'u', static_cast<unsigned>(c),
                     is_short ? 2 : 4);
    } else {
      if (is_json && (c == '"' || c == '\\')) out.push_back('\\');
      out.append(sequence);
    }
  }
}

void append_text(fmt::memory_buffer& out, std::string_view representation, rules::Decision decision,
                 const Origin* origin) {
  const bool leaves = decision.precision == rules::Precision::unchanged;
  out.append(std::string_view(leaves ? "leaving  " : "casting  "));
  append_escaped(out, representation, false);
  if (leaves) {
    fmt::format_to(std::back_inserter(out), FMT_COMPILE("  as it is: {}"), rules::describe(decision.reason));
  } else {
    fmt::format_to(std::back_inserter(out), FMT_COMPILE("  to  to_{}"), rules::name(decision.precision));
    if (origin != nullptr || rules::has(decision.reason, rules::in_log)) {
      fmt::format_to(std::back_inserter(out), FMT_COMPILE("  ({})"), rules::describe(decision.reason));
    }
  }
  if (origin != nullptr && !origin->file.empty()) {
    out.append(std::string_view("  at  "));
    append_escaped(out, origin->file, false);
    fmt::format_to(std::back_inserter(out), FMT_COMPILE(":{}"), origin->line);
  }
}

void append_quoted(fmt::memory_buffer& out, std::string_view text, std::string_view rest = {}) {
  out.push_back('"');
  append_escaped(out, text, true);
  append_escaped(out, rest, true);
  out.push_back('"');
}

// Appends the first fields of a line of JSON.
void append_time(fmt::memory_buffer& out) {
  using namespace std::chrono;
  // Use the C++20 calendar, because gmtime_r takes libc's time-zone lock.
  const auto now = floor<microseconds>(system_clock::now());
  const auto day = floor<days>(now);
  const year_month_day date{day};
  const hh_mm_ss clock{now - day};
  // Ask the kernel for the thread's number, since a forked child would inherit a known one. (glibc has a function for
  // it from 2.30 on.)
  fmt::format_to(std::back_inserter(out),
                 FMT_COMPILE(R"({{"time": "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}+00:00", "thread": {}, )"),
                 static_cast<int>(date.year()), static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                 clock.hours().count(), clock.minutes().count(), clock.seconds().count(), clock.subseconds().count(),
                 ::syscall(SYS_gettid));
}

// Appends the other fields.
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
    if (destination->is_json) append_time(line);
    fill(line, destination->is_json);
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

std::string printable(std::string_view text) {
  fmt::memory_buffer out;
  append_escaped(out, text, false);
  return fmt::to_string(out);
}

bool explains() noexcept { return in_force() != nullptr && in_force()->explains; }

void operation(std::string_view representation, std::string_view operation, rules::Decision decision, unsigned casts,
               const Origin* origin) noexcept {
  write_line([&](fmt::memory_buffer& line, bool is_json) {
    if (is_json) {
      append_fields(line, representation, operation, decision, casts, origin);
    } else {
      append_text(line, representation, decision, origin);
    }
  });
}

void event(std::string_view text, std::string_view rest) noexcept {
  write_line([&](fmt::memory_buffer& line, bool is_json) {
    if (!is_json) {
      append_escaped(line, text, false);
      append_escaped(line, rest, false);
      return;
    }
    line.append(std::string_view(R"("kind": "event", "text": )"));
    append_quoted(line, text, rest);
    line.push_back('}');
  });
}

void flush() {
  const py::error_scope pending;
  if (const std::shared_ptr<Destination> destination = in_force()) destination->write_buffer();
}

std::shared_ptr<Destination> destination() { return in_force(); }

void send_to(std::shared_ptr<Destination> destination) {
  set_listening(Listener::log, destination != nullptr);
  const std::shared_ptr<Destination> previous = std::exchange(in_force(), std::move(destination));
  // Closing the file would flush it too, but would not report a full disk.
  if (previous) previous->write_buffer();
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

// The other threads are gone, and with them the lines that they were writing.
static void mend_after_fork() {
  lines_in_flight = writing ? 1 : 0;
  write_each_line_at_once();
}
[[maybe_unused]] static const bool is_mended = forks::mend_in_child(&mend_after_fork);

}  // namespace habana_mp::log
