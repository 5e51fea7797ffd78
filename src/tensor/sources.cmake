target_sources(_core PRIVATE
  src/tensor/cast.cpp
  src/tensor/finding.cpp
  src/tensor/inside.cpp
  src/tensor/reader.cpp
  src/tensor/torch_api.cpp
)
