// Destinations of the cast log: the console, a file, JSON lines or Python's logging, each a sink of spdlog.
#pragma once

#include <spdlog/details/null_mutex.h>
#include <spdlog/sinks/base_sink.h>

#include <memory>
#include <string_view>

#include "pybind.hpp"

namespace habana_mp::log {

// One destination. All functions are called with the GIL held, and the GIL is the only lock. A sink with its own mutex
// would deadlock (one thread holds the mutex and waits for the GIL to call Python, another holds the GIL and waits for
// the mutex). In a forked child that mutex could stay locked for ever by a thread that no longer exists.
class Destination : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  // True if each line gives the reason and the origin of the call.
  bool explains = false;
  // True if a line has the fields of a JSON object, not words for a person.
  bool is_json = false;

  // Called before a line is formatted, so that a line that is not wanted costs no formatting.
  virtual bool wants_line() { return true; }

  void write(std::string_view line);
  void write_buffer();

 protected:
  void flush_() override {}

  // Handles the Python error that a failed sink leaves set. The first failure of a series is reported as unraisable,
  // the others are not: a closed stdout would otherwise print a traceback for every operation of a training run. A
  // series ends when a line arrives.
  void settle();

  // True if the last line reached its destination. A line in a buffer does not count.
  bool has_arrived_ = true;

 private:
  bool failing_ = false;
};

// Writes to the object that is sys.stdout when a line is written.
std::shared_ptr<Destination> console();

// Writes to a file, which is emptied first unless `append`. Throws as Python's open() does: an OSError that names the
// path.
std::shared_ptr<Destination> file(pybind11::handle path, bool append, bool is_json);

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

}  // namespace habana_mp::log
