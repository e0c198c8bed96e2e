// The Gaussian error linear unit: the arguments of the CPU kernels.
//
//   y = x Phi(x),   slope = dy/dx = Phi(x) + x phi(x),
// with Phi and phi the distribution function and the density of the standard normal. The slope
// costs little beside y; saved in place of x, it makes the gradient a product.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

namespace bwt {

template <class T>
struct Gelu {
  const T* x;
  T* y;
  T* slope;  // or null
};

// The CPU kernels are compiled once per instruction set (kernels_simd.h), each with
//   void gelu_f32(const Gelu<float>&, int64_t begin, int64_t end);
// and likewise _f64, for the elements from begin to end. An element is always computed in the same
// way, so results do not depend on how elements are shared by threads.

}  // namespace bwt
