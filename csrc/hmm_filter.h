// Filtering and smoothing of hidden Markov models: the arguments of the CPU kernels.
//
// With the row vectors initial pi [S], transition A [S,S] (row = from-state) and the column e_t [S]
// of the emission matrix [S,V] that belongs to the observation y_t (all ones if it is missing),
//   predicted_0 = pi,  predicted_t = filtered_{t-1} A,
//   c_t = predicted_t . e_t,  filtered_t = predicted_t * e_t / c_t,
//   log_likelihood = sum_t log c_t.
// So the likelihood is the sum over all paths of the products of their factors, and this holds for
// parameters that are not quite normalised, too. An impossible observation (c_t = 0) makes
// filtered_t and everything later zero and the log-likelihood -inf; predicted_t is still known.
//
// The adjoints go backwards in time and need nothing but these outputs. With g the gradients that
// come in and f' = g_filtered_t + A predicted'_{t+1} (no second term at the last step),
//   w = f' - (f' . filtered_t) + g_log_likelihood,   predicted'_t = w * e_t / c_t + g_predicted_t,
//   pi' = predicted'_0,  A' = sum_t filtered_{t-1}^T predicted'_t,
//   emission'[., y_t] += w * predicted_t / c_t.
// An impossible sequence has no gradient. Smoothing is the same recursion for the log-likelihood
// alone, smoothed_t = predicted_t * predicted'_t; there f' . filtered_t is the 1 that it should be
// and w = f' / (f' . filtered_t) never is negative.
//
// Probabilities of a step may be as small as the product of two small numbers. Emissions are
// therefore lifted by a power of two, so that c_t keeps its precision well below the smallest
// normal number; what is smaller still counts as impossible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

namespace bwt {

constexpr int kMaxHmmStates = 128;
constexpr double kHmmRowSumTolerance = 1e-4;

// A sum of kMaxHmmStates lifted probabilities is far from overflow.
template <class T>
constexpr int kHmmLiftExponent = std::numeric_limits<T>::max_exponent - 28;
template <class T>
constexpr T kHmmLift = T(1 << 25) * (T(1 << 25) * (T(1 << 25) * T(1 << 25)));
template <>
constexpr double kHmmLift<double> = 0x1p996;
static_assert(kHmmLift<float> == 0x1p100f && kHmmLiftExponent<float> == 100);
static_assert(kHmmLiftExponent<double> == 996);

// Observations as they lie in a tensor: int32 or int64, any strides (in elements).
struct HmmObservations {
  const void* data;
  bool wide;  // int64
  int64_t batch_stride;
  int64_t time_stride;
};

template <class T>
struct HmmModel {
  int64_t batch;
  int64_t steps;    // T
  int64_t states;   // S, 1 to kMaxHmmStates
  int64_t symbols;  // V >= 1
  HmmObservations observations;
  const int64_t* lengths;  // [B], or null: all have T steps
  const T* initial;        // [S], or [B,S] if it is own, that is, one for each sequence
  const T* transition;     // [S,S] or [B,S,S]
  const T* emission;       // [S,V] or [B,S,V]
  bool own_initial;
  bool own_transition;
  bool own_emission;
};

template <class T>
struct HmmForward {
  HmmModel<T> model;
  T* filtered;   // [B,T,S]
  T* predicted;  // [B,T,S]
  // [B]; NaN tells of a sequence with arguments out of range: lengths, observations, or parameters
  // that are no distributions.
  T* log_likelihood;
  bool streamed;  // whether to write whole lines of the outputs past the cache
};

// All arrays are contiguous.
template <class T>
struct HmmBackward {
  HmmModel<T> model;
  const T* filtered;
  const T* predicted;
  const T* log_likelihood;
  const T* grad_filtered;        // [B,T,S] or null
  const T* grad_predicted;       // [B,T,S] or null
  const T* grad_log_likelihood;  // [B] or null
  T* grad_initial;               // as the parameters, but null where they are shared
  T* grad_transition;
  T* grad_emission;
  T* smoothed;  // [B,T,S]: then gradients are neither read nor written
};

// Gradients of shared parameters, summed in double: null where parameters are own.
struct HmmSharedGradients {
  double* initial;     // [S]
  double* transition;  // [S,S]
  double* emission;    // [S,V]
};

// The CPU kernels are compiled once per instruction set (cpu/hmm_filter_simd.h), each with
//   int64_t hmm_block_f32(const HmmModel<float>&);    sequences that are computed together
//   int64_t hmm_forward_scratch_f32(const HmmForward<float>&);
//   void hmm_forward_f32(const HmmForward<float>&, int64_t begin, int64_t end, void* scratch);
// and likewise _f64 and backward, which takes pieces of the batch and sums shared gradients for
// each. Forward takes the blocks from begin to end. Every thread needs its own scratch of as many
// bytes as said, of any alignment and content. A block is always computed in the same way, so
// results do not depend on how blocks and pieces are shared by threads.

}  // namespace bwt
