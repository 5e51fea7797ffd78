target_sources(_core PRIVATE
  src/accel/buffers/buffers.cpp
)
