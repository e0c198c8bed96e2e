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
// therefore lifted by a power of two L, so that c_t keeps its precision well below the smallest
// normal number.
//
// What underflows may matter later: a state that all but dies out is what is left if the others
// turn out to be impossible. So no sequence may lose anything, and a sequence that might is
// delicate: it is done again with an exponent for each state (exact.h). With tiny
// the smallest normal number, every product below is 0 for a structural zero or at least tiny, or
// lost within a bound that does not matter. Always, c_t = 0 or L c_t >= 1, else it is delicate.
//   Plain: no entry of pi and A is below a = kHmmSmall. Then predicted_t >= a (1 - eps), whatever
//     came before. A step loses at most tiny in an entry of filtered, and S tiny in the products
//     with A (relative to c_t, as L c_t >= 1): relative to predicted, 2 S tiny / a << eps. So all
//     predicted are right to rounding at every step, and so is filtered where it is normal; c_t is
//     0 only if all emissions are, as even the smallest subnormal number times L a is normal.
//     Adjoints times predicted are bounded by the gradients that come in, so adjoints by 1 / a.
//   Watched: other sequences. Positive entries of A are at least a, those of the emissions at
//     least e = kHmmSmallEmission, and positive entries of filtered at least f = kHmmFloor at
//     every step; else it is delicate. Then filtered A >= f a > tiny, also times L c_t >= 1, and
//     predicted * L e_t >= f a L e > tiny: nothing is lost at all, and what is 0 is impossible.
//     The adjoints of states that are not reached are derivatives, too, which nothing bounds; a
//     sequence that has one above kHmmLargest is delicate.
// The backward pass judges anew, from the saved outputs: by the same bounds on each step, what they
// hold is then normal or a structural zero. All errors of p p' and f f' are relative to the sum of
// the gradients that come in: those of an adjoint may be large where the probability is small.
// A derivative that overflows is the largest number, not infinite, so that times a parameter of 0
// it is 0.
#pragma once

#include <cstdint>
#include <limits>

namespace bwt {

constexpr int kMaxHmmStates = 128;
constexpr double kHmmRowSumTolerance = 1e-4;  // by default

// A sum of kMaxHmmStates lifted probabilities is far from overflow.
template <class T>
constexpr int kHmmLiftExponent = std::numeric_limits<T>::max_exponent - 28;
template <class T>
constexpr T kHmmLift = T(1 << 25) * (T(1 << 25) * (T(1 << 25) * T(1 << 25)));
template <>
constexpr double kHmmLift<double> = 0x1p996;
static_assert(kHmmLift<float> == 0x1p100f && kHmmLiftExponent<float> == 100);
static_assert(kHmmLiftExponent<double> == 996);

template <class T>
constexpr T kHmmSmall = T(0x1p-40);
template <>
constexpr double kHmmSmall<double> = 0x1p-400;
template <class T>
constexpr T kHmmFloor = T(0x1p-80);
template <>
constexpr double kHmmFloor<double> = 0x1p-600;
template <class T>
constexpr T kHmmSmallEmission = T(0x1p-100);
template <>
constexpr double kHmmSmallEmission<double> = 0x1p-1000;
template <class T>
constexpr T kHmmLargest = T(0x1p100);
template <>
constexpr double kHmmLargest<double> = 0x1p900;

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
  T row_sum_tolerance;  // of probabilities that have to sum to 1
};

template <class T>
struct HmmForward {
  HmmModel<T> model;
  T* filtered;   // [B,T,S]
  T* predicted;  // [B,T,S]
  // [B]; NaN tells of a sequence with arguments out of range: lengths, observations, or parameters
  // that are no distributions.
  T* log_likelihood;
  uint8_t* delicate;  // [B], written: whose outputs are still to be computed
  bool streamed;      // whether to write whole lines of the outputs past the cache
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
  // [B]: has no gradient here if it is set, and is set if it turns out to be; then the sums that
  // its piece belongs to are void.
  uint8_t* delicate;
};

// One of `pieces` pieces of the blocks that a batch consists of.
struct HmmPiece {
  HmmPiece(int64_t batch, int64_t block_size, int64_t piece, int64_t pieces) {
    const int64_t blocks = (batch + block_size - 1) / block_size;
    begin = blocks * piece / pieces;
    end = blocks * (piece + 1) / pieces;
  }

  int64_t begin, end;  // blocks
};

// Gradients of shared parameters, summed in double: null where parameters are own.
struct HmmSharedGradients {
  double* initial;     // [S]
  double* transition;  // [S,S]
  double* emission;    // [S,V]
};

}  // namespace bwt
