// Normalisation by the root mean square: the arguments of the CPU kernels.
//
// For every row x [C] with a gain w [C], shared by all rows,
//   scale = 1 / sqrt(mean(x^2) + epsilon),   y = x * scale * w.
// The gradients are, with u = x * scale,
//   grad_x = scale * (grad_y w - u * mean(grad_y w u)),   grad_w = sum over rows of grad_y u.
#pragma once

#include <cstdint>

namespace bwt {

template <class T>
struct RmsNormForward {
  int64_t size;  // C >= 1
  T epsilon;
  const T* x;       // [rows, C]
  const T* weight;  // [C]
  T* y;             // [rows, C]
  T* scale;         // [rows]
};

template <class T>
struct RmsNormBackward {
  int64_t size;
  const T* x;
  const T* weight;
  const T* scale;   // as returned by the forward pass
  const T* grad_y;  // [rows, C]
  T* grad_x;        // [rows, C]
};

}  // namespace bwt
