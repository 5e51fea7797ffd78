target_sources(_core PRIVATE
  src/accel/packed/image_order.cpp
  src/accel/packed/library.cpp
  src/accel/packed/packed.cpp
  src/accel/packed/panels.cpp
  src/accel/packed/plug.cpp
  src/accel/packed/probe.cpp
  src/accel/packed/trial.cpp
)
