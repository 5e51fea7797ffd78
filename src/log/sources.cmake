target_sources(_core PRIVATE
  src/log/log.cpp
  src/log/printable.cpp
  src/log/sinks.cpp
)
