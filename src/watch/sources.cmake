target_sources(_core PRIVATE
  src/watch/calls.cpp
  src/watch/modules.cpp
  src/watch/places.cpp
  src/watch/records.cpp
  src/watch/values.cpp
)
