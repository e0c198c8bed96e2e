// CPU implementation of bwt::rms_norm: threads over rows, SIMD inside one.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "cpu/checks.h"
#include "cpu/pieces.h"
#include "cpu/rms_norm/arguments.h"
#include "cpu/tensors.h"

#define BWT_SIMD_FILE "cpu/rms_norm/kernels_simd.h"
#include "cpu/simd/foreach_level.h"

namespace bwt {
namespace {

template <class T>
void forward(const Tensor& x, const Tensor& weight, double epsilon, const Tensor& y,
             const Tensor& scale) {
  const RmsNormForward<T> a{weight.numel(),  static_cast<T>(epsilon), data<T>(x),
                            data<T>(weight), mutable_data<T>(y),      mutable_data<T>(scale)};
  torch::stable::parallel_for(
      0, scale.numel(), 1 + kGrain / a.size,
      [&](int64_t begin, int64_t end) { BWT_SIMD_CALL(forward_rows, a, begin, end); });
}

ArgumentCheck check_arguments(const Tensor& x, const Tensor& weight) {
  const ArgumentCheck check("rms_norm", x.scalar_type(), "x");
  check.that(x.dim() >= 1 && x.size(x.dim() - 1) >= 1, "x");
  check.sizes("weight", weight, {x.size(x.dim() - 1)});
  return check;
}

std::tuple<Tensor, Tensor> rms_norm_forward(const Tensor& x, const Tensor& weight, double epsilon) {
  check_arguments(x, weight);
  const Tensor dense = packed(x);
  const Tensor y = allocate(dense, dense.sizes());
  const Tensor scale = allocate(dense, {x.numel() / weight.numel()});
  auto run = x.scalar_type() == ScalarType::Float ? forward<float> : forward<double>;
  run(dense, packed(weight), epsilon, y, scale);
  return {y, scale};
}

template <class T>
void backward(const Tensor& grad_y, const Tensor& x, const Tensor& weight, const Tensor& scale,
              const Tensor& grad_x, const Tensor& grad_weight) {
  const RmsNormBackward<T> a{weight.numel(), data<T>(x),      data<T>(weight),
                             data<T>(scale), data<T>(grad_y), mutable_data<T>(grad_x)};
  const int64_t rows = scale.numel(), pieces = std::min(rows, kGradientPieces);
  std::vector<T> sums(pieces * a.size);
  const int64_t grain = 1 + pieces * kGrain / (1 + x.numel());
  torch::stable::parallel_for(0, pieces, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      BWT_SIMD_CALL(backward_rows, a, rows * i / pieces, rows * (i + 1) / pieces,
                    sums.data() + i * a.size);
    }
  });
  T* total = mutable_data<T>(grad_weight);
  for (int64_t i = 0; i < a.size; ++i) {
    double sum = 0;
    for (int64_t piece = 0; piece < pieces; ++piece) sum += sums[piece * a.size + i];
    total[i] = static_cast<T>(sum);
  }
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad_y, const Tensor& x,
                                             const Tensor& weight, const Tensor& scale) {
  const ArgumentCheck same = check_arguments(x, weight);
  same.that(
      grad_y.scalar_type() == same.type && std::equal(grad_y.sizes().begin(), grad_y.sizes().end(),
                                                      x.sizes().begin(), x.sizes().end()),
      "grad_y");
  same.sizes("scale", scale, {x.numel() / weight.numel()});
  const Tensor dense = packed(x);
  const Tensor grad_x = allocate(dense, dense.sizes());
  const Tensor grad_weight = allocate(weight, weight.sizes());
  auto run = x.scalar_type() == ScalarType::Float ? backward<float> : backward<double>;
  run(packed(grad_y), dense, packed(weight), packed(scale), grad_x, grad_weight);
  return {grad_x, grad_weight};
}

}  // namespace
}  // namespace bwt

STABLE_TORCH_LIBRARY_IMPL(bwt, CPU, m) {
  m.impl("rms_norm", TORCH_BOX(&bwt::rms_norm_forward));
  m.impl("rms_norm_backward", TORCH_BOX(&bwt::rms_norm_backward));
}
