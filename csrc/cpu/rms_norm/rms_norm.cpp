// CPU implementation of bwt::rms_norm and bwt::add_rms_norm: threads over rows, SIMD inside one.
#include <torch/csrc/stable/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "cpu/checks.h"
#include "cpu/rms_norm/arguments.h"
#include "cpu/rows.h"
#include "cpu/tensors.h"

#define BWT_SIMD_FILE "cpu/rms_norm/kernels_simd.h"
#include "cpu/simd/foreach_level.h"

namespace bwt {
namespace {

// All of them dense; empty where there is no branch or no bias.
struct Inputs {
  Tensor x, weight;
  std::optional<Tensor> branch, bias;
};

template <class T>
const T* data_or_null(const std::optional<Tensor>& tensor, int64_t offset) {
  return tensor ? data<T>(*tensor) + offset : nullptr;
}

template <class T>
void forward(const Inputs& inputs, double epsilon, const std::optional<Tensor>& total,
             const Tensor& y, const Tensor& scale) {
  const ModelRows rows = model_rows(inputs.weight, inputs.x);
  torch::stable::parallel_for(0, rows.all(), rows.grain(), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = row * rows.size, model = rows.model(row) * rows.size;
      const RmsNormForward<T> one{data<T>(inputs.x) + at,
                                  data_or_null<T>(inputs.branch, at),
                                  data_or_null<T>(inputs.bias, model),
                                  data<T>(inputs.weight) + model,
                                  total ? mutable_data<T>(*total) + at : nullptr,
                                  mutable_data<T>(y) + at,
                                  mutable_data<T>(scale) + row};
      BWT_SIMD_CALL(rms_norm_forward_row, one, rows.size, static_cast<T>(epsilon));
    }
  });
}

ArgumentCheck check_arguments(const char* op, const Tensor& x, const Tensor& weight) {
  const ArgumentCheck check(op, x.scalar_type(), "x");
  check.that(x.dim() >= 1 && x.size(x.dim() - 1) >= 1, "x");
  check.of_rows("weight", weight, x);
  return check;
}

int64_t count_rows(const Tensor& x) { return x.numel() / x.size(x.dim() - 1); }

std::tuple<Tensor, Tensor> rms_norm_forward(const Tensor& x, const Tensor& weight, double epsilon) {
  check_arguments("rms_norm", x, weight);
  const Inputs inputs{packed(x), packed(weight)};
  const Tensor y = allocate(x, x.sizes()), scale = allocate(x, {count_rows(x)});
  auto run = x.scalar_type() == ScalarType::Float ? forward<float> : forward<double>;
  run(inputs, epsilon, std::nullopt, y, scale);
  return {y, scale};
}

std::tuple<Tensor, Tensor, Tensor> add_rms_norm_forward(const Tensor& x, const Tensor& branch,
                                                        const Tensor& weight,
                                                        const std::optional<Tensor>& bias,
                                                        double epsilon) {
  const ArgumentCheck check = check_arguments("add_rms_norm", x, weight);
  check.like("branch", branch, x);
  if (bias) check.like("bias", *bias, weight);
  const Inputs inputs{packed(x), packed(weight), packed(branch), packed(bias)};
  const Tensor total = allocate(x, x.sizes()), y = allocate(x, x.sizes()),
               scale = allocate(x, {count_rows(x)});
  auto run = x.scalar_type() == ScalarType::Float ? forward<float> : forward<double>;
  run(inputs, epsilon, total, y, scale);
  return {total, y, scale};
}

struct Gradients {
  Tensor x, weight;
  std::optional<Tensor> bias;
};

template <class T>
void backward(const std::optional<Tensor>& grad_total, const Tensor& grad_y, const Tensor& total,
              const Tensor& weight, const Tensor& scale, const Gradients& gradients) {
  const ModelRows rows = model_rows(weight, total);
  const int64_t stride = (gradients.bias ? 2 : 1) * rows.size;  // of the sums of a piece
  std::vector<T> sums(rows.pieces() * stride);
  torch::stable::parallel_for(0, rows.pieces(), rows.piece_grain(), [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      const T* gain = data<T>(weight) + rows.piece_model(i) * rows.size;
      T* sum = sums.data() + i * stride;
      for (int64_t row = rows.piece_begin(i); row < rows.piece_end(i); ++row) {
        const int64_t at = row * rows.size;
        const RmsNormBackward<T> one{data<T>(total) + at,
                                     gain,
                                     data<T>(scale)[row],
                                     data<T>(grad_y) + at,
                                     data_or_null<T>(grad_total, at),
                                     mutable_data<T>(gradients.x) + at,
                                     sum,
                                     gradients.bias ? sum + rows.size : nullptr};
        BWT_SIMD_CALL(rms_norm_backward_row, one, rows.size);
      }
    }
  });
  rows.add_up(sums.data(), stride, mutable_data<T>(gradients.weight));
  if (gradients.bias) {
    rows.add_up(sums.data() + rows.size, stride, mutable_data<T>(*gradients.bias));
  }
}

Gradients compute_gradients(const ArgumentCheck& check, const std::optional<Tensor>& grad_total,
                            const Tensor& grad_y, const Tensor& total, const Tensor& weight,
                            const Tensor& scale, bool with_bias) {
  if (grad_total) check.like("grad_total", *grad_total, total);
  check.like("grad_y", grad_y, total);
  check.sizes("scale", scale, {count_rows(total)});
  const Gradients gradients{
      allocate(total, total.sizes()), allocate(weight, weight.sizes()),
      with_bias ? std::optional(allocate(weight, weight.sizes())) : std::nullopt};
  auto run = total.scalar_type() == ScalarType::Float ? backward<float> : backward<double>;
  run(packed(grad_total), packed(grad_y), packed(total), packed(weight), packed(scale), gradients);
  return gradients;
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad_y, const Tensor& x,
                                             const Tensor& weight, const Tensor& scale) {
  const ArgumentCheck check = check_arguments("rms_norm", x, weight);
  const Gradients found =
      compute_gradients(check, std::nullopt, grad_y, x, weight, scale, /*with_bias=*/false);
  return {found.x, found.weight};
}

std::tuple<Tensor, Tensor, Tensor> add_rms_norm_backward(const std::optional<Tensor>& grad_total,
                                                         const Tensor& grad_y, const Tensor& total,
                                                         const Tensor& weight, const Tensor& scale,
                                                         bool with_bias) {
  const ArgumentCheck check = check_arguments("add_rms_norm", total, weight);
  const Gradients found =
      compute_gradients(check, grad_total, grad_y, total, weight, scale, with_bias);
  return {found.x, found.weight, found.bias ? *found.bias : allocate(weight, {0})};
}

}  // namespace
}  // namespace bwt

STABLE_TORCH_LIBRARY_IMPL(bwt, CPU, m) {
  m.impl("rms_norm", TORCH_BOX(&bwt::rms_norm_forward));
  m.impl("rms_norm_backward", TORCH_BOX(&bwt::rms_norm_backward));
  m.impl("add_rms_norm", TORCH_BOX(&bwt::add_rms_norm_forward));
  m.impl("add_rms_norm_backward", TORCH_BOX(&bwt::add_rms_norm_backward));
}
