// Runs on every processor. The tests compare the other instruction sets with it.
#include "kernels/bits.hpp"
#include "kernels/table.hpp"

namespace habana_mp::kernels {
namespace {

template <class Cast>
void run(const void* source, void* target, std::size_t count) noexcept {
  cast_each<Cast>(static_cast<const unsigned char*>(source), static_cast<unsigned char*>(target), count);
}

}  // namespace

const Table scalar_table = {
    "scalar",
    {{nullptr, run<F32ToBf16>, run<F32ToF16>},
     {run<Bf16ToF32>, nullptr, run<Bf16ToF16>},
     {run<F16ToF32>, run<F16ToBf16>, nullptr}},
    nullptr,
    nullptr,
    false,
};

}  // namespace habana_mp::kernels
