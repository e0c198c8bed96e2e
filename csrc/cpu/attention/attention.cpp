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

template <class T>
const T* optional_data(const std::optional<Tensor>& tensor) {
  return tensor ? data<T>(*tensor) : nullptr;
}

using Indices = std::optional<std::vector<int64_t>>;

// The place of each of `size` in the chosen ones, or -1.
std::vector<int64_t> places_of(const Indices& chosen, int64_t size, const char* name) {
  std::vector<int64_t> places;
  if (!chosen) return places;
  places.assign(size, -1);
  for (size_t i = 0; i < chosen->size(); ++i) {
    const int64_t index = (*chosen)[i];
    check_that(0 <= index && index < size && places[index] < 0, "attention", name);
    places[index] = static_cast<int64_t>(i);
  }
  return places;
}

// The chosen heads and queries, and the memory of their places.
class Choice {
 public:
  Choice(const Tensor& q, const Indices& heads, const Indices& queries)
      : heads_(places_of(heads, q.size(1), "heads")),
        queries_(places_of(queries, q.size(2), "queries")),
        chosen_{heads ? heads_.data() : nullptr, queries ? queries_.data() : nullptr,
                heads ? int64_t(heads->size()) : q.size(1),
                queries ? int64_t(queries->size()) : q.size(2)} {}
  Choice(const Choice&) = delete;

  const Chosen& operator*() const { return chosen_; }
  const Chosen* operator->() const { return &chosen_; }

 private:
  std::vector<int64_t> heads_, queries_;
  Chosen chosen_;
};

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
  Tensor out, lse, weights, entropy, received, max_logit, argmax, top_weights, top_positions;
};

template <class T>
void forward(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, double scale,
             const Chosen& chosen, int64_t top_k, const Outputs& outputs) {
  share_pairs(AttentionForward<T>{
      shape_of(q, k, causal), static_cast<T>(scale), heads_of<const T>(q), heads_of<const T>(k),
      heads_of<const T>(v), heads_of<T>(outputs.out), optional_data<T>(outputs.lse), chosen,
      optional_data<T>(outputs.weights), optional_data<T>(outputs.entropy),
      optional_data<T>(outputs.received), optional_data<T>(outputs.max_logit),
      optional_data<int64_t>(outputs.argmax), optional_data<T>(outputs.top_weights),
      optional_data<int64_t>(outputs.top_positions), top_k});
}

ArgumentCheck check_arguments(const Tensor& q, const Tensor& k, const Tensor& v) {
  const ArgumentCheck check("attention", q.scalar_type(), "q");
  check.that(q.dim() == 4 && q.size(2) >= 1 && 1 <= q.size(3) && q.size(3) <= kMaxHeadSize, "q");
  check.that(k.dim() == 4 && k.size(2) >= q.size(2), "k");
  check.sizes("k", k, {q.size(0), q.size(1), k.size(2), q.size(3)});
  check.sizes("v", v, {q.size(0), q.size(1), k.size(2), q.size(3)});
  return check;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>
attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, double scale,
                  bool weights, bool entropy, bool received, bool peak, int64_t top_k,
                  const Indices& heads, const Indices& queries) {
  const ArgumentCheck check = check_arguments(q, k, v);
  check.that(0 <= top_k && top_k <= kMaxTopK, "top_k");
  const Choice choice(q, heads, queries);
  const int64_t B = q.size(0), H = choice->heads, T = choice->queries, S = k.size(2);
  const ScalarType number = q.scalar_type(), position = ScalarType::Long;
  const auto captured = [&](bool wanted, std::vector<int64_t> sizes, ScalarType dtype) {
    return allocate(q, wanted ? sizes : std::vector<int64_t>{0}, dtype);
  };
  const Outputs outputs{new_heads(q, q.size(2)),
                        allocate(q, {B, q.size(1), q.size(2)}),
                        captured(weights, {B, H, T, S}, number),
                        captured(entropy, {B, H, T}, number),
                        captured(received, {B, H, S}, number),
                        captured(peak, {B, H, T}, number),
                        captured(peak, {B, H, T}, position),
                        captured(top_k > 0, {B, H, T, top_k}, number),
                        captured(top_k > 0, {B, H, T, top_k}, position)};
  if (B * q.size(1) > 0) {
    auto run = number == ScalarType::Float ? forward<float> : forward<double>;
    run(packed_rows(q), packed_rows(k), packed_rows(v), causal, scale, *choice, top_k, outputs);
  }
  return {outputs.out,     outputs.lse,         outputs.weights,
          outputs.entropy, outputs.received,    outputs.max_logit,
          outputs.argmax,  outputs.top_weights, outputs.top_positions};
}

// Gradients that came in and the positions that they belong to, each in the layout that the kernels
// take.
struct Gradients {
  std::optional<Tensor> out, lse, weights, entropy, received, max_logit, argmax, top_k,
      top_positions;
};

