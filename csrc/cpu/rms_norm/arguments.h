// Normalisation by the root mean square: the arguments of the CPU kernels.
//
// For every row x [C] with a gain w [C], shared by all rows,
//   scale = 1 / sqrt(mean(x^2) + epsilon),   y = x * scale * w.
// The gradients are, with u = x * scale,
//   grad_x = scale * (grad_y w - u * mean(grad_y w u)),   grad_w = sum over rows of grad_y u.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

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

// The CPU kernels are compiled once per instruction set (kernels_simd.h), each with
//   void rms_norm_forward_f32(const RmsNormForward<float>&, int64_t begin, int64_t end);
//   void rms_norm_backward_f32(const RmsNormBackward<float>&, int64_t begin, int64_t end,
//                              float* grad_weight);
// and likewise _f64, for the rows from begin to end; what these rows contribute to the gradient of
// the weight is added to grad_weight [C].

}  // namespace bwt
