target_sources(_core PRIVATE
  src/accel/blocks/blocks.cpp
)