template <class T>
void backward(const Gradients& gradients, const Tensor& q, const Tensor& k, const Tensor& v,
              const Tensor& lse, const std::optional<Tensor>& weights, bool causal, double scale,
              const Chosen& chosen, const Tensor& grad_q, const Tensor& grad_k,
              const Tensor& grad_v) {
  const StridedHeads<const T> grad_out =
      gradients.out ? heads_of<const T>(*gradients.out) : StridedHeads<const T>{};
  share_pairs(AttentionBackward<T>{shape_of(q, k, causal),
                                   static_cast<T>(scale),
                                   heads_of<const T>(q),
                                   heads_of<const T>(k),
                                   heads_of<const T>(v),
                                   data<T>(lse),
                                   optional_data<T>(weights),
                                   grad_out,
                                   optional_data<T>(gradients.lse),
                                   chosen,
                                   optional_data<T>(gradients.weights),
                                   optional_data<T>(gradients.entropy),
                                   optional_data<T>(gradients.received),
                                   optional_data<T>(gradients.max_logit),
                                   optional_data<int64_t>(gradients.argmax),
                                   optional_data<T>(gradients.top_k),
                                   optional_data<int64_t>(gradients.top_positions),
                                   gradients.top_k ? gradients.top_k->size(3) : 0,
                                   heads_of<T>(grad_q),
                                   heads_of<T>(grad_k),
                                   heads_of<T>(grad_v)});
}

// Positions that a gradient belongs to.
void check_positions(const char* name, const std::optional<Tensor>& positions,
                     const std::optional<Tensor>& gradient) {
  if (!gradient) return;
  const bool is_right = positions && positions->scalar_type() == ScalarType::Long &&
                        std::ranges::equal(positions->sizes(), gradient->sizes());
  check_that(is_right, "attention", name);
}

std::tuple<Tensor, Tensor, Tensor> attention_backward(
    const std::optional<Tensor>& grad_out, const std::optional<Tensor>& grad_weights,
    const std::optional<Tensor>& grad_entropy, const std::optional<Tensor>& grad_lse,
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
    const std::optional<Tensor>& weights, const std::optional<Tensor>& entropy, bool causal,
    double scale, const std::optional<Tensor>& grad_received,
    const std::optional<Tensor>& grad_max_logit, const std::optional<Tensor>& grad_top_k,
    const std::optional<Tensor>& argmax, const std::optional<Tensor>& top_weights,
    const std::optional<Tensor>& top_positions, const Indices& heads, const Indices& queries) {
  (void)out, (void)entropy, (void)top_weights;  // for the kernels that recompute from them
  const ArgumentCheck same = check_arguments(q, k, v);
  const Choice choice(q, heads, queries);
  const int64_t B = q.size(0), H = choice->heads, T = choice->queries, S = k.size(2);
  same.sizes("grad_out", grad_out, {B, q.size(1), q.size(2), q.size(3)});
  same.sizes("grad_lse", grad_lse, {B, q.size(1), q.size(2)});
  same.sizes("lse", lse, {B, q.size(1), q.size(2)});
  if (choice->is_all()) same.sizes("weights", weights, {B, H, T, S});
  same.sizes("grad_weights", grad_weights, {B, H, T, S});
  same.sizes("grad_entropy", grad_entropy, {B, H, T});
  same.sizes("grad_received", grad_received, {B, H, S});
  same.sizes("grad_max_logit", grad_max_logit, {B, H, T});
  if (grad_top_k) {
    same.that(grad_top_k->dim() == 4, "grad_top_k");
    same.sizes("grad_top_k", grad_top_k, {B, H, T, grad_top_k->size(3)});
  }
  check_positions("argmax", argmax, grad_max_logit);
  check_positions("top_positions", top_positions, grad_top_k);
  const Tensor grad_q = new_heads(q, q.size(2)), grad_k = new_heads(k, k.size(2)),
               grad_v = new_heads(v, v.size(2));
  if (B * q.size(1) > 0) {
    const Gradients gradients{grad_out ? packed_rows(*grad_out) : grad_out,
                              packed(grad_lse),
                              packed(grad_weights),
                              packed(grad_entropy),
                              packed(grad_received),
                              packed(grad_max_logit),
                              packed(argmax),
                              packed(grad_top_k),
                              packed(top_positions)};
    auto run = q.scalar_type() == ScalarType::Float ? backward<float> : backward<double>;
    run(gradients, packed_rows(q), packed_rows(k), packed_rows(v), packed(lse),
        choice->is_all() ? packed(weights) : std::nullopt, causal, scale, *choice, grad_q, grad_k,
        grad_v);
  }
  return {grad_q, grad_k, grad_v};
}

}  // namespace
}  // namespace bwt

STABLE_TORCH_LIBRARY_IMPL(bwt, CPU, m) {
  m.impl("attention", TORCH_BOX(&bwt::attention_forward));
  m.impl("attention_backward", TORCH_BOX(&bwt::attention_backward));
}
