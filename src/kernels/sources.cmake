# The kernels; included from the top CMakeLists.txt after the target _core is defined. Each instruction set has its own
# files with their own flags. The choice between them is made at run time, so the rest of the module keeps the baseline
# flags.
set(_kernels "${CMAKE_CURRENT_LIST_DIR}")

target_sources(_core PRIVATE
  "${_kernels}/cast_scalar.cpp"
  "${_kernels}/dispatch.cpp"
  "${_kernels}/job.cpp"
  "${_kernels}/magnitude.cpp"
  "${_kernels}/product.cpp"
  "${_kernels}/threads.cpp"
)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
  target_sources(_core PRIVATE
    "${_kernels}/cast_avx2.cpp"
    "${_kernels}/cast_avx512.cpp"
    "${_kernels}/cast_avx512bf16.cpp"
    "${_kernels}/product_avx2.cpp"
    "${_kernels}/product_avx512.cpp"
    "${_kernels}/product_avx512bf16.cpp"
  )
  set(_avx512 -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512)
  set_source_files_properties("${_kernels}/cast_avx2.cpp" "${_kernels}/product_avx2.cpp"
    PROPERTIES COMPILE_OPTIONS "-mavx2;-mf16c;-mfma")
  set_source_files_properties("${_kernels}/cast_avx512.cpp" "${_kernels}/product_avx512.cpp"
    PROPERTIES COMPILE_OPTIONS "${_avx512}")
  set_source_files_properties("${_kernels}/cast_avx512bf16.cpp" "${_kernels}/product_avx512bf16.cpp"
    PROPERTIES COMPILE_OPTIONS "${_avx512};-mavx512bf16")
  include(CheckCXXCompilerFlag)
  check_cxx_compiler_flag("-mamx-tile -mamx-bf16" HABANA_MP_AMX)
  if(HABANA_MP_AMX)
    target_sources(_core PRIVATE "${_kernels}/product_amx.cpp")
    target_compile_definitions(_core PRIVATE HABANA_MP_AMX)
    set_source_files_properties("${_kernels}/product_amx.cpp"
      PROPERTIES COMPILE_OPTIONS "${_avx512};-mavx512bf16;-mamx-tile;-mamx-bf16")
  endif()
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  target_sources(_core PRIVATE "${_kernels}/cast_neon.cpp" "${_kernels}/product_neon.cpp")
  include(CheckCXXCompilerFlag)
  check_cxx_compiler_flag(-march=armv8.2-a+bf16 HABANA_MP_NEON_BF16)
  if(HABANA_MP_NEON_BF16)
    target_sources(_core PRIVATE "${_kernels}/cast_neon_bf16.cpp")
    target_compile_definitions(_core PRIVATE HABANA_MP_NEON_BF16)
    set_source_files_properties("${_kernels}/cast_neon_bf16.cpp" PROPERTIES COMPILE_OPTIONS "-march=armv8.2-a+bf16")
  endif()
endif()
