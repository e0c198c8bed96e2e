// A double with an extended exponent, for channels so sharp that products of likelihoods leave the
// range of a double. value = mantissa * 2^(512 * exponent), with 2^-256 <= |mantissa| < 2^256.
#pragma once

#include <cmath>
#include <cstdint>

#include "macros.h"

namespace bwt {

// As wide as the mantissa, so that there is no padding and one 16-byte access moves both.
struct alignas(16) Wide {
  double mantissa;
  int64_t exponent;
};

// Far below every exponent that products can reach: zero always loses the comparison in a sum.
constexpr int64_t kWideZeroExponent = -(1 << 24);

BWT_HD inline Wide normalised(double mantissa, int64_t exponent) {
  const double size = fabs(mantissa);
  if (size == 0.0) return {0.0, kWideZeroExponent};
  if (size >= 0x1p256) return {mantissa * 0x1p-512, exponent + 1};
  if (size < 0x1p-256) return {mantissa * 0x1p512, exponent - 1};
  return {mantissa, exponent};
}

BWT_HD BWT_NOINLINE inline Wide operator*(Wide a, Wide b) {
  return normalised(a.mantissa * b.mantissa, a.exponent + b.exponent);
}

BWT_HD BWT_NOINLINE inline Wide operator+(Wide a, Wide b) {
  if (a.exponent < b.exponent) {
    const Wide swap = a;
    a = b;
    b = swap;
  }
  const int64_t gap = a.exponent - b.exponent;
  if (gap == 0) return normalised(a.mantissa + b.mantissa, a.exponent);
  if (gap == 1) return normalised(a.mantissa + b.mantissa * 0x1p-512, a.exponent);
  return a;
}

BWT_HD inline Wide& operator+=(Wide& a, Wide b) {
  a = a + b;
  return a;
}

// What the algorithm needs of a number type, for double and for Wide.
template <class Real>
struct Number;

template <>
struct Number<double> {
  BWT_HD static double from(double x) { return x; }
  BWT_HD static double exp(double x) { return ::exp(x); }
  BWT_HD static double ratio(double a, double b) { return a / b; }
  BWT_HD static double divide(double a, double b) { return a / b; }
  BWT_HD static double to_double(double x) { return x; }
  BWT_HD static bool is_zero(double x) { return x == 0.0; }
};

template <>
struct Number<Wide> {
  BWT_HD static Wide from(double x) { return normalised(x, 0); }

  BWT_HD static Wide exp(double x) {
    if (x == -INFINITY) return {0.0, kWideZeroExponent};
    constexpr double kLogUnit = 354.89135644669199;  // 512 ln 2
    const double unit = rint(x / kLogUnit);
    return normalised(::exp(fma(-unit, kLogUnit, x)), static_cast<int64_t>(unit));
  }

  BWT_HD static double to_double(Wide x) {
    if (x.exponent > 2) return x.mantissa * INFINITY;
    if (x.exponent < -2) return 0.0;
    return ldexp(x.mantissa, static_cast<int>(512 * x.exponent));
  }

  BWT_HD static Wide divide(double a, Wide b) {
    const Wide x = from(a);
    return normalised(x.mantissa / b.mantissa, x.exponent - b.exponent);
  }

  BWT_HD static double ratio(Wide a, Wide b) {
    return to_double(normalised(a.mantissa / b.mantissa, a.exponent - b.exponent));
  }

  BWT_HD static bool is_zero(Wide x) { return x.mantissa == 0.0; }
};

}  // namespace bwt
