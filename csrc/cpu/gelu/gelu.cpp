// CPU implementation of bwt::gelu: threads over rows or elements, SIMD inside.
#include <torch/csrc/stable/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "cpu/checks.h"
#include "cpu/gelu/arguments.h"
#include "cpu/rows.h"
#include "cpu/tensors.h"

#define BWT_SIMD_FILE "cpu/gelu/kernels_simd.h"
#include "cpu/simd/foreach_level.h"

namespace bwt {
namespace {

ArgumentCheck check_arguments(const Tensor& x, const std::optional<Tensor>& bias) {
  const ArgumentCheck check("gelu", x.scalar_type(), "x");
  if (bias) check.of_rows("bias", *bias, x);
  return check;
}

template <class T>
void forward(const Tensor& x, const std::optional<Tensor>& bias, const Tensor& y) {
  const T* from = data<T>(x);
  T* to = mutable_data<T>(y);
  if (!bias) {
    torch::stable::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
      const Gelu<T> some{from + begin, nullptr, to + begin};
      BWT_SIMD_CALL(gelu_forward, some, end - begin);
    });
    return;
  }
  const ModelRows rows = model_rows(*bias, x);
  torch::stable::parallel_for(0, rows.all(), rows.grain(), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* added = data<T>(*bias) + rows.model(row) * rows.size;
      const Gelu<T> one{from + row * rows.size, added, to + row * rows.size};
      BWT_SIMD_CALL(gelu_forward, one, rows.size);
    }
  });
}

Tensor gelu_forward(const Tensor& x, const std::optional<Tensor>& bias) {
  check_arguments(x, bias);
  const Tensor dense = packed(x);
  const Tensor y = allocate(dense, dense.sizes());
  auto run = x.scalar_type() == ScalarType::Float ? forward<float> : forward<double>;
  if (x.numel() > 0) run(dense, packed(bias), y);
  return y;
}

template <class T>
void backward(const Tensor& grad_y, const Tensor& x, const std::optional<Tensor>& bias,
              const Tensor& grad_x, const Tensor& grad_bias) {
  const T *from = data<T>(x), *grad = data<T>(grad_y);
  T* to = mutable_data<T>(grad_x);
  if (!bias) {
    torch::stable::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
      const GeluBackward<T> some{from + begin, nullptr, grad + begin, to + begin, nullptr};
      BWT_SIMD_CALL(gelu_backward, some, end - begin);
    });
    return;
  }
  const ModelRows rows = model_rows(*bias, x);
  std::vector<T> sums(rows.pieces() * rows.size);
  torch::stable::parallel_for(0, rows.pieces(), rows.piece_grain(), [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      const T* added = data<T>(*bias) + rows.piece_model(i) * rows.size;
      for (int64_t row = rows.piece_begin(i); row < rows.piece_end(i); ++row) {
        const int64_t at = row * rows.size;
        const GeluBackward<T> one{from + at, added, grad + at, to + at,
                                  sums.data() + i * rows.size};
        BWT_SIMD_CALL(gelu_backward, one, rows.size);
      }
    }
  });
  rows.add_up(sums.data(), rows.size, mutable_data<T>(grad_bias));
}

std::tuple<Tensor, Tensor> gelu_backward(const Tensor& grad_y, const Tensor& x,
                                         const std::optional<Tensor>& bias) {
  check_arguments(x, bias).like("grad_y", grad_y, x);
  const Tensor dense = packed(x);
  const Tensor grad_x = allocate(dense, dense.sizes());
  const Tensor grad_bias = bias ? allocate(*bias, bias->sizes()) : allocate(x, {0});
  auto run = x.scalar_type() == ScalarType::Float ? backward<float> : backward<double>;
  run(packed(grad_y), dense, packed(bias), grad_x, grad_bias);
  return {grad_x, grad_bias};
}

}  // namespace
}  // namespace bwt

STABLE_TORCH_LIBRARY_IMPL(bwt, CPU, m) {
  m.impl("gelu", TORCH_BOX(&bwt::gelu_forward));
  m.impl("gelu_backward", TORCH_BOX(&bwt::gelu_backward));
}
