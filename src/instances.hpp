// Objects of pybind11 classes that are made at any time, also when memory runs out.
#pragma once

#include <cstdlib>
#include <new>
#include <typeinfo>
#include <utility>

#include "from_c.hpp"
#include "pybind.hpp"

namespace habana_mp {

// Memory that is reserved for code that cannot report a failure.
class Reserve {
 public:
  // Fills the reserve. Throws std::bad_alloc when memory runs out.
  static void fill() {
    if (memory_ == nullptr) memory_ = std::malloc(size);
    if (memory_ == nullptr) throw std::bad_alloc();
  }
  // Returns the reserve to the C library. False if it is already used up.
  static bool use() noexcept {
    if (memory_ == nullptr) return false;
    std::free(std::exchange(memory_, nullptr));
    return true;
  }

 private:
  static constexpr std::size_t size = std::size_t{1} << 18;
  static inline void* memory_ = nullptr;  // guarded by the GIL
};

// Returns an object before its constructor runs. pybind11 does not check for null here, so the class throws
// std::bad_alloc when memory runs out.
inline PyObject* new_instance(PyTypeObject* type, PyObject*, PyObject*) {
  return pybind11::detail::make_new_instance(type);
}

// After the constructor pybind11 registers the object in a table, and an exception there ends the process. So the
// constructors of such a class call `Reserve::fill`, and the table uses that memory when there is no other.
template <typename T, typename... Options>
void note_with_reserve(const pybind11::class_<T, Options...>& python_class) {
  namespace detail = pybind11::detail;
  static void (*original)(detail::instance*, const void*) = nullptr;
  detail::type_info* const type = detail::get_type_info(typeid(T));
  original = type->init_instance;
  type->init_instance = [](detail::instance* made, const void* holder) {
    for (;;) {
      try {
        original(made, holder);
        return;
      } catch (const std::bad_alloc&) {
        if (!Reserve::use()) throw;
      }
    }
  };
  auto* const class_object = reinterpret_cast<PyTypeObject*>(python_class.ptr());
  class_object->tp_alloc = [](PyTypeObject* wanted, Py_ssize_t items) {
    return checked(PyType_GenericAlloc(wanted, items));
  };
  class_object->tp_new = from_c<new_instance>.pointer();
  PyType_Modified(class_object);
  // Otherwise the first object of the class would allocate this.
  detail::all_type_info(class_object);
}

}  // namespace habana_mp
