#include "log/sinks.hpp"

#include <fcntl.h>
#include <fmt/compile.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <utility>

#include "errors.hpp"
#include "gil.hpp"
#include "host/frames.hpp"

namespace py = pybind11;

namespace habana_mp::log {

namespace {

using PythonSink = spdlog::sinks::base_sink<spdlog::details::null_mutex>;

// logging.INFO, whose value Python's documentation guarantees.
constexpr int python_info = 20;

// Room for about five hundred lines between two writes.
constexpr std::size_t file_buffer_size = std::size_t{64} * 1024;

bool each_line_at_once = false;

py::object decode(std::string_view text) {
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

// spdlog's pattern formatter would spend more time on an unused timestamp than on the rest of the line.
class LineFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    out.append(message.payload.begin(), message.payload.end());
    out.push_back('\n');
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<LineFormatter>(); }
};

// Puts the time and the thread before the fields, which the payload contains.
class JsonFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    using namespace std::chrono;
    const auto second = floor<seconds>(message.time);
    if (second != second_) {
      // Use the C++20 calendar, because gmtime_r takes libc's time-zone lock.
      const auto day = floor<days>(second);
      const year_month_day date{day};
      const hh_mm_ss clock{second - day};
      date_.clear();
      fmt::format_to(std::back_inserter(date_), FMT_COMPILE("{{\"time\": \"{:04}-{:02}-{:02}T{:02}:{:02}:{:02}."),
                     static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                     static_cast<unsigned>(date.day()), clock.hours().count(), clock.minutes().count(),
                     clock.seconds().count());
      second_ = second;
    }
    out.append(date_.data(), date_.data() + date_.size());
    // Ask the kernel: spdlog caches the message's thread id per thread, and a forked child would inherit it. (glibc has
    // a function for it from 2.30 on.)
    fmt::format_to(std::back_inserter(out), FMT_COMPILE("{:06}+00:00\", \"thread\": {}, "),
                   duration_cast<microseconds>(message.time - second).count(), ::syscall(SYS_gettid));
    out.append(message.payload.begin(), message.payload.end());
    out.push_back('\n');
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JsonFormatter>(); }

 private:
  spdlog::log_clock::time_point second_ = spdlog::log_clock::time_point::min();
  fmt::memory_buffer date_;
};

std::unique_ptr<spdlog::formatter> formatter_of(Layout layout) {
  if (layout == Layout::json) return std::make_unique<JsonFormatter>();
  return std::make_unique<LineFormatter>();
}

class ConsoleSink final : public PythonSink {
 public:
  ConsoleSink() : PythonSink(std::make_unique<LineFormatter>()) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const auto stream = py::reinterpret_borrow<py::object>(PySys_GetObject("stdout"));
    // Like print(): a process without a console has None here.
    if (!stream || stream.is_none()) return;
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    const py::object text = decode({line.data(), line.size()});
    if (!text || write(stream, text) || PyErr_ExceptionMatches(PyExc_UnicodeEncodeError) == 0) return;
    // Escape characters that the console cannot show, as the interactive prompt does.
    clear_error();
    const auto ascii =
        py::reinterpret_steal<py::object>(PyUnicode_AsEncodedString(text.ptr(), "ascii", "backslashreplace"));
    if (!ascii) return;
    const py::object spelled = decode({PyBytes_AS_STRING(ascii.ptr()), static_cast<std::size_t>(Py_SIZE(ascii.ptr()))});
    if (spelled) write(stream, spelled);
  }

  // sys.stdout belongs to the script, which decides when to flush it.
  void flush_() override {}

 private:
  bool write(const py::object& stream, const py::object& text) const {
    return static_cast<bool>(
        py::reinterpret_steal<py::object>(PyObject_CallMethodOneArg(stream.ptr(), write_.ptr(), text.ptr())));
  }

  py::str write_{"write"};
};

// Returns the number of frames of this package between the core and the code whose call is logged.
int own_frames() {
  int frames = 0;
  for (host::FrameWalk walk; walk; walk.outwards(), ++frames) {
    const Owned name = walk.module_name();
    if (!name || !host::text_of(name.get()).starts_with("habana_mp.")) break;
  }
  return frames;
}

class LoggerSink final : public PythonSink {
 public:
  explicit LoggerSink(py::object logger)
      : PythonSink(std::make_unique<LineFormatter>()), logger_(std::move(logger)), level_(python_info) {}

  bool wants_line() const {
    const auto answer = py::reinterpret_steal<py::object>(
        PyObject_CallMethodOneArg(logger_.ptr(), is_enabled_for_.ptr(), level_.ptr()));
    return answer && PyObject_IsTrue(answer.ptr()) == 1;
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const py::object text = decode({message.payload.data(), message.payload.size()});
    if (!text) return;
    // No arguments follow, so logging leaves a "%" in the line as it is.
    const int frames = own_frames();
    if (frames == 0) {
      py::reinterpret_steal<py::object>(PyObject_CallMethodOneArg(logger_.ptr(), info_.ptr(), text.ptr()));
    } else {
      const py::int_ level(frames + 1);
      PyObject* const values[] = {logger_.ptr(), text.ptr(), level.ptr()};
      py::reinterpret_steal<py::object>(PyObject_VectorcallMethod(info_.ptr(), values, 2, keywords_.ptr()));
    }
  }

