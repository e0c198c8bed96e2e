// add_bias for one instruction-set level. Included once per level by simd/foreach_level.h.
#include "cpu/simd/vector.h"

namespace bwt {
namespace BWT_SIMD {
namespace {

// y = x + bias; y may be one of them.
template <class T>
void add_rows(const T* x, const T* bias, T* y, int64_t size) {
  each_vector<T>(size, [&](int64_t i, int64_t count) {
    store_at_most<T>(y + i, load_at_most(x + i, count) + load_at_most(bias + i, count), count);
  });
}

}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt
