// The Gaussian error linear unit of a sum: the arguments of the CPU kernels.
//
// With z = x + bias, the bias [C] being shared by the rows [C] of x that belong to one model,
//   y = z Phi(z),   dy/dz = Phi(z) + z phi(z),
// with Phi and phi the distribution function and the density of the standard normal. The slope is
// computed again for the gradient: that takes no longer than to read it from memory.
#pragma once

#include <cstdint>

namespace bwt {

// Elements next to each other: a row, or some of all elements if there is no bias.
template <class T>
struct Gelu {
  const T* x;
  const T* bias;  // or null
  T* y;
};

template <class T>
struct GeluBackward {
  const T* x;
  const T* bias;
  const T* grad_y;
  T* grad_x;
  T* grad_bias;  // added to, or null where bias is
};

}  // namespace bwt
