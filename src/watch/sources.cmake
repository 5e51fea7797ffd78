target_sources(_core PRIVATE
  src/watch/calls.cpp
  src/watch/events.cpp
  src/watch/finite.cpp
  src/watch/modules.cpp
  src/watch/noticed.cpp
  src/watch/places.cpp
  src/watch/records.cpp
)
