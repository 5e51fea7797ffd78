target_sources(_core PRIVATE
  src/engine/bindings.cpp
  src/engine/call.cpp
  src/engine/hooks.cpp
  src/engine/measured.cpp
  src/engine/region.cpp
  src/engine/slots.cpp
  src/engine/state.cpp
  src/engine/target.cpp
)
