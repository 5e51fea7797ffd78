target_sources(_core PRIVATE
  src/host/aten.cpp
  src/host/callables.cpp
  src/host/callers.cpp
  src/host/casts_inside.cpp
  src/host/inside.cpp
  src/host/ledger.cpp
  src/host/modes.cpp
  src/host/reader.cpp
  src/host/symbols.cpp
  src/host/system_memory.cpp
  src/host/team.cpp
  src/host/thread_flag.cpp
  src/host/torch_api.cpp
  src/host/view.cpp
  src/host/taps.cpp
)
