/* Has CPython's garbage collector run at one chosen place: at the first object that it tracks which is allocated at or
 * after a chosen allocation. Before Python 3.12 an allocation may run it there, in the middle of any function in C.
 *
 * The collector is CPython's own: the allocator lowers its threshold, and nothing else. So it runs only where it may:
 * not where it is disabled, and not where no object that it tracks is allocated.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

static PyMemAllocatorEx below;
static PyObject* set_threshold;
static long left;  /* allocations until the chosen one; 0 where none is chosen */
static long count; /* allocations since `choose` */
static int inside;

static void threshold(int value) {
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  inside = 1;
  PyObject* done = PyObject_CallFunction(set_threshold, "i", value);
  if (done == NULL) PyErr_Clear();
  Py_XDECREF(done);
  inside = 0;
  PyErr_Restore(type, error, traceback);
}

static void* allocate(void* context, size_t size) {
  (void)context;
  if (!inside) {
    ++count;
    if (left != 0 && --left == 0) threshold(1);
  }
  return below.malloc(below.ctx, size);
}

static void* allocate_zeros(void* context, size_t number, size_t size) {
  (void)context;
  if (!inside) {
    ++count;
    if (left != 0 && --left == 0) threshold(1);
  }
  return below.calloc(below.ctx, number, size);
}

static void* resize(void* context, void* memory, size_t size) {
  (void)context;
  return below.realloc(below.ctx, memory, size);
}

static void release(void* context, void* memory) {
  (void)context;
  below.free(below.ctx, memory);
}

void install(PyObject* function) {
  PyMemAllocatorEx ours = {NULL, allocate, allocate_zeros, resize, release};
  set_threshold = Py_NewRef(function);
  PyMem_GetAllocator(PYMEM_DOMAIN_OBJ, &below);
  PyMem_SetAllocator(PYMEM_DOMAIN_OBJ, &ours);
}

/* The allocation of this number from now on, counted from 1; with 0 none is. */
void choose(long number) {
  threshold(1 << 30);
  left = number;
  count = 0;
}

/* How many there were since. */
long allocations(void) { return count; }
