// The Gaussian error linear unit: the arguments of the CPU kernels.
//
//   y = x Phi(x),   slope = dy/dx = Phi(x) + x phi(x),
// with Phi and phi the distribution function and the density of the standard normal. The slope
// costs little beside y; saved in place of x, it makes the gradient a product.
#pragma once

#include <cstdint>

namespace bwt {

template <class T>
struct Gelu {
  const T* x;
  T* y;
  T* slope;  // or null
};

}  // namespace bwt
