// Where the lines of the cast log go: the console, a file, JSON lines or Python's logging, each behind a spdlog logger.
#pragma once

#include <spdlog/logger.h>

#include <memory>
#include <string>
#include <string_view>

#include "pybind.hpp"

namespace habana_mp::log {

// What a line is made of: words for a person, or the fields of a JSON object.
enum class Layout { text, json };

// One destination. Everything here is called with the GIL held, and the GIL is the only lock: the sinks have spdlog's
// null_mutex. A sink with a mutex of its own would deadlock (a thread that holds the mutex and waits for the GIL to
// call Python, another that holds the GIL and waits for the mutex), and in a forked child that mutex could stay locked
// for ever by a thread that no longer exists.
class Destination {
 public:
  Destination(spdlog::sink_ptr sink, Layout layout);
  virtual ~Destination() = default;
  Destination(const Destination&) = delete;
  Destination& operator=(const Destination&) = delete;

  Layout layout() const noexcept { return layout_; }

  // Does each line say why, and where the call comes from?
  bool explains = false;

  // Asked before a line is formatted: a line that nobody takes must not cost its formatting.
  virtual bool wants_line();

  void write(std::string_view line);
  void flush();

 protected:
  virtual void deliver(std::string_view line);
  void deliver_flush() { logger_.flush(); }
  // Did what was delivered last reach its end? A line in a buffer proves nothing.
  virtual bool has_arrived() const { return true; }

  // A sink that fails leaves its Python error set. The first failure of a row is reported as unraisable, the rest are
  // not: a closed stdout would otherwise print a traceback for every operation of a training run. A row ends where
  // something `has_arrived` at its end.
  void settle(bool has_arrived);

 private:
  spdlog::logger logger_;
  Layout layout_;
  bool failing_ = false;
};

// Whatever sys.stdout is when a line is written.
std::shared_ptr<Destination> console();

// A file, emptied first unless `append`. Throws what Python's open() would throw: an OSError that names the path.
std::shared_ptr<Destination> file(pybind11::handle path, bool append, Layout layout);

// A logging.Logger.
std::shared_ptr<Destination> python(pybind11::object logger);

// From here on a file gets each line at once: a forked child mostly ends through os._exit(), which flushes nothing.
void write_each_line_at_once() noexcept;

// Which destination is in force; an empty pointer turns the log off. Defined in log.cpp.
std::shared_ptr<Destination> destination();
void send_to(std::shared_ptr<Destination> destination);
void flush();

// Turns the log off for good and lets lines in other threads finish.
void shut_down();

// A line left in the buffer across a fork would be written by both processes.
void before_fork();

}  // namespace habana_mp::log
