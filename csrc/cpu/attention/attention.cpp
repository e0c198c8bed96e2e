// CPU implementation of bwt::attention: threads over (batch, head) pairs, SIMD inside one.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <tuple>
#include <vector>

#include "cpu/arena.h"
#include "cpu/attention/arguments.h"
#include "cpu/checks.h"
#include "cpu/tensors.h"

#define BWT_SIMD_FILE "cpu/attention/kernels_simd.h"
#include "cpu/simd/foreach_level.h"

namespace bwt {
namespace {

AttentionShape shape_of(const Tensor& q, const Tensor& k, bool causal) {
  return {q.size(0), q.size(1), q.size(2), k.size(2), q.size(3), causal};
}

template <class T>
StridedHeads<T> heads_of(const Tensor& x) {
  return {static_cast<T*>(x.data_ptr()), x.stride(0), x.stride(1), x.stride(2)};
}

// [B,H,T,D] laid out as [B,T,H,D]: merging the heads afterwards costs nothing.
Tensor new_heads(const Tensor& like, int64_t time) {
  Tensor dense = allocate(like, {like.size(0), time, like.size(1), like.size(3)});
  return torch::stable::transpose(dense, 1, 2);
}

template <class T>
T* optional_data(const Tensor& tensor) {
  return tensor.numel() == 0 ? nullptr : mutable_data<T>(tensor);
}

template <class Arguments>
void share_pairs(const Arguments& arguments) {
  const AttentionShape& shape = arguments.shape;
  const int64_t work = shape.queries * shape.keys * shape.dim;
  const int64_t grain = 1 + 32768 / (1 + work);
  torch::stable::parallel_for(0, shape.pairs(), grain, [&](int64_t begin, int64_t end) {
    std::vector<char> scratch(BWT_SIMD_CALL(scratch_bytes, arguments));
    BWT_SIMD_CALL(compute_pairs, arguments, begin, end, scratch.data());
  });
}

struct Outputs {
  Tensor out, lse, weights, entropy;
};

template <class T>
void forward(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, double scale,
             const Outputs& outputs) {
  share_pairs(AttentionForward<T>{
      shape_of(q, k, causal), static_cast<T>(scale), heads_of<const T>(q), heads_of<const T>(k),
      heads_of<const T>(v), heads_of<T>(outputs.out), optional_data<T>(outputs.weights),
      optional_data<T>(outputs.lse), optional_data<T>(outputs.entropy)});
}

ArgumentCheck check_arguments(const Tensor& q, const Tensor& k, const Tensor& v) {
  const ArgumentCheck check("attention", q.scalar_type(), "q");
  check.that(q.dim() == 4 && q.size(2) >= 1 && 1 <= q.size(3) && q.size(3) <= kMaxHeadSize, "q");
  check.that(k.dim() == 4 && k.size(2) >= q.size(2), "k");
  check.sizes("k", k, {q.size(0), q.size(1), k.size(2), q.size(3)});
  check.sizes("v", v, {q.size(0), q.size(1), k.size(2), q.size(3)});
  return check;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_forward(const Tensor& q, const Tensor& k,
                                                             const Tensor& v, bool causal,
                                                             double scale, bool weights,
                                                             bool entropy) {
  check_arguments(q, k, v);
  const int64_t B = q.size(0), H = q.size(1), T = q.size(2), S = k.size(2);
  const Outputs outputs{new_heads(q, T), allocate(q, {B, H, T}),
                        weights ? allocate(q, {B, H, T, S}) : allocate(q, {0}),
                        entropy ? allocate(q, {B, H, T}) : allocate(q, {0})};
  if (B * H > 0) {
    auto run = q.scalar_type() == ScalarType::Float ? forward<float> : forward<double>;
    run(packed_rows(q), packed_rows(k), packed_rows(v), causal, scale, outputs);
  }
  return {outputs.out, outputs.lse, outputs.weights, outputs.entropy};
}

// Gradients that came in, each in the layout that the kernels take.
struct Gradients {
  std::optional<Tensor> out, weights, entropy, lse;

  Gradients(const std::optional<Tensor>& out, const std::optional<Tensor>& weights,
            const std::optional<Tensor>& entropy, const std::optional<Tensor>& lse)
      : weights(packed(weights)),
        entropy(packed(entropy)),
        lse(packed(lse)) {
    if (out) this->out = packed_rows(*out);
  }
};

template <class T>
const T* gradient_data(const std::optional<Tensor>& gradient) {
  return gradient ? data<T>(*gradient) : nullptr;
}

template <class T>
void backward(const Gradients& gradients, const Tensor& q, const Tensor& k, const Tensor& v,
              const Tensor& lse, const Tensor& weights, bool causal, double scale,
              const Tensor& grad_q, const Tensor& grad_k, const Tensor& grad_v) {
  const StridedHeads<const T> grad_out =
      gradients.out ? heads_of<const T>(*gradients.out) : StridedHeads<const T>{};
  share_pairs(AttentionBackward<T>{
      shape_of(q, k, causal), static_cast<T>(scale), heads_of<const T>(q), heads_of<const T>(k),
      heads_of<const T>(v), data<T>(lse), optional_data<const T>(weights), grad_out,
      gradient_data<T>(gradients.weights), gradient_data<T>(gradients.entropy),
      gradient_data<T>(gradients.lse), heads_of<T>(grad_q), heads_of<T>(grad_k),
      heads_of<T>(grad_v)});
}

std::tuple<Tensor, Tensor, Tensor> attention_backward(
    const std::optional<Tensor>& grad_out, const std::optional<Tensor>& grad_weights,
    const std::optional<Tensor>& grad_entropy, const std::optional<Tensor>& grad_lse,
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
    const Tensor& weights, const Tensor& entropy, bool causal, double scale) {
  (void)out, (void)entropy;  // for the kernels that recompute from them
  const ArgumentCheck same = check_arguments(q, k, v);
  const int64_t B = q.size(0), H = q.size(1), T = q.size(2), S = k.size(2);
  same.sizes("grad_out", grad_out, {B, H, T, q.size(3)});
  same.sizes("grad_weights", grad_weights, {B, H, T, S});
  same.sizes("grad_entropy", grad_entropy, {B, H, T});
  same.sizes("grad_lse", grad_lse, {B, H, T});
  same.sizes("lse", lse, {B, H, T});
  if (weights.numel() > 0) same.sizes("weights", weights, {B, H, T, S});
  const Tensor grad_q = new_heads(q, q.size(2)), grad_k = new_heads(k, k.size(2)),
               grad_v = new_heads(v, v.size(2));
  if (q.size(0) * q.size(1) > 0) {
    auto run = q.scalar_type() == ScalarType::Float ? backward<float> : backward<double>;
    run(Gradients(grad_out, grad_weights, grad_entropy, grad_lse), packed_rows(q), packed_rows(k),
        packed_rows(v), packed(lse), packed(weights), causal, scale, grad_q, grad_k, grad_v);
  }
  return {grad_q, grad_k, grad_v};
}

}  // namespace
}  // namespace bwt

STABLE_TORCH_LIBRARY_IMPL(bwt, CPU, m) {
  m.impl("attention", TORCH_BOX(&bwt::attention_forward));
  m.impl("attention_backward", TORCH_BOX(&bwt::attention_backward));
}
