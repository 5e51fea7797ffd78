target_sources(_core PRIVATE
  src/engine/attempt.cpp
  src/engine/bindings.cpp
  src/engine/call.cpp
  src/engine/cast_arguments.cpp
  src/engine/facts.cpp
  src/engine/hooks.cpp
  src/engine/known_tensors.cpp
  src/engine/modules.cpp
  src/engine/originals.cpp
  src/engine/reading.cpp
  src/engine/region.cpp
  src/engine/slots.cpp
  src/engine/state.cpp
  src/engine/target.cpp
  src/engine/tracing.cpp
  src/engine/watched.cpp
)
