// Sequences whose probabilities leave the range of floats (arguments.h): each number has an
// exponent of its own. Nothing is normalised on the way, as nothing can underflow:
//   before_0 = pi,  joint_t = before_t * e_t,  before_{t+1} = joint_t A,  evidence_t = sum joint_t,
//   future_T-1 = 1,  future_{t-1} = A (e_t * future_t),
// so that filtered_t = joint_t / evidence_t, predicted_t = before_t / evidence_{t-1}, and
// smoothed_t = joint_t * future_t / evidence_T-1. The gradient of the log-likelihood consists of
// such products, without signs, and those of the distributions follow by the adjoint recursion.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/hmm_filter/arguments.h"

namespace bwt {

// Derivatives of this size count as overflow; many of them can be added.
constexpr double kHmmMost = 0x1p1000;

// mantissa * 2^exponent, the mantissa of size 0.5 to 1 or 0.
struct HmmWide {
  double mantissa = 0;
  int64_t exponent = 0;

  static HmmWide of(double x, int64_t lift = 0) {
    int exponent;
    const double mantissa = std::frexp(x, &exponent);
    return {mantissa, mantissa == 0 ? 0 : exponent + lift};
  }
  HmmWide operator*(const HmmWide& x) const {
    return of(mantissa * x.mantissa, exponent + x.exponent);
  }
  HmmWide operator/(const HmmWide& x) const {
    return of(mantissa / x.mantissa, exponent - x.exponent);
  }
  HmmWide operator-() const { return {-mantissa, exponent}; }
  // At most kHmmMost in size.
  double number() const {
    if (exponent > 1000) return std::copysign(kHmmMost, mantissa);
    return exponent < -1100 ? 0 : std::ldexp(mantissa, int(exponent));
  }
  double log() const { return std::log(mantissa) + exponent * 0.69314718055994530942; }
};

// A sum of such numbers, or of their products, next to the exponent of the largest.
class HmmWideSum {
 public:
  void add(double mantissa, int64_t exponent) {
    if (mantissa == 0) return;
    const int64_t above = exponent - exponent_;
    if (sum_ == 0) {
      sum_ = mantissa;
      exponent_ = exponent;
    } else if (above <= 0) {
      if (above > kDistance) sum_ += mantissa * power(above);
    } else {
      sum_ = mantissa + (-above > kDistance ? sum_ * power(-above) : 0);
      exponent_ = exponent;
    }
  }
  void add(const HmmWide& x) { add(x.mantissa, x.exponent); }
  void add(const HmmWide& x, const HmmWide& y) {
    add(x.mantissa * y.mantissa, x.exponent + y.exponent);
  }
  HmmWide total() const { return HmmWide::of(sum_, exponent_); }

 private:
  static constexpr int64_t kDistance = -200;  // far below the last bit

  static double power(int64_t exponent) {
    const int64_t bits = (exponent + 1023) << 52;
    double x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
  }

  double sum_ = 0;
  int64_t exponent_ = 0;
};

// One sequence and what its forward pass leaves.
template <class T>
class HmmExact {
 public:
  HmmExact(const HmmModel<T>& model, int64_t sequence)
      : m(model),
        b(sequence),
        S(model.states),
        length(model.lengths ? model.lengths[sequence] : model.steps),
        transition(S * S),
        column(S) {
    const T* matrix = m.transition + (m.own_transition ? b * S * S : 0);
    for (int64_t i = 0; i < S * S; ++i) transition[i] = HmmWide::of(matrix[i]);
  }

  // y_t; what is out of range counts as missing.
  int64_t symbol(int64_t t) const {
    const HmmObservations& y = m.observations;
    const int64_t at = b * y.batch_stride + t * y.time_stride;
    const int64_t found = y.wide ? static_cast<const int64_t*>(y.data)[at]
                                 : int64_t(static_cast<const int32_t*>(y.data)[at]);
    return found < m.symbols ? found : -1;
  }
  // e_t
  const std::vector<HmmWide>& emissions(int64_t t) {
    const T* table = m.emission + (m.own_emission ? b * S * m.symbols : 0);
    const int64_t y = symbol(t);
    for (int64_t j = 0; j < S; ++j) column[j] = HmmWide::of(y < 0 ? 1 : table[j * m.symbols + y]);
    return column;
  }
  std::vector<HmmWide> initial() const {
    const T* from = m.initial + (m.own_initial ? b * S : 0);
    std::vector<HmmWide> found(S);
    for (int64_t j = 0; j < S; ++j) found[j] = HmmWide::of(from[j]);
    return found;
  }
  // x A, or A x
  std::vector<HmmWide> times(const std::vector<HmmWide>& x, bool from_right) const {
    std::vector<HmmWide> found(S);
    for (int64_t j = 0; j < S; ++j) {
      HmmWideSum sum;
      for (int64_t i = 0; i < S; ++i) sum.add(x[i], transition[from_right ? j * S + i : i * S + j]);
      found[j] = sum.total();
    }
    return found;
  }
  static HmmWide sum(const std::vector<HmmWide>& x) {
    HmmWideSum sum;
    for (const HmmWide& each : x) sum.add(each);
    return sum.total();
  }

