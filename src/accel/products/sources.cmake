target_sources(_core PRIVATE
  src/accel/products/own_products.cpp
  src/accel/products/plug.cpp
)
