// The selective scan (selective_scan.h) for one instruction-set level. Included once per level by
// foreach_simd.h; what it includes is per level, too. This file: what both passes share.
//
// Vectors hold channels. A chunk of steps is computed for one vector of channels after the other,
// and for a group of states at a time, whose h are registers then. What a chunk reads and writes of
// the large arrays are whole rows, in order; the rest stays in the cache.
#include "cpu/vector.h"

namespace bwt {
namespace BWT_SIMD {
namespace {  // names of one kernel file must not meet those of another

// 2^f = kExp2[0] + kExp2[1] * f + .. for |f| <= 1/2, the polynomials of least relative error
// (2e-9 and 3e-18).
template <class T>
struct ScanTraits;

template <>
struct ScanTraits<float> {
  static constexpr float kExp2[] = {1.f,
                                    0.693147205734887f,
                                    0.240226468901155f,
                                    0.0555032878f,
                                    0.00961848906096f,
                                    0.00133999298186f,
                                    0.000153457797713f};
  static constexpr float kLimit = 126;  // 2^z is normal for |z| below
  static constexpr int kAtanhTerms = 8;
};

template <>
struct ScanTraits<double> {
  static constexpr double kExp2[] = {1.0,
                                     0.69314718055994533,
                                     0.240226506959101562,
                                     0.0555041086648199264,
                                     0.00961812910758834779,
                                     0.00133335581467887735,
                                     0.000154035304624988203,
                                     0.0000152527334910960904,
                                     1.32154330973075747e-6,
                                     1.01781975588464289e-7,
                                     7.07410434182751635e-9,
                                     4.43535235186488352e-10};
  static constexpr double kLimit = 1022;
  static constexpr int kAtanhTerms = 17;
};

constexpr int64_t kScanLine = 64;  // bytes of a cache line
constexpr double kScanLog2e = 1.44269504088896340736;
constexpr double kScanLn2 = 0.69314718055994530942;

template <class T>
[[gnu::always_inline]] inline Vec<T> absolute(Vec<T> x) {
  return x < T(0) ? -x : x;
}

// factor[i] = 2^(size * rate[i]), stage by stage for all i: the processor sees too few steps ahead
// to overlap the long chains of one exponential after the other. Tame: |size * rate| < kLimit is
// known.
template <class T, bool kTame, int kGroup>
[[gnu::always_inline]] inline void exp2_products(Vec<T> size, const Vec<T>* rate, Vec<T>* factor) {
  using Traits = ScanTraits<T>;
  constexpr T kRounder = VectorTraits<T>::kRounder;
  constexpr int kTerms = sizeof(Traits::kExp2) / sizeof(T);
  Vec<T> rounded[kGroup], f[kGroup];
#pragma GCC unroll 8
  for (int i = 0; i < kGroup; ++i) {
    Vec<T> z = size * rate[i];
    if constexpr (!kTame) {
      z = z > Traits::kLimit ? broadcast(Traits::kLimit) : z;  // NaN stays
      z = z < -Traits::kLimit ? broadcast(-Traits::kLimit) : z;
    }
    rounded[i] = z + kRounder;
    f[i] = z - (rounded[i] - kRounder);
    factor[i] = broadcast(Traits::kExp2[kTerms - 1]);
  }
#pragma GCC unroll 16
  for (int term = kTerms - 2; term >= 0; --term) {
#pragma GCC unroll 8
    for (int i = 0; i < kGroup; ++i) factor[i] = factor[i] * f[i] + Traits::kExp2[term];
  }
#pragma GCC unroll 8
  for (int i = 0; i < kGroup; ++i) {
    const Bits<T> power = (Bits<T>)rounded[i] << VectorTraits<T>::kMantissaBits;
    factor[i] = (Vec<T>)((Bits<T>)factor[i] + power);
  }
}

template <class T>
int64_t padded_channels(const ScanShape& shape) {
  return round_up(shape.channels, kLanes<T>);
}

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

template <class T>
void clear(T* numbers, int64_t count) {
  if (count > 0) __builtin_memset(numbers, 0, count * sizeof(T));
}

// A as the kernels read it: transposed and in units of log 2.
template <class T>
struct Rates {
  Rates(const ScanShape& shape, Arena& arena)
      : stride(padded_channels<T>(shape)),
        scaled(arena.take<T>(shape.states * stride)),
        largest(arena.take<T>(stride)) {}

  void fill(const ScanInputs<T>& inputs) {
    const ScanShape& shape = inputs.shape;
    clear(scaled, shape.states * stride);
    clear(largest, stride);
    for (int64_t e = 0; e < shape.channels; ++e) {
      for (int64_t n = 0; n < shape.states; ++n) {
        const T rate = inputs.A[e * shape.states + n] * T(kScanLog2e);
        const T size = rate < 0 ? -rate : rate;
        scaled[n * stride + e] = rate;
        largest[e] = size <= largest[e] ? largest[e] : size;  // NaN is largest
      }
    }
  }

