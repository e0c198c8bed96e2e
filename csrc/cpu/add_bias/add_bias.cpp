// CPU implementation of bwt::add_bias: a parameter [C] or [M, C] is added to the rows it belongs
// to, and its gradient is the sum of theirs. The kernels that add it in passing (gelu,
// add_rms_norm) sum in the same order.
#include <torch/csrc/stable/library.h>

#include <vector>

#include "cpu/checks.h"
#include "cpu/rows.h"
#include "cpu/tensors.h"

#define BWT_SIMD_FILE "cpu/add_bias/kernels_simd.h"
#include "cpu/simd/foreach_level.h"

namespace bwt {
namespace {

template <class T>
void forward(const Tensor& x, const Tensor& bias, const Tensor& y) {
  const ModelRows rows = model_rows(bias, x);
  torch::stable::parallel_for(0, rows.all(), rows.grain(), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      BWT_SIMD_CALL(add_rows, data<T>(x) + row * rows.size,
                    data<T>(bias) + rows.model(row) * rows.size,
                    mutable_data<T>(y) + row * rows.size, rows.size);
    }
  });
}

Tensor add_bias_forward(const Tensor& x, const Tensor& bias) {
  ArgumentCheck("add_bias", x.scalar_type(), "x").of_rows("bias", bias, x);
  const Tensor y = allocate(x, x.sizes());
  auto run = x.scalar_type() == ScalarType::Float ? forward<float> : forward<double>;
  run(packed(x), packed(bias), y);
  return y;
}

template <class T>
void backward(const Tensor& grad_y, const Tensor& grad_bias) {
  const ModelRows rows = model_rows(grad_bias, grad_y);
  std::vector<T> sums(rows.pieces() * rows.size);
  torch::stable::parallel_for(0, rows.pieces(), rows.piece_grain(), [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      T* sum = sums.data() + i * rows.size;
      for (int64_t row = rows.piece_begin(i); row < rows.piece_end(i); ++row) {
        BWT_SIMD_CALL(add_rows, sum, data<T>(grad_y) + row * rows.size, sum, rows.size);
      }
    }
  });
  rows.add_up(sums.data(), rows.size, mutable_data<T>(grad_bias));
}

Tensor add_bias_backward(const Tensor& grad_y, const Tensor& bias) {
  ArgumentCheck("add_bias", grad_y.scalar_type(), "grad_y").of_rows("bias", bias, grad_y);
  const Tensor grad_bias = allocate(bias, bias.sizes());
  auto run = grad_y.scalar_type() == ScalarType::Float ? backward<float> : backward<double>;
  run(packed(grad_y), grad_bias);
  return grad_bias;
}

}  // namespace
}  // namespace bwt

STABLE_TORCH_LIBRARY_IMPL(bwt, CPU, m) {
  m.impl("add_bias", TORCH_BOX(&bwt::add_bias_forward));
  m.impl("add_bias_backward", TORCH_BOX(&bwt::add_bias_backward));
}
