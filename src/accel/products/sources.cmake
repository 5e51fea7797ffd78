target_sources(_core PRIVATE
  src/accel/products/image_order.cpp
  src/accel/products/library.cpp
  src/accel/products/packed_weights.cpp
  src/accel/products/own_products.cpp
  src/accel/products/plug.cpp
  src/accel/products/probe.cpp
  src/accel/products/trial.cpp
)