  int64_t stride;
  T* scaled;   // [N,stride]
  T* largest;  // [stride], of |scaled| over the states
};

// The steps of a chunk and the vector of channels that are computed at a time.
struct Place {
  int64_t batch;
  int64_t first;  // step
  int64_t count;  // of steps
  int64_t channel;
  int64_t width;  // channels that are left, from this one on
};

template <class T>
Place place_at(const ScanShape& shape, int64_t batch, int64_t chunk, int64_t steps,
               int64_t channel) {
  const int64_t first = chunk * steps;
  return {batch, first, smaller(steps, shape.steps - first), channel, shape.channels - channel};
}

// Fetches what the next vector of channels reads of a row, a line ahead.
template <class T>
[[gnu::always_inline]] inline Vec<T> load_row(const T* from, int64_t width) {
  __builtin_prefetch(from + 2 * kScanLine / int64_t(sizeof(T)));
  return load_at_most(from, width);
}

// log(1 + e^x) = max(x, 0) + log(1 + w) with w = e^-|x|, and log(1 + w) = 2 atanh(w / (2 + w)), a
// series that keeps its relative precision for small w. Its slope is the sigmoid. In loops of few
// instructions, of which the processor overlaps many rounds.
template <class T>
void softplus(const T* x, int64_t count, T* value, T* slope) {
  constexpr int n = kLanes<T>, kTerms = ScanTraits<T>::kAtanhTerms;
  for (int64_t i = 0; i < count * n; i += n) store(value + i, exp<T>(-absolute<T>(load(x + i))));
  if (slope != nullptr) {
    for (int64_t i = 0; i < count * n; i += n) {
      const Vec<T> w = load(value + i);
      store(slope + i, (load(x + i) > T(0) ? broadcast(T(1)) : w) / (T(1) + w));
    }
  }
  for (int64_t i = 0; i < count * n; i += n) {
    const Vec<T> w = load(value + i), from = load(x + i);
    const Vec<T> s = w / (T(2) + w), square = s * s;
    Vec<T> p = broadcast(T(1) / T(2 * kTerms - 1));
#pragma GCC unroll 20
    for (int k = kTerms - 2; k >= 0; --k) p = p * square + T(1) / T(2 * k + 1);
    const Vec<T> larger = from < T(0) ? Vec<T>{} : from;  // NaN stays
    store(value + i, larger + T(2) * s * p);
  }
}

// What is computed once for all states, [step][lane].
template <class T>
struct Steps {
  explicit Steps(Arena& arena)
      : u(take(arena)),
        delta(take(arena)),
        size(take(arena)),
        input(take(arena)),
        slope(take(arena)) {}

  static T* take(Arena& arena) { return arena.take<T>(kScanChunk * kLanes<T>); }

  // Returns whether all factors are of moderate size, for rates up to `largest`.
  bool fill(const ScanInputs<T>& inputs, const Place& at, const T* largest, bool with_slope) {
    constexpr int n = kLanes<T>;
    const T* from_u = inputs.u.at(at.batch, at.first) + at.channel;
    const T* from_delta = inputs.delta.at(at.batch, at.first) + at.channel;
    for (int64_t t = 0; t < at.count; ++t) {
      store(u + t * n, load_row(from_u, at.width));
      store(delta + t * n, load_row(from_delta, at.width));
      from_u += inputs.u.time_stride;
      from_delta += inputs.delta.time_stride;
    }
    if (inputs.softplus) {
      softplus(delta, at.count, size, with_slope ? slope : nullptr);
    } else {
      __builtin_memcpy(size, delta, at.count * n * sizeof(T));
    }
    const Vec<T> rate = load(largest + at.channel);
    Bits<T> wild{};
    for (int64_t t = 0; t < at.count; ++t) {
      const Vec<T> step = load(size + t * n);
      wild |= ~(absolute<T>(step) * rate < ScanTraits<T>::kLimit);
      store(input + t * n, step * load(u + t * n));
    }
    return !any<T>(wild);
  }

  T* u;
  T* delta;
  T* size;   // s
  T* input;  // s u
  T* slope;  // ds / d delta
};

// Calls run.template operator()<kGroup>(n) for groups of states that begin at n and cover all.
template <int kGroup, class Run>
void for_state_groups(int64_t states, Run run, int64_t n = 0) {
  for (; n + kGroup <= states; n += kGroup) run.template operator()<kGroup>(n);
  if constexpr (kGroup > 1) for_state_groups<kGroup / 2>(states, run, n);
}

}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt

#include "cpu/selective_scan_forward_simd.h"
// The other pass, and the entry points.
#include "cpu/selective_scan_backward_simd.h"
