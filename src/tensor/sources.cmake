target_sources(_core PRIVATE
  src/tensor/aten.cpp
  src/tensor/blocks.cpp
  src/tensor/buffers.cpp
  src/tensor/cast.cpp
  src/tensor/casts_inside.cpp
  src/tensor/finding.cpp
  src/tensor/image_order.cpp
  src/tensor/inside.cpp
  src/tensor/reader.cpp
  src/tensor/team.cpp
  src/tensor/thread_flag.cpp
  src/tensor/torch_api.cpp
  src/tensor/view.cpp
)
