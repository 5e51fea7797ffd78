target_sources(_core PRIVATE
  src/log/bindings.cpp
  src/log/log.cpp
  src/log/printable.cpp
  src/log/sinks.cpp
)
