target_sources(_core PRIVATE
  src/tensor/cast.cpp
)