  const HmmModel<T>& m;
  const int64_t b, S, length;
  std::vector<HmmWide> transition;  // [S, S]
  std::vector<HmmWide> column;      // [S]
};

template <class T>
void exact_forward(const HmmForward<T>& a, int64_t sequence) {
  HmmExact<T> x(a.model, sequence);
  const int64_t S = x.S;
  T* predicted = a.predicted + sequence * a.model.steps * S;
  T* filtered = a.filtered + sequence * a.model.steps * S;
  std::fill_n(predicted, x.length * S, T(0));
  std::fill_n(filtered, x.length * S, T(0));
  std::vector<HmmWide> before = x.initial();
  HmmWide evidence = HmmWide::of(1);
  for (int64_t t = 0; t < x.length && evidence.mantissa > 0; ++t) {
    if (t > 0) before = x.times(before, false);
    for (int64_t j = 0; j < S; ++j) predicted[t * S + j] = T((before[j] / evidence).number());
    const std::vector<HmmWide>& e = x.emissions(t);
    for (int64_t j = 0; j < S; ++j) before[j] = before[j] * e[j];
    evidence = x.sum(before);
    if (evidence.mantissa == 0) break;
    for (int64_t j = 0; j < S; ++j) filtered[t * S + j] = T((before[j] / evidence).number());
  }
  a.log_likelihood[sequence] = T(evidence.log());
}

// Sums over the steps of one sequence.
struct HmmExactGradients {
  HmmExactGradients(int64_t S, int64_t V) : initial(S), transition(S * S), emission(S * V) {}
  std::vector<double> initial, transition, emission;
};

// The backward passes of one possible sequence.
template <class T>
class HmmExactBackward {
 public:
  HmmExactBackward(const HmmBackward<T>& arguments, int64_t sequence)
      : a(arguments),
        x(arguments.model, sequence),
        S(x.S),
        V(arguments.model.symbols),
        at(sequence * arguments.model.steps * x.S),
        before(x.length * S),
        evidence(x.length) {
    std::vector<HmmWide> now = x.initial();
    for (int64_t t = 0; t < x.length; ++t) {
      if (t > 0) now = x.times(now, false);
      std::copy(now.begin(), now.end(), before.begin() + t * S);
      const std::vector<HmmWide>& e = x.emissions(t);
      for (int64_t j = 0; j < S; ++j) now[j] = now[j] * e[j];
      evidence[t] = x.sum(now);
    }
  }

  void smooth() {
    std::fill_n(a.smoothed + at, a.model.steps * S, T(0));
    each_future([&](int64_t t, const std::vector<HmmWide>& seen, const std::vector<HmmWide>&) {
      for (int64_t j = 0; j < S; ++j) {
        a.smoothed[at + t * S + j] = T((before[t * S + j] * seen[j] / evidence.back()).number());
      }
    });
  }

  HmmExactGradients gradients() {
    HmmExactGradients sums(S, V);
    if (a.grad_log_likelihood && a.grad_log_likelihood[x.b] != 0) of_likelihood(sums);
    if (a.grad_filtered || a.grad_predicted) of_distributions(sums);
    return sums;
  }

 private:
  // run(t, e_t * future_t, future_t), from the last step to the first.
  template <class Run>
  void each_future(Run run) {
    std::vector<HmmWide> future(S, HmmWide::of(1)), seen(S);
    for (int64_t t = x.length - 1; t >= 0; --t) {
      const std::vector<HmmWide>& e = x.emissions(t);
      for (int64_t j = 0; j < S; ++j) seen[j] = e[j] * future[j];
      run(t, seen, future);
      future = x.times(seen, true);
    }
  }

