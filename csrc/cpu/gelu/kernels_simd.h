// GELU (arguments.h) for one instruction-set level. Included once per level by
// simd/foreach_level.h.
#include "cpu/simd/vector.h"

namespace bwt {
namespace BWT_SIMD {
namespace {

// Phi(-z) = exp(-z^2 / 2) t (kTail[0] + kTail[1] t + ..) for z >= 0 with t = 1 / (1 + kStretch z),
// within 4e-8 and 1.2e-17 relative up to where the exponential vanishes. One exponential serves
// Phi and phi. At far negative x, where 1 + erf has no digits left, y is within 4 units in the last
// place as long as it is a normal number, and the slope within 4 of its larger term.
template <class T>
struct GeluTraits;

template <>
struct GeluTraits<float> {
  static constexpr float kStretch = 0.35f;
  static constexpr float kTail[] = {0.1396190164f,  0.1399059745f,   0.1194981414f,
                                    0.1068764616f,  -0.02642269503f, 0.1640634950f,
                                    -0.2600329001f, 0.1460690329f,   -0.02957654329f};
};

template <>
struct GeluTraits<double> {
  static constexpr double kStretch = 0.2;
  static constexpr double kTail[] = {
      0.0797884560862554341,   0.0797884556815234539,   0.0765969301873554253,
      0.0702136054516474401,   0.0610253298231080968,   0.0497576391440337438,
      0.0378095434923827604,   0.0243155703205615881,   0.0212464852800223587,
      -0.0160966588433326251,  0.0714531992375834625,   -0.174543575768109913,
      0.346765285959423467,    -0.569221991155454209,   0.740742014534076282,
      -0.761636908597075372,   0.602006368245493773,    -0.348579240675767721,
      0.138421567636964440,    -0.0332841982544627487,  0.00305825357891227746,
      0.000487663820319528195, -0.000113795185460942400};
};

template <class T>
struct GeluValues {
  Vec<T> y, slope;
};

template <class T>
[[gnu::always_inline]] inline GeluValues<T> gelu_values(Vec<T> x) {
  using Traits = GeluTraits<T>;
  const Vec<T> size = (Vec<T>)((Patterns<T>)x << 1 >> 1);  // |x|
  const Vec<T> t = T(1) / (T(1) + Traits::kStretch * size);
  constexpr int kTerms = sizeof(Traits::kTail) / sizeof(T);
  Vec<T> p = broadcast(Traits::kTail[kTerms - 1]);
#pragma GCC unroll 32
  for (int i = kTerms - 2; i >= 0; --i) p = p * t + Traits::kTail[i];
  const Vec<T> bell = exp_of_half_square<T>(x);
  const Vec<T> tail = bell * (p * t);
  const Vec<T> cumulative = x < T(0) ? tail : T(1) - tail;
  constexpr T kPeak = T(0.39894228040143267794);  // 1 / sqrt(2 pi)
  return {x * cumulative, x * (bell * kPeak) + cumulative};
}

template <class T, bool kBias>
void forward_elements(const Gelu<T> a, int64_t count) {
  each_vector<T>(count, [&](int64_t i, int64_t lanes) {
    Vec<T> z = load_at_most(a.x + i, lanes);
    if constexpr (kBias) z += load_at_most(a.bias + i, lanes);
    store_at_most<T>(a.y + i, gelu_values<T>(z).y, lanes);
  });
}

template <class T, bool kBias>
void backward_elements(const GeluBackward<T> a, int64_t count) {
  each_vector<T>(count, [&](int64_t i, int64_t lanes) {
    Vec<T> z = load_at_most(a.x + i, lanes);
    if constexpr (kBias) z += load_at_most(a.bias + i, lanes);
    const Vec<T> grad = rounded<T>(gelu_values<T>(z).slope * load_at_most(a.grad_y + i, lanes));
    store_at_most<T>(a.grad_x + i, grad, lanes);
    if constexpr (kBias) {
      store_at_most<T>(a.grad_bias + i, load_at_most(a.grad_bias + i, lanes) + grad, lanes);
    }
  });
}

// An element is always computed in the same way, so results do not depend on how elements are
// shared by threads.
template <class T>
void gelu_forward(const Gelu<T>& a, int64_t count) {
  a.bias ? forward_elements<T, true>(a, count) : forward_elements<T, false>(a, count);
}

template <class T>
void gelu_backward(const GeluBackward<T>& a, int64_t count) {
  a.bias ? backward_elements<T, true>(a, count) : backward_elements<T, false>(a, count);
}

}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt
