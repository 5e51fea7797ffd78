target_sources(_core PRIVATE
  src/log/destinations.cpp
  src/log/log.cpp
)