  void of_likelihood(HmmExactGradients& sums) {
    const HmmWide weight = HmmWide::of(a.grad_log_likelihood[x.b]) / evidence.back();
    each_future([&](int64_t t, std::vector<HmmWide> seen, std::vector<HmmWide> future) {
      for (int64_t j = 0; j < S; ++j) {
        seen[j] = seen[j] * weight;
        future[j] = future[j] * weight;
      }
      add(t, seen, future, sums);
    });
  }

  // The terms of a step: adjoint is that of before_t, weights * before_t that of e_t.
  void add(int64_t t, const std::vector<HmmWide>& adjoint, const std::vector<HmmWide>& weights,
           HmmExactGradients& sums) {
    const int64_t y = x.symbol(t);
    for (int64_t j = 0; y >= 0 && j < S; ++j) {
      sums.emission[j * V + y] += (before[t * S + j] * weights[j]).number();
    }
    if (t == 0) {
      for (int64_t j = 0; j < S; ++j) sums.initial[j] += adjoint[j].number();
      return;
    }
    const std::vector<HmmWide>& e = x.emissions(t - 1);
    for (int64_t i = 0; i < S; ++i) {
      const HmmWide joint = before[(t - 1) * S + i] * e[i];
      if (joint.mantissa == 0) continue;
      for (int64_t j = 0; j < S; ++j) sums.transition[i * S + j] += (joint * adjoint[j]).number();
    }
  }

  // The recursion of arguments.h, whose adjoints are those of before_t / past.
  void of_distributions(HmmExactGradients& sums) {
    std::vector<HmmWide> later(S), adjoint(S), weights(S);
    for (int64_t t = x.length - 1; t >= 0; --t) {
      const std::vector<HmmWide> e = x.emissions(t);
      const HmmWide past = t > 0 ? evidence[t - 1] : HmmWide::of(1);
      HmmWideSum mean;
      for (int64_t j = 0; j < S; ++j) {
        if (a.grad_filtered) {
          HmmWideSum sum;
          sum.add(later[j]);
          sum.add(HmmWide::of(a.grad_filtered[at + t * S + j]));
          later[j] = sum.total();
        }
        mean.add(later[j], before[t * S + j] * e[j] / evidence[t]);
      }
      const HmmWide middle = -mean.total();
      for (int64_t j = 0; j < S; ++j) {
        HmmWideSum w, total;
        w.add(later[j]);
        w.add(middle);
        weights[j] = w.total() / evidence[t];
        adjoint[j] = weights[j] * e[j] * past;
        if (a.grad_predicted) {
          total.add(adjoint[j]);
          total.add(HmmWide::of(a.grad_predicted[at + t * S + j]));
          adjoint[j] = total.total();
        }
      }
      later = x.times(adjoint, true);
      for (int64_t j = 0; j < S; ++j) adjoint[j] = adjoint[j] / past;
      add(t, adjoint, weights, sums);
    }
  }

  const HmmBackward<T>& a;
  HmmExact<T> x;
  const int64_t S, V, at;
  std::vector<HmmWide> before;    // [T, S]
  std::vector<HmmWide> evidence;  // [T]
};

// Derivatives that overflow are the largest number.
template <class T>
T saturated(double x) {
  constexpr T kMost = std::numeric_limits<T>::max();
  const double limit = std::min(double(kMost), kHmmMost);
  return x >= limit ? kMost : x <= -limit ? -kMost : T(x);
}

template <class T>
void exact_backward(const HmmBackward<T>& a, int64_t sequence, const HmmSharedGradients& shared) {
  HmmExactBackward<T> pass(a, sequence);
  if (a.smoothed) return pass.smooth();
  const HmmExactGradients found = pass.gradients();
  const auto give = [&](const std::vector<double>& from, T* own, double* sums) {
    const int64_t count = from.size();
    for (int64_t i = 0; i < count; ++i) {
      if (own) {
        own[sequence * count + i] = saturated<T>(from[i]);
      } else {
        sums[i] += from[i];
      }
    }
  };
  give(found.initial, a.grad_initial, shared.initial);
  give(found.transition, a.grad_transition, shared.transition);
  give(found.emission, a.grad_emission, shared.emission);
}

}  // namespace bwt
