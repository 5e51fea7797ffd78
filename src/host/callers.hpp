// Who called, and who raised: what the frames of running Python code tell, and the names of torch's modules by which
// they tell it.
#pragma once

#include "host/frames.hpp"

namespace habana_mp::host {

// Finds out what an exception tells of whoever raised it.
void bind_callers();

// The file that a code object was read from, borrowed. The functions of a file share the string.
PyObject* file_of(PyObject* code) noexcept;
// The name of its function, borrowed.
PyObject* function_of(PyObject* code) noexcept;
// Does its name begin with one of these, a tuple of strings?
bool is_of_file(PyObject* code, PyObject* beginnings) noexcept;

// Is the innermost Python code that of torch.distributed?
bool caller_is_distributed();

// Is this process a worker of a DataLoader? Given the namespace of torch.utils.data._utils.worker, or null.
bool is_worker(PyObject* worker_namespace);

// Of the exception that is set: does torch.jit.trace record the call that has just failed? It crashes at the next
// operation after such a one. (It records no more by now, so it cannot be asked.) Yes where there is no memory to find
// out.
bool was_recorded_by_jit();

// Of the exception that is set: has somebody's own code inside the call, a hook of saved tensors or a mode, raised it
// by a `raise`, and not to tell of one of torch's? NotImplementedError says that there is no kernel, whoever says it.
// Yes where there is no memory to find out.
bool was_raised_by_others();

// Of every __init__ that constructs an object of this class, decorated or not, the code and what it wraps: a list of
// pairs. Null with an exception set.
Owned init_codes(PyTypeObject* type);
// The pair with this code, borrowed, or null.
PyObject* pair_of(PyObject* codes, PyObject* code);

}  // namespace habana_mp::host
