// Finds the code that called or that raised an exception: reads the frames of running Python code and compares the
// names of torch's modules.
#pragma once

#include "host/frames.hpp"

namespace habana_mp::host {

// Returns the file name of a code object, borrowed. The functions of a file share the string.
PyObject* file_of(PyObject* code) noexcept;
// Returns the name of the code's function, borrowed.
PyObject* function_of(PyObject* code) noexcept;
// True for code that torch calls in place of an operation, and that calls the operation for the caller.
bool intercepts_calls(PyObject* code) noexcept;
// True if both code objects have the same name and first line in the same file: they are of the same function.
bool have_same_place(PyObject* code, PyObject* other) noexcept;
// True if the file name begins with one of `beginnings`, a tuple of strings.
bool is_of_file(PyObject* code, PyObject* beginnings) noexcept;

// True if the innermost Python code belongs to torch.distributed.
bool caller_is_distributed();

// True if this process is a DataLoader worker. `worker_namespace` is that of torch.utils.data._utils.worker, or null.
bool is_worker(PyObject* worker_namespace);

// True if torch.jit.trace was recording the call that raised the current exception. After such a failure torch crashes
// at the next operation. Recording has already stopped, so the tracer's frame is searched for.
bool jit_trace_was_recording();

// True if the current exception comes from other Python code inside the call (a saved-tensor hook, a mode). False if it
// was raised while another exception, such as one of torch's, was handled. False for NotImplementedError, which always
// means that there is no kernel.
bool raised_by_user_code();

// True if the current exception is about a dtype, as torch's errors word it: "must have the same dtype", "expected
// scalar type", "unsupported ScalarType", "not implemented for 'BFloat16'".
bool error_is_about_a_dtype();

// Returns a list of pairs, one for each __init__ that constructs an object of this class: its code, and the function
// that it wraps or None. Null with an exception set.
Owned init_codes(PyTypeObject* type);
// Returns the pair with this code, borrowed, or null.
PyObject* pair_of(PyObject* codes, PyObject* code);

// Calls `work` in this thread, with the GIL, when Python clears the thread's state. Destructors of thread_local objects
// run later, without the GIL. Only the first call with a name registers its work.
void at_thread_end(const char* name, void (*work)());

}  // namespace habana_mp::host
