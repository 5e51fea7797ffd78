target_sources(_core PRIVATE
  src/weights/cache.cpp
  src/weights/escapes.cpp
  src/weights/memory_limit.cpp
)
