// The builtins of torch whose calls are tapped while a policy is installed.
#pragma once

// Each builtin is one row: its name here, its path in torch._C, and true if some releases lack it. engine/taps.cpp
// has a stub for each, `NAME_stub`.
#define HABANA_MP_TAPPED_BUILTINS(BUILTIN)                                                     \
  BUILTIN(autocast_set_enabled, "set_autocast_enabled", false)                                 \
  BUILTIN(autocast_set_dtype, "set_autocast_dtype", false)                                     \
  BUILTIN(autocast_increment, "autocast_increment_nesting", false)                             \
  BUILTIN(autocast_decrement, "autocast_decrement_nesting", false)                             \
  /* The first call in nn.Module.__init__. */                                                  \
  BUILTIN(module_constructed, "_log_api_usage_once", false)                                    \
  /* It makes an nn.Parameter. */                                                              \
  BUILTIN(make_subclass, "TensorBase._make_subclass", false)                                   \
  BUILTIN(is_autocast_enabled, "is_autocast_enabled", false)                                   \
  BUILTIN(to_dlpack, "_to_dlpack", false)                                                      \
  BUILTIN(to_dlpack_versioned, "_to_dlpack_versioned", true)                                   \
  BUILTIN(data_address, "_data_address", false)                                                \
  BUILTIN(set_version_counter, "_autograd._unsafe_set_version_counter", false)                 \
  /* Without these two no casts of weights are cached (patches/torch/uncounted_writers.py). */ \
  BUILTIN(find_operator, "_jit_get_operation", true)                                           \
  BUILTIN(find_overload, "_get_operation_overload", true)
