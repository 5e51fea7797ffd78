target_sources(_core PRIVATE
  src/tensor/blocks.cpp
  src/tensor/buffers.cpp
  src/tensor/cast.cpp
)
