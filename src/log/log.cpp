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
#include "gil.hpp"
#include "log/sinks.hpp"

namespace py = pybind11;

namespace habana_mp::log {

namespace {

// Guarded by the GIL. Never destroyed: a static's destructor would run after Python is gone, and sinks own Python
// objects; shut_down(), which atexit calls, is what empties it.
std::shared_ptr<Destination>& in_force() {
  static auto* destination = new std::shared_ptr<Destination>;
  return *destination;
}

// Lines being written now, in all threads. Guarded by the GIL.
int lines_in_flight = 0;

// Set while this thread writes a line. A sink in Python may itself call a covered operation (a logging handler that
// computes with tensors): that one's line is dropped, or it would call the sink again without end.
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

constexpr bool is_ascii(std::string_view text) {
  unsigned char bits = 0;
  for (const char c : text) bits |= static_cast<unsigned char>(c);
  return bits < 0x80;
}

// The length of the UTF-8 sequence at the start of `text`, 0 where there is none. Python's "surrogatepass" writes lone
// surrogates as three bytes that no reader of UTF-8 accepts; they count as none.
std::size_t sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if ((first & 0xF0) == 0xE0) {
    const bool overlong = first == 0xE0 && byte(1) < 0xA0;
    const bool surrogate = first == 0xED && byte(1) >= 0xA0;
    return follows(1) && follows(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool overlong = first == 0xF0 && byte(1) < 0x90;
    const bool too_large = first == 0xF4 && byte(1) >= 0x90;
    return follows(1) && follows(2) && follows(3) && !overlong && !too_large ? 4 : 0;
  }
  return 0;
}

// `text` where it is UTF-8, which is nearly always; else a copy in `scratch` with the offending bytes spelled out
// (\xed), so that one strange repr does not make the whole file unreadable.
std::string_view valid_utf8(std::string_view text, fmt::memory_buffer& scratch) {
  if (is_ascii(text)) return text;
  while (!text.empty()) {
    const std::size_t length = sequence_length(text);
    if (length == 0) {
      fmt::format_to(std::back_inserter(scratch), FMT_COMPILE("\\x{:02x}"), static_cast<unsigned char>(text.front()));
      text.remove_prefix(1);
    } else {
      scratch.append(text.data(), text.data() + length);
      text.remove_prefix(length);
    }
  }
  return {scratch.data(), scratch.size()};
}

void append_text(fmt::memory_buffer& out, std::string_view representation, rules::Decision decision,
                 const Origin* origin) {
  using rules::Precision;
  using rules::Reason;
  fmt::memory_buffer scratch;
  const std::string_view readable = valid_utf8(representation, scratch);
  if (decision.precision == Precision::unchanged) {
    fmt::format_to(std::back_inserter(out), FMT_COMPILE("leaving  {}  as it is: {}"), readable,
                   rules::describe(decision.reason));
  } else {
    fmt::format_to(std::back_inserter(out), FMT_COMPILE("casting  {}  to  to_{}"), readable,
                   rules::name(decision.precision));
    if (origin != nullptr || decision.reason == Reason::no_kernel || decision.reason == Reason::scalar) {
      fmt::format_to(std::back_inserter(out), FMT_COMPILE("  ({})"), rules::describe(decision.reason));
    }
  }
  if (origin != nullptr && !origin->file.empty()) {
    fmt::memory_buffer file;
    fmt::format_to(std::back_inserter(out), FMT_COMPILE("  at  {}:{}"), valid_utf8(origin->file, file), origin->line);
  }
}

void append_quoted(fmt::memory_buffer& out, std::string_view text) {
  fmt::memory_buffer scratch;
  out.push_back('"');
  for (const char c : valid_utf8(text, scratch)) {
    switch (c) {
      case '"':
      case '\\':
        out.push_back('\\');
        out.push_back(c);
        break;
      case '\n':
        out.append(std::string_view("\\n"));
        break;
      case '\r':
        out.append(std::string_view("\\r"));
        break;
      case '\t':
        out.append(std::string_view("\\t"));
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          fmt::format_to(std::back_inserter(out), FMT_COMPILE("\\u{:04x}"), static_cast<unsigned>(c));
        } else {
          out.push_back(c);
        }
    }
  }
  out.push_back('"');
}

// Only what stands after the time and the thread, which the sink's formatter writes.
void append_fields(fmt::memory_buffer& out, std::string_view representation, std::string_view operation,
                   rules::Decision decision, unsigned casts, const Origin* origin) {
  out.append(std::string_view(R"("kind": "operation", "function": )"));
  append_quoted(out, representation);
  out.append(std::string_view(R"(, "operation": )"));
  append_quoted(out, operation);
  fmt::format_to(
      std::back_inserter(out), FMT_COMPILE(R"(, "precision": "{}", "reason": "{}", "description": "{}", "casts": {})"),
      rules::name(decision.precision), rules::word(decision.reason), rules::describe(decision.reason), casts);
  if (origin != nullptr && !origin->file.empty()) {
    out.append(std::string_view(R"(, "file": )"));
    append_quoted(out, origin->file);
    fmt::format_to(std::back_inserter(out), FMT_COMPILE(R"(, "line": {})"), origin->line);
  }
  out.push_back('}');
}

// What every line has in common; `fill` writes its text.
template <typename Fill>
void write_line(Fill fill) noexcept {
  const LineScope scope;
  if (!scope) return;
  // A sink calls Python, which must not meet, or lose, an exception that is on its way.
  const py::error_scope pending;
  // A copy: a sink in Python may let another thread run, or itself change the destination.
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

void event(std::string_view text) noexcept {
  write_line([&](fmt::memory_buffer& line, Layout layout) {
    if (layout == Layout::text) {
      fmt::memory_buffer scratch;
      line.append(valid_utf8(text, scratch));
      return;
    }
    line.append(std::string_view(R"("kind": "event", "text": )"));
    append_quoted(line, text);
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
  // Closing the file would flush it too, but say nothing of a full disk.
  if (previous) previous->flush();
}

void shut_down() {
  send_to(nullptr);
  // A daemon thread that comes back from a sink's Python code once the interpreter is gone is ended there and then, by
  // unwinding through operation(), which may not throw: the process would abort. Let it finish its line; not for ever,
  // it may be stuck in a pipe that nobody reads.
  constexpr int patience = 1000;
  const int own = writing ? 1 : 0;
  for (int waited = 0; lines_in_flight > own && waited < patience; ++waited) {
    without_gil([] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
  }
}

void before_fork() { flush(); }

void after_fork_in_child() {
  // The other threads are gone, and with them the lines that they were writing.
  lines_in_flight = writing ? 1 : 0;
  write_each_line_at_once();
}

}  // namespace habana_mp::log
