#include "log/destinations.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <utility>

#include "errors.hpp"
#include "gil.hpp"
#include "host/frames.hpp"

namespace py = pybind11;

namespace habana_mp::log {

namespace {

using Message = spdlog::details::log_msg;

bool each_line_at_once = false;

py::object decode(std::string_view text) {
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

class Console final : public Destination {
  void sink_it_(const Message& message) override {
    const auto stream = py::reinterpret_borrow<py::object>(PySys_GetObject("stdout"));
    // Like print(): a process without a console has None here. The stream's owner decides when to flush it.
    if (!stream || stream.is_none()) return;
    const py::object text = decode(std::string(message.payload.data(), message.payload.size()) + '\n');
    if (!text || write_to(stream, text) || PyErr_ExceptionMatches(PyExc_UnicodeEncodeError) == 0) return;
    // Escape characters that the console cannot show, as the interactive prompt does.
    clear_error();
    const auto ascii =
        py::reinterpret_steal<py::object>(PyUnicode_AsEncodedString(text.ptr(), "ascii", "backslashreplace"));
    if (!ascii) return;
    const py::object spelled = decode({PyBytes_AS_STRING(ascii.ptr()), static_cast<std::size_t>(Py_SIZE(ascii.ptr()))});
    if (spelled) write_to(stream, spelled);
  }

  bool write_to(const py::object& stream, const py::object& text) const {
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

class Logger final : public Destination {
 public:
  explicit Logger(py::object logger) : logger_(std::move(logger)) {}

  bool wants_line() override {
    const auto answer = py::reinterpret_steal<py::object>(
        PyObject_CallMethodOneArg(logger_.ptr(), is_enabled_for_.ptr(), level_.ptr()));
    const bool wanted = answer && PyObject_IsTrue(answer.ptr()) == 1;
    if (PyErr_Occurred() != nullptr) settle();
    return wanted;
  }

 private:
  void sink_it_(const Message& message) override {
    const py::object text = decode({message.payload.data(), message.payload.size()});
    if (!text) return;
    // No arguments follow, so logging leaves a "%" in the line as it is.
    const py::int_ level(own_frames() + 1);
    PyObject* const values[] = {logger_.ptr(), text.ptr(), level.ptr()};
    py::reinterpret_steal<py::object>(PyObject_VectorcallMethod(info_.ptr(), values, 2, keywords_.ptr()));
  }

  py::object logger_;
  py::int_ level_{20};  // logging.INFO, whose value Python's documentation guarantees
  py::str is_enabled_for_{"isEnabledFor"};
  py::str info_{"info"};
  py::tuple keywords_ = py::make_tuple("stacklevel");
};

class File final : public Destination {
 public:
  File(int file, std::string name) : file_(file), name_(std::move(name)) {}
  ~File() override { ::close(file_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

 private:
  // Every write(2) has whole lines. Processes that share the file (a parent and its forked children) then never split
  // each other's lines.
  void sink_it_(const Message& message) override {
    constexpr std::size_t room = std::size_t{64} * 1024;  // for about five hundred lines
    has_arrived_ = false;
    if (buffer_.size() + message.payload.size() >= room) flush_();
    buffer_.append(message.payload.data(), message.payload.size()).push_back('\n');
    if (each_line_at_once) flush_();
  }

  void flush_() override {
    has_arrived_ = true;
    std::size_t done = 0;
    while (done < buffer_.size()) {
      const ssize_t written = ::write(file_, buffer_.data() + done, buffer_.size() - done);
      if (written >= 0) {
        done += static_cast<std::size_t>(written);
      } else if (errno != EINTR) {
        PyErr_SetFromErrnoWithFilename(PyExc_OSError, name_.c_str());
        done = buffer_.size();
      } else if (PyErr_CheckSignals() != 0) {
        break;  // Ctrl-C: a pipe without a reader blocks for ever
      }
    }
    buffer_.erase(0, done);
  }

  int file_;
  std::string name_;
  std::string buffer_;
};

}  // namespace

void Destination::write(std::string_view line) {
  log({"habana_mp", spdlog::level::info, spdlog::string_view_t(line.data(), line.size())});
  settle();
}

void Destination::write_buffer() {
  flush();
  settle();
}

void Destination::settle() {
  if (PyErr_Occurred() == nullptr) {
    failing_ = failing_ && !has_arrived_;
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

std::shared_ptr<Destination> console() { return std::make_shared<Console>(); }

std::shared_ptr<Destination> file(py::handle path, bool append, bool is_json) {
  PyObject* converted = nullptr;
  if (PyUnicode_FSConverter(path.ptr(), &converted) == 0) throw py::error_already_set();
  const std::string name = py::reinterpret_steal<py::bytes>(converted);
  int opened = -1;
  int error = 0;
  // A network folder may be slow; other threads need not wait for it.
  without_gil([&] {
    opened = ::open(name.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (append ? 0 : O_TRUNC), 0666);
    error = errno;
  });
  if (opened < 0) {
    errno = error;
    PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path.ptr());
    throw py::error_already_set();
  }
  std::shared_ptr<Destination> made = std::make_shared<File>(opened, name);
  made->is_json = is_json;
  return made;
}

std::shared_ptr<Destination> python(py::object logger) { return std::make_shared<Logger>(std::move(logger)); }

void write_each_line_at_once() noexcept { each_line_at_once = true; }

}  // namespace habana_mp::log
