target_sources(_core PRIVATE
  src/accel/slower/slower.cpp
)
