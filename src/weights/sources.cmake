target_sources(_core PRIVATE
  src/weights/bindings.cpp
  src/weights/cache.cpp
  src/weights/escapes.cpp
  src/weights/library.cpp
  src/weights/packed.cpp
  src/weights/panels.cpp
  src/weights/probe.cpp
  src/weights/trial.cpp
)
