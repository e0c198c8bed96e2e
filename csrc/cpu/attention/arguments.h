// Fused softmax attention that can also return its weights: the arguments of the CPU kernels.
//
// With q [B,H,T,D], k and v [B,H,S,D], S >= T, for every batch and head
//   scores  = scale * q k^T                                             [T,S]
//   weights = softmax of each row of scores over the keys it sees       [T,S]
//   out     = weights v                                                 [T,D]
//   lse     = log(sum_j exp(scores_j)), natural logarithm               [T]
//   entropy = -sum_j weights_j log2(weights_j), bits, 0 log 0 = 0       [T]
//   received = sum over the queries of the weights                      [S]
//   max_logit, argmax = the largest score of each row and where it is   [T]
//   top_weights, top_positions = the n largest weights of each row      [T,n]
// All from entropy on, and weights if they are returned, can be of chosen heads and queries alone.
// Of equal scores the first comes first. A position is -1 where no score above -inf is left.
//
// A causal query t sees the keys 0 .. S-T+t (the last query is aligned with the last key); any
// other query sees all keys. A key that is not seen has a weight of exactly 0, and whatever it and
// its value hold, NaN included, comes to nothing, neither here nor in gradients. A blind query,
// whose scores are all -inf, has weights, out and entropy 0, lse -inf and gradients 0.
//
// The gradient of all of them is one softmax gradient. With g the gradient at the weights,
//   g_j = grad_out . v_j + grad_weights_j - grad_entropy * log2(weights_j) + grad_received_j
//         + (grad_top_weights_i if j is top_positions_i),
// the gradient at the scores is
//   d_j = weights_j * (g_j - sum_i weights_i g_i + grad_lse) + (grad_max_logit if j is argmax),
// because a term that is the same for all j cancels (the rest of d entropy / d weights_j) and
// d lse / d scores_j = weights_j. Then
//   grad_q = scale * d k,   grad_k = scale * d^T q,   grad_v = weights^T grad_out.
//
// Numbers may be as large as the type allows. A score of -inf beside others has weight 0; NaN and
// other infinities that a query sees spread within its row.
#pragma once

#include <cstdint>

namespace bwt {

constexpr int64_t kMaxHeadSize = 256;

struct AttentionShape {
  int64_t batch;
  int64_t heads;
  int64_t queries;  // T
  int64_t keys;     // S >= T >= 1
  int64_t dim;      // D >= 1
  bool causal;

  int64_t pairs() const { return batch * heads; }
  int64_t visible_keys(int64_t query) const { return causal ? keys - queries + query + 1 : keys; }
};

// An array [batch, head, time, D] with strides in elements. D has stride 1. This is how q, k and v
// lie in the output of a fused projection [B,T,3,H,D], and their gradients in its gradient.
template <class T>
struct StridedHeads {
  T* data;
  int64_t batch_stride;
  int64_t head_stride;
  int64_t time_stride;

  T* at(int64_t pair, int64_t heads, int64_t time) const {
    return data + pair / heads * batch_stride + pair % heads * head_stride + time * time_stride;
  }
};

constexpr int64_t kMaxTopK = 16;

// The heads and queries of which something is captured: the place of each in what is captured, or
// -1. Null: all, in their order.
struct Chosen {
  const int64_t* head_places;   // [heads of a batch element]
  const int64_t* query_places;  // [queries]
  int64_t heads;                // captured
  int64_t queries;              // captured

  bool is_all() const { return !head_places && !query_places; }
  // The captured head of a pair, counted through the batch, or -1.
  int64_t head(int64_t pair, int64_t all_heads) const {
    if (!head_places) return pair;
    const int64_t place = head_places[pair % all_heads];
    return place < 0 ? -1 : pair / all_heads * heads + place;
  }
  // The captured row of a query of that head, or -1.
  int64_t row(int64_t head, int64_t query) const {
    if (head < 0) return -1;
    const int64_t place = query_places ? query_places[query] : query;
    return place < 0 ? -1 : head * queries + place;
  }
};

template <class T>
struct AttentionForward {
  AttentionShape shape;
  T scale;
  StridedHeads<const T> q;
  StridedHeads<const T> k;
  StridedHeads<const T> v;
  StridedHeads<T> out;
  T* lse;  // [B,H,T] contiguous, or null
  // Captured, each contiguous or null; H and T are the chosen ones.
  Chosen chosen;
  T* weights;              // [B,H,T,S]
  T* entropy;              // [B,H,T]
  T* received;             // [B,H,S]
  T* max_logit;            // [B,H,T]
  int64_t* argmax;         // [B,H,T]
  T* top_weights;          // [B,H,T,n]
  int64_t* top_positions;  // [B,H,T,n]
  int64_t top_k;           // n, or 0
};

template <class T>
struct AttentionBackward {
  AttentionShape shape;
  T scale;
  StridedHeads<const T> q;
  StridedHeads<const T> k;
  StridedHeads<const T> v;
  const T* lse;                    // [B,H,T] contiguous, as returned by the forward pass
  const T* weights;                // likewise, of all queries, or null: computed again
  StridedHeads<const T> grad_out;  // data may be null: no gradient
  const T* grad_lse;               // [B,H,T] contiguous, or null
  // Of what was captured, as there.
  Chosen chosen;
  const T* grad_weights;
  const T* grad_entropy;
  const T* grad_received;
  const T* grad_max_logit;
  const int64_t* argmax;  // with grad_max_logit
  const T* grad_top_k;
  const int64_t* top_positions;  // with grad_top_k
  int64_t top_k;
  StridedHeads<T> grad_q;
  StridedHeads<T> grad_k;
  StridedHeads<T> grad_v;
};

}  // namespace bwt
