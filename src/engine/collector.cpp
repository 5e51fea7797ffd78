#include "engine/collector.hpp"

#include "errors.hpp"
#include "host/held_memory.hpp"

namespace habana_mp::engine {

namespace {

// During its lifetime the collector does not know the objects of a list, nor the list itself.
class Untracked {
 public:
  explicit Untracked(PyObject* list) noexcept : list_(list) {
    PyObject_GC_UnTrack(list_);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list_); ++i) PyObject_GC_UnTrack(PyList_GET_ITEM(list_, i));
  }
  ~Untracked() {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list_); ++i) track(PyList_GET_ITEM(list_, i));
    track(list_);
  }
  Untracked(const Untracked&) = delete;
  Untracked& operator=(const Untracked&) = delete;

 private:
  // A dict is tracked again as soon as it gets an item, which code that audits may cause.
  static void track(PyObject* object) noexcept {
    if (PyObject_GC_IsTracked(object) == 0) PyObject_GC_Track(object);
  }

  PyObject* list_;
};

// The functions of the module `gc` that are used.
struct Functions {
  explicit Functions(PyObject* gc) noexcept
      : get_objects(PyObject_GetAttrString(gc, "get_objects")),
        freeze(get_objects ? PyObject_GetAttrString(gc, "freeze") : nullptr),
        unfreeze(freeze ? PyObject_GetAttrString(gc, "unfreeze") : nullptr) {}

  // False if other code has replaced one of them, by a function that may do anything.
  [[nodiscard]] bool are_pythons() const noexcept {
    return PyCFunction_CheckExact(get_objects.get()) && PyCFunction_CheckExact(freeze.get()) &&
           PyCFunction_CheckExact(unfreeze.get());
  }

  Owned get_objects;
  Owned freeze;
  Owned unfreeze;
};

}  // namespace

Owned objects_with_frozen() noexcept {
  const Owned gc(PyImport_ImportModule("gc"));
  if (!gc) return {};
  const Functions functions(gc.get());
  if (!functions.unfreeze) return {};
  Owned objects(PyObject_CallNoArgs(functions.get_objects.get()));
  if (!objects || !functions.are_pythons()) return objects;
  // CPython lists frozen objects only once it has put them back, and freezes all objects or none. So the others are
  // taken away meanwhile.
  Owned frozen;
  {
    const host::NoCollection off;
    const Untracked apart(objects.get());
    if (!Owned(PyObject_CallNoArgs(functions.unfreeze.get()))) return {};
    frozen = Owned(PyObject_CallNoArgs(functions.get_objects.get()));
    const HeldError held;
    if (!Owned(PyObject_CallNoArgs(functions.freeze.get()))) clear_error();
  }
  const Py_ssize_t end = PyList_GET_SIZE(objects.get());
  if (!frozen || PyList_SetSlice(objects.get(), end, end, frozen.get()) != 0) return {};
  return objects;
}

}  // namespace habana_mp::engine
