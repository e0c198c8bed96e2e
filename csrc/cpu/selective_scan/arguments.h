// The selective scan of state-space models: the arguments of the CPU kernels.
//
// With u, delta [B,L,E], A [M,E,N], B and C [B,L,N], D [M,E], for every batch entry and channel e,
// with A and D of its model (entry b of the batch belongs to model b / (B / M)),
//   s_t = delta_t, or softplus(delta_t) = log(1 + exp(delta_t))
//   a_tn = exp(s_t A_n),   h_tn = a_tn h_{t-1,n} + s_t u_t B_tn      [N]
//   y_t = sum_n C_tn h_tn + D u_t
// from an initial state or 0.
//
// The adjoints go backwards in time. With y' the gradient that comes in, a g beyond the end that of
// the last state or 0, and x_t = s_t u_t,
//   g_tn = C_tn y'_t + a_{t+1,n} g_{t+1,n}
//   C'_tn = sum_e y'_t h_tn,   B'_tn = sum_e x_t g_tn,   x'_t = sum_n B_tn g_tn
//   v_tn = g_tn a_tn h_{t-1,n},   A'_n = sum_{b,t} s_t v_tn
//   s'_t = sum_n A_n v_tn + u_t x'_t,   u'_t = s_t x'_t + D y'_t,   D' = sum_{b,t} y'_t u_t
// and delta'_t = s'_t, times sigmoid(delta_t) with softplus; the gradient of the initial state is a
// g of the first step. The states h are computed again from those that the forward pass saves after
// every chunk of steps, so that what is saved for a chunk of N steps is as large as u, not N times
// as large.
//
// Where s_t A_n is so large that a_tn would not be a normal number it is the largest or smallest.
#pragma once

#include <cstdint>

namespace bwt {

// Steps between saved states, at most: the backward pass holds the states of a chunk in cache.
constexpr int64_t kScanChunk = 16;
constexpr int64_t kMaxScanStates = 64;

struct ScanShape {
  int64_t batch;
  int64_t steps;     // L
  int64_t channels;  // E
  int64_t states;    // N
  int64_t models;    // M, a divisor of the batch

  int64_t entries_of_model() const { return batch / models; }
};

// An array [batch, time, size] with strides in elements. The last dimension has stride 1. This is
// how B and C lie in the output of a fused projection.
template <class T>
struct ScanRows {
  T* data;
  int64_t batch_stride;
  int64_t time_stride;

  T* at(int64_t batch, int64_t time) const {
    return data + batch * batch_stride + time * time_stride;
  }
};

template <class T>
struct ScanInputs {
  ScanShape shape;
  bool softplus;
  int64_t every;  // steps between saved states, 0 to kScanChunk; 0: none is saved
  ScanRows<const T> u;
  ScanRows<const T> delta;
  ScanRows<const T> B;
  ScanRows<const T> C;
  const T* A;        // [M,E,N] contiguous
  const T* D;        // [M,E] contiguous, or null
  const T* initial;  // [B,N,E] contiguous, or null for zeros

  int64_t saved() const { return every > 0 ? shape.steps / every : 0; }

  // The same with A [E,N] and D [E] of one model.
  ScanInputs of_model(int64_t model) const {
    ScanInputs own = *this;
    own.A += model * shape.channels * shape.states;
    if (D != nullptr) own.D += model * shape.channels;
    return own;
  }
};

template <class T>
struct ScanForward {
  ScanInputs<T> inputs;
  T* y;       // [B,L,E] contiguous
  T* states;  // [B,saved,N,E] contiguous: h after steps every, 2 every, ..; or null
  T* last;    // [B,N,E] contiguous: h after the last step; or null
};

template <class T>
struct ScanBackward {
  ScanInputs<T> inputs;  // every > 0
  const T* states;
  ScanRows<const T> grad_y;
  const T* grad_last;  // [B,N,E] contiguous, or null for zeros
  T* grad_u;           // [B,L,E] contiguous, as all that follow
  T* grad_delta;       // [B,L,E]
  T* grad_B;           // [B,L,N]
  T* grad_C;           // [B,L,N]
  T* grad_A;           // [M,pieces,N,E]: to be summed over the pieces of the entries of a model
  T* grad_D;           // [M,pieces,E]
  T* grad_initial;     // [B,N,E], or null
};

}  // namespace bwt
