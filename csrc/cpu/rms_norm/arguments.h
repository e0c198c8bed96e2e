// Normalisation by the root mean square, of rows or of sums of rows: the arguments of the CPU
// kernels of rms_norm and add_rms_norm.
//
// For every row [C], with a gain w [C] shared by the rows that belong to one model,
//   t = x, or x + (branch + bias),   scale = 1 / sqrt(mean(t^2) + epsilon),   y = t * scale * w.
// The gradients are, with u = t * scale,
//   grad_t = scale * (grad_y w - u * mean(grad_y w u)) (+ what t gets elsewhere),
//   grad_w = sum over rows of grad_y u,   grad_bias = sum over rows of grad_t.
#pragma once

#include <cstdint>

namespace bwt {

// Pointers to one row, or to what its model has.
template <class T>
struct RmsNormForward {
  const T* x;
  const T* branch;  // or null
  const T* bias;    // or null
  const T* weight;
  T* total;  // null if branch is
  T* y;
  T* scale;
};

template <class T>
struct RmsNormBackward {
  const T* total;
  const T* weight;
  T scale;  // as returned by the forward pass
  const T* grad_y;
  const T* grad_total;  // or null: nothing
  T* grad_x;
  T* grad_weight;  // added to
  T* grad_bias;    // added to, or null
};

}  // namespace bwt
