// Destinations of the cast log: the console, a file, JSON lines or Python's logging, each behind a spdlog logger.
#pragma once

#include <spdlog/logger.h>

#include <memory>
#include <string>
#include <string_view>

#include "pybind.hpp"

namespace habana_mp::log {

// The form of a line: words for a person, or the fields of a JSON object.
enum class Layout { text, json };

// One destination. All functions are called with the GIL held, and the GIL is the only lock: the sinks have spdlog's
// null_mutex. A sink with its own mutex would deadlock (one thread holds the mutex and waits for the GIL to call
// Python, another holds the GIL and waits for the mutex). In a forked child that mutex could stay locked for ever by a
// thread that no longer exists.
class Destination {
 public:
  Destination(spdlog::sink_ptr sink, Layout layout);
  virtual ~Destination() = default;
  Destination(const Destination&) = delete;
  Destination& operator=(const Destination&) = delete;

  Layout layout() const noexcept { return layout_; }

  // True if each line gives the reason and the origin of the call.
  bool explains = false;

  // Called before a line is formatted, so that a line that is not wanted costs no formatting.
  virtual bool wants_line();

  void write(std::string_view line);
  void flush();

 protected:
  virtual void deliver(std::string_view line);
  void deliver_flush() { logger_.flush(); }
  // True if the last line reached its destination. A line in a buffer does not count.
  virtual bool has_arrived() const { return true; }

  // Handles the Python error that a failed sink leaves set. The first failure of a series is reported as unraisable,
  // the others are not: a closed stdout would otherwise print a traceback for every operation of a training run. A
  // series ends when a line `has_arrived`.
  void settle(bool has_arrived);

 private:
  spdlog::logger logger_;
  Layout layout_;
  bool failing_ = false;
};

// Writes to the object that is sys.stdout when a line is written.
std::shared_ptr<Destination> console();

// Writes to a file, which is emptied first unless `append`. Throws as Python's open() does: an OSError that names the
// path.
std::shared_ptr<Destination> file(pybind11::handle path, bool append, Layout layout);

// Writes to a logging.Logger.
std::shared_ptr<Destination> python(pybind11::object logger);

// Makes files get each line at once from now on: a forked child mostly ends through os._exit(), which flushes nothing.
void write_each_line_at_once() noexcept;

// The destination in use; an empty pointer turns the log off. Defined in log.cpp.
std::shared_ptr<Destination> destination();
void send_to(std::shared_ptr<Destination> destination);
void flush();

// Turns the log off for good, and lets other threads finish their lines.
void shut_down();

// Flushes the log: a line left in the buffer during a fork would be written by both processes.
void before_fork();

}  // namespace habana_mp::log
