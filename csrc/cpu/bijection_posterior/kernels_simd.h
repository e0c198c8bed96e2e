// The kernels of bijection_posterior for one instruction-set level. Included once per level by
// simd/foreach_level.h, as is everything that it includes.

namespace bwt {
namespace BWT_SIMD {
namespace {

template <class Number>
struct Lanes {
  static constexpr int kCount = BWT_SIMD_BYTES / sizeof(Number);
  typedef Number Vector __attribute__((vector_size(BWT_SIMD_BYTES), aligned(sizeof(Number))));
};

template <>
struct Lanes<Wide> {
  static constexpr int kCount = 1;
  using Vector = Wide;
};

}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt

#include "cpu/bijection_posterior/noiseless_simd.h"
#include "cpu/bijection_posterior/noisy_simd.h"