  void flush_() override {}

 private:
  py::object logger_;
  py::int_ level_;
  py::str is_enabled_for_{"isEnabledFor"};
  py::str info_{"info"};
  py::tuple keywords_ = py::make_tuple("stacklevel");
};

class LoggerDestination final : public Destination {
 public:
  explicit LoggerDestination(std::shared_ptr<LoggerSink> sink)
      : Destination(sink, Layout::text), sink_(std::move(sink)) {}

  bool wants_line() override {
    const bool wanted = sink_->wants_line();
    if (PyErr_Occurred() != nullptr) settle(false);
    return wanted;
  }

 private:
  std::shared_ptr<LoggerSink> sink_;
};

class FileDestination final : public Destination {
 public:
  using Destination::Destination;

 protected:
  // Flushes before the buffer overflows, so that every write(2) has whole lines. Processes that share the file (a
  // parent and its forked children) then never split each other's lines.
  void deliver(std::string_view line) override {
    // The most that a formatter adds: the time, the thread and the newline of a JSON line.
    constexpr std::size_t frame = 96;
    has_arrived_ = false;
    if (buffered_ + line.size() + frame > file_buffer_size) {
      deliver_flush();
      buffered_ = 0;
      has_arrived_ = true;
    }
    buffered_ += line.size() + frame;
    Destination::deliver(line);
    if (each_line_at_once) {
      deliver_flush();
      buffered_ = 0;
      has_arrived_ = true;
    }
  }

  bool has_arrived() const override { return has_arrived_; }

 private:
  std::size_t buffered_ = 0;
  bool has_arrived_ = false;
};

}  // namespace

Destination::Destination(spdlog::sink_ptr sink, Layout layout)
    : logger_("habana_mp", std::move(sink)), layout_(layout) {
  // Replace spdlog's own handler, which writes to stderr and not to Python's sys.stderr.
  logger_.set_error_handler([](const std::string& text) {
    if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_OSError, text.c_str());
  });
}

bool Destination::wants_line() { return logger_.should_log(spdlog::level::info); }

void Destination::deliver(std::string_view line) {
  logger_.log(spdlog::level::info, spdlog::string_view_t(line.data(), line.size()));
}

void Destination::write(std::string_view line) {
  deliver(line);
  settle(has_arrived());
}

void Destination::flush() {
  deliver_flush();
  settle(true);
}

void Destination::settle(bool has_arrived) {
  if (PyErr_Occurred() == nullptr) {
    failing_ = failing_ && !has_arrived;
    return;
  }
  // Ctrl-C during a line is meant for the script: it is raised after the operation.
  if (failing_ || PyErr_ExceptionMatches(PyExc_Exception) == 0) {
    clear_error();
    return;
  }
  failing_ = true;
  print_error(py::str("the cast log of habana_mp").ptr());
}

std::shared_ptr<Destination> console() {
  return std::make_shared<Destination>(std::make_shared<ConsoleSink>(), Layout::text);
}

std::shared_ptr<Destination> file(py::handle path, bool append, Layout layout) {
  PyObject* converted = nullptr;
  if (PyUnicode_FSConverter(path.ptr(), &converted) == 0) throw py::error_already_set();
  const std::string name = py::reinterpret_steal<py::bytes>(converted);

  int error = 0;
  std::shared_ptr<spdlog::sinks::basic_file_sink_st> sink;
  // A network folder may be slow; other threads need not wait for it.
  without_gil([&] {
    // spdlog would make missing folders, try five times with pauses, and lose errno. So open the file here first.
    const int probe = ::open(name.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    error = probe < 0 ? errno : 0;
    if (probe >= 0) {
      ::close(probe);
      spdlog::file_event_handlers handlers;
      // The handler owns the buffer, and spdlog keeps the handler until the file is closed.
      handlers.after_open = [buffer = std::shared_ptr<char[]>(new char[file_buffer_size])](const spdlog::filename_t&,
                                                                                           std::FILE* stream) {
        std::setvbuf(stream, buffer.get(), _IOFBF, file_buffer_size);
      };
      sink = std::make_shared<spdlog::sinks::basic_file_sink_st>(name, !append, handlers);
      sink->set_formatter(formatter_of(layout));
    }
  });
  if (error != 0) {
    errno = error;
    PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path.ptr());
    throw py::error_already_set();
  }
  return std::make_shared<FileDestination>(std::move(sink), layout);
}

std::shared_ptr<Destination> python(py::object logger) {
  return std::make_shared<LoggerDestination>(std::make_shared<LoggerSink>(std::move(logger)));
}

void write_each_line_at_once() noexcept { each_line_at_once = true; }

}  // namespace habana_mp::log
