# Builds the core for aarch64 on another machine; see `make test-aarch64`. Python's headers are those of build/emulated/root.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(_headers "${CMAKE_CURRENT_LIST_DIR}/../../build/emulated/root/usr/include")
set(Python_INCLUDE_DIR "${_headers}/python3.11")
set(PYTHON_MODULE_EXTENSION ".cpython-311-aarch64-linux-gnu.so")
# pyconfig.h is in a folder of its own there.
set(CMAKE_CXX_STANDARD_INCLUDE_DIRECTORIES "${_headers}")
