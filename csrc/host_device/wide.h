// A double with an extended exponent, for channels so sharp that products of likelihoods leave the
// range of a double. value = mantissa * 2^(512 * exponent), with 2^-256 <= |mantissa| < 2^256.
#pragma once

#include <cmath>
#include <cstdint>

#include "host_device/macros.h"

namespace bwt {

// Far below every exponent that products can reach: zero always loses the comparison in a sum.
constexpr int64_t kWideZeroExponent = -(int64_t{1} << 40);

// The exponent is as wide as the mantissa, so that there is no padding and one 16-byte access moves
// both. Zero unless told otherwise: with an exponent of 0 it would swallow small terms in a sum.
struct alignas(16) Wide {
  double mantissa = 0.0;
  int64_t exponent = kWideZeroExponent;
};

BWT_HD inline Wide normalised(double mantissa, int64_t exponent) {
  const double size = fabs(mantissa);
  if (size == 0.0) return {};
  if (size >= 0x1p256) return {mantissa * 0x1p-512, exponent + 1};
  if (size < 0x1p-256) return {mantissa * 0x1p512, exponent - 1};
  return {mantissa, exponent};
}

BWT_HD BWT_NOINLINE inline Wide operator*(Wide a, Wide b) {
  return normalised(a.mantissa * b.mantissa, a.exponent + b.exponent);
}

BWT_HD BWT_NOINLINE inline Wide operator/(Wide a, Wide b) {
  return normalised(a.mantissa / b.mantissa, a.exponent - b.exponent);
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

BWT_HD inline Wide power(Wide base, int32_t exponent) {
  Wide product{1.0, 0};
  for (; exponent > 0; exponent /= 2, base = base * base) {
    if (exponent % 2 == 1) product = product * base;
  }
  return product;
}

// The range of an int holds for exponents that matter to ldexp.
BWT_HD inline int clamped(int64_t exponent) {
  constexpr int64_t kFar = 4096;
  return static_cast<int>(exponent < -kFar ? -kFar : exponent > kFar ? kFar : exponent);
}

// What the algorithm needs of a number type, for double and for Wide. A magnitude is a whole number
// that grows with the size of x > 0; shifted changes it by the given amount, without rounding x.
template <class Real>
struct Number;

template <>
struct Number<double> {
  static constexpr bool kWide = false;
  BWT_HD static double from(double x) { return x; }
  BWT_HD static double to_double(double x) { return x; }
  BWT_HD static double log(double x) { return ::log(x); }
  BWT_HD static bool is_zero(double x) { return x == 0.0; }
  BWT_HD static int64_t magnitude(double x) { return ilogb(x); }
  BWT_HD static double shifted(double x, int64_t by) { return ldexp(x, clamped(by)); }
  BWT_HD static double shifted_from(Wide x, int64_t by) {
    return ldexp(x.mantissa, clamped(512 * x.exponent + by));
  }
};

template <>
struct Number<Wide> {
  static constexpr bool kWide = true;
  BWT_HD static Wide from(double x) {
    const Wide once = normalised(x, 0);  // from the ends of a double's range it takes two steps
    return normalised(once.mantissa, once.exponent);
  }
  BWT_HD static double to_double(Wide x) { return ldexp(x.mantissa, clamped(512 * x.exponent)); }
  BWT_HD static double log(Wide x) {
    constexpr double kLogUnit = 354.89135644669199;  // 512 ln 2
    return ::log(x.mantissa) + kLogUnit * static_cast<double>(x.exponent);
  }
  BWT_HD static bool is_zero(Wide x) { return x.mantissa == 0.0; }
  BWT_HD static int64_t magnitude(Wide x) { return x.exponent; }
  BWT_HD static Wide shifted(Wide x, int64_t by) {
    return is_zero(x) ? Wide{} : Wide{x.mantissa, x.exponent + by};
  }
  BWT_HD static Wide shifted_from(Wide x, int64_t by) { return shifted(x, by); }
};

}  // namespace bwt
