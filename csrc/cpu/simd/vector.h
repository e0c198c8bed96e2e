// Vectors of BWT_SIMD_BYTES for one instruction-set level, with GCC and Clang vector extensions.
// Included once per level by the kernels that foreach_level.h includes, so there is no include
// guard. Products and sums in one expression become fused multiply-adds where the level has them
// (-ffp-contract is on by default).

namespace bwt {
namespace BWT_SIMD {

template <class T>
struct VectorTraits;

// exp(r) = 1 + r + r^2 * (kExp[0] + kExp[1] * r + ...) for |r| <= log(2) / 2, the polynomials of
// least relative error (3e-9 and 4e-18). kLn2High has trailing zeros, so that n * kLn2High is
// exact.
template <>
struct VectorTraits<float> {
  typedef float Vec __attribute__((vector_size(BWT_SIMD_BYTES)));
  typedef int32_t Bits __attribute__((vector_size(BWT_SIMD_BYTES)));
  typedef uint32_t Patterns __attribute__((vector_size(BWT_SIMD_BYTES)));
  static constexpr int kMantissaBits = 23;
  static constexpr int32_t kOneBits = 0x3f800000;
  static constexpr float kRounder = 0x1.8p23f;  // x + kRounder has round(x) in its lowest bits
  static constexpr float kLog2e = 0x1.715476p+0f;
  static constexpr float kLn2High = 0x1.62e4p-1f;
  static constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  static constexpr float kExpFloor = -87.3f;  // above the log of the smallest normal number
  static constexpr float kExp[] = {0.49999993412897837f, 0.16666520116397047f,
                                   0.041668394155429318f, 0.0083687792279258460f,
                                   0.0013814465455779863f};
  static constexpr int kLogSteps = 2;
};

template <>
struct VectorTraits<double> {
  typedef double Vec __attribute__((vector_size(BWT_SIMD_BYTES)));
  typedef int64_t Bits __attribute__((vector_size(BWT_SIMD_BYTES)));
  typedef uint64_t Patterns __attribute__((vector_size(BWT_SIMD_BYTES)));
  static constexpr int kMantissaBits = 52;
  static constexpr int64_t kOneBits = 0x3ff0000000000000;
  static constexpr double kRounder = 0x1.8p52;
  static constexpr double kLog2e = 0x1.71547652b82fep+0;
  static constexpr double kLn2High = 0x1.62e42fefap-1;
  static constexpr double kLn2Low = 0x1.cf79abc9e3b39p-40;
  static constexpr double kExpFloor = -708.3;
  static constexpr double kExp[] = {
      0.50000000000000107,   0.16666666666666410,    0.041666666666529199,    0.0083333333334955954,
      0.0013888888943918682, 0.00019841269504823246, 0.000024801492768000227, 2.7557587298636810e-6,
      2.7630376418028471e-7, 2.4999975651012787e-8};
  static constexpr int kLogSteps = 3;
};

template <class T>
using Vec = typename VectorTraits<T>::Vec;
template <class T>
using Bits = typename VectorTraits<T>::Bits;
// For arithmetic on bit patterns that may wrap around, as signed numbers must not.
template <class T>
using Patterns = typename VectorTraits<T>::Patterns;

template <class T>
constexpr int kLanes = BWT_SIMD_BYTES / sizeof(T);

constexpr int64_t round_down(int64_t n, int64_t unit) { return n - n % unit; }
constexpr int64_t round_up(int64_t n, int64_t unit) { return round_down(n + unit - 1, unit); }
constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

template <class T>
void clear(T* numbers, int64_t count) {
  if (count > 0) __builtin_memset(numbers, 0, count * sizeof(T));
}

template <class T>
[[gnu::always_inline]] inline Vec<T> broadcast(T x) {
  return x - Vec<T>{};  // not x + 0, which is not -0 for x = -0
}

template <class T>
[[gnu::always_inline]] inline Vec<T> load(const T* from) {
  Vec<T> v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

template <class T>
[[gnu::always_inline]] inline void store(T* to, Vec<T> v) {
  __builtin_memcpy(to, &v, sizeof v);
}

// Past the cache, to an aligned address.
template <class T>
[[gnu::always_inline]] inline void stream(T* to, Vec<T> v) {
#if defined(BWT_SIMD_X86) && BWT_SIMD_BYTES == 16
  _mm_stream_ps(reinterpret_cast<float*>(to), (__m128)v);
#elif defined(BWT_SIMD_X86) && BWT_SIMD_BYTES == 32
  _mm256_stream_ps(reinterpret_cast<float*>(to), (__m256)v);
#elif defined(BWT_SIMD_X86) && BWT_SIMD_BYTES == 64
  _mm512_stream_ps(reinterpret_cast<float*>(to), (__m512)v);
#else
  store(to, v);
#endif
}

// Lets other threads see what was streamed.
inline void end_streams() {
#ifdef BWT_SIMD_X86
  _mm_sfence();
#endif
}

// The first count < kLanes lanes, in pieces of 1, 2, 4, .. lanes. The others are read as zeros.
template <class T>
inline Vec<T> load_partial(const T* from, int64_t count) {
  alignas(BWT_SIMD_BYTES) T lanes[kLanes<T>] = {};
  int64_t done = 0;
  for (int piece = kLanes<T> / 2; piece > 0; piece /= 2) {
    if (!(count & piece)) continue;
    __builtin_memcpy(lanes + done, from + done, piece * sizeof(T));
    done += piece;
  }
  return load(lanes);
}

template <class T>
inline void store_partial(T* to, Vec<T> v, int64_t count) {
  alignas(BWT_SIMD_BYTES) T lanes[kLanes<T>];
  store(lanes, v);
  int64_t done = 0;
  for (int piece = kLanes<T> / 2; piece > 0; piece /= 2) {
    if (!(count & piece)) continue;
    __builtin_memcpy(to + done, lanes + done, piece * sizeof(T));
    done += piece;
  }
}

// At most `count` lanes: a whole vector if there are as many.
template <class T>
[[gnu::always_inline]] inline Vec<T> load_at_most(const T* from, int64_t count) {
  return count >= kLanes<T> ? load(from) : load_partial(from, count);
}

template <class T>
[[gnu::always_inline]] inline void store_at_most(T* to, Vec<T> v, int64_t count) {
  if (count >= kLanes<T>) {
    store(to, v);
  } else {
    store_partial(to, v, count);
  }
}

// work(i, count) for each vector of `size` numbers, the last one perhaps of fewer lanes.
template <class T, class Work>
[[gnu::always_inline]] inline void each_vector(int64_t size, Work work) {
  int64_t i = 0;
  for (; i + kLanes<T> <= size; i += kLanes<T>) work(i, kLanes<T>);
  if (i < size) work(i, size - i);
}

// v, not to be merged into a fused multiply-add with what follows: for kernels that have to round
// as others do which store v in between.
template <class T>
[[gnu::always_inline]] inline Vec<T> rounded(Vec<T> v) {
#if defined(BWT_SIMD_X86) && BWT_SIMD_BYTES == 64
  asm("" : "+v"(v));
#elif defined(BWT_SIMD_X86)
  asm("" : "+x"(v));
#elif defined(__aarch64__)
  asm("" : "+w"(v));
#else
  asm("" : "+m"(v));
#endif
  return v;
}

template <class T, std::size_t... kLane>
[[gnu::always_inline]] inline Vec<T> lane_numbers(std::index_sequence<kLane...>) {
  return Vec<T>{T(kLane)...};
}

// 0, 1, 2, ..
template <class T>
[[gnu::always_inline]] inline Vec<T> lane_numbers() {
  return lane_numbers<T>(std::make_index_sequence<kLanes<T>>());
}

template <class T>
[[gnu::always_inline]] inline Vec<T> maximum(Vec<T> a, Vec<T> b) {
  return a < b ? b : a;
}

// Whether any lane of a comparison is true.
template <class T>
[[gnu::always_inline]] inline bool any(Bits<T> mask) {
  int64_t words[sizeof(mask) / sizeof(int64_t)];
  __builtin_memcpy(words, &mask, sizeof mask);
  int64_t all = 0;
  for (int64_t word : words) all |= word;
  return all != 0;
}

// Swaps lanes at a distance, a power of 2.
template <class T, int kDistance, std::size_t... kLane>
[[gnu::always_inline]] inline Vec<T> exchange(Vec<T> v, std::index_sequence<kLane...>) {
  return __builtin_shufflevector(v, v, (kLane ^ kDistance)...);
}

// The sum and the largest of all lanes, in every lane.
template <class T, int kDistance = kLanes<T> / 2>
[[gnu::always_inline]] inline Vec<T> sum_lanes(Vec<T> v) {
  v += exchange<T, kDistance>(v, std::make_index_sequence<kLanes<T>>());
  if constexpr (kDistance > 1) v = sum_lanes<T, kDistance / 2>(v);
  return v;
}

template <class T, int kDistance = kLanes<T> / 2>
[[gnu::always_inline]] inline Vec<T> max_lanes(Vec<T> v) {
  v = maximum<T>(v, exchange<T, kDistance>(v, std::make_index_sequence<kLanes<T>>()));
  if constexpr (kDistance > 1) v = max_lanes<T, kDistance / 2>(v);
  return v;
}

template <class T, int kBlock, std::size_t... kLane>
[[gnu::always_inline]] inline void swap_blocks(Vec<T>& a, Vec<T>& b,
                                               std::index_sequence<kLane...>) {
  constexpr int n = kLanes<T>;
  const Vec<T> low =
      __builtin_shufflevector(a, b, (kLane & kBlock ? n + kLane - kBlock : kLane)...);
  const Vec<T> high =
      __builtin_shufflevector(a, b, (kLane & kBlock ? n + kLane : kLane + kBlock)...);
  a = low;
  b = high;
}

// 16 bytes, within which shuffles are cheapest.
template <class T>
constexpr int kSegment = 16 / sizeof(T);

// Lanes of a and b by turns: those of the lower or the upper halves of their segments, `kGroup`
// together.
template <class T, int kGroup, bool kUpper, std::size_t... kLane>
[[gnu::always_inline]] inline Vec<T> interleave(Vec<T> a, Vec<T> b, std::index_sequence<kLane...>) {
  constexpr int m = kSegment<T>;
  return __builtin_shufflevector(
      a, b,
      (kLane / m * m + kUpper * m / 2 + kLane % m / (2 * kGroup) * kGroup + kLane % kGroup +
       (kLane / kGroup % 2) * kLanes<T>)...);
}

// rows[i] of each segment = the segment's column i, for as many rows as a segment has lanes.
template <class T>
[[gnu::always_inline]] inline void transpose_segments(Vec<T>* rows) {
  constexpr auto lanes = std::make_index_sequence<kLanes<T>>();
  if constexpr (kSegment<T> == 2) {
    const Vec<T> first = interleave<T, 1, false>(rows[0], rows[1], lanes);
    rows[1] = interleave<T, 1, true>(rows[0], rows[1], lanes);
    rows[0] = first;
  } else {
    const Vec<T> low[] = {interleave<T, 1, false>(rows[0], rows[1], lanes),
                          interleave<T, 1, false>(rows[2], rows[3], lanes)};
    const Vec<T> high[] = {interleave<T, 1, true>(rows[0], rows[1], lanes),
                           interleave<T, 1, true>(rows[2], rows[3], lanes)};
    rows[0] = interleave<T, 2, false>(low[0], low[1], lanes);
    rows[1] = interleave<T, 2, true>(low[0], low[1], lanes);
    rows[2] = interleave<T, 2, false>(high[0], high[1], lanes);
    rows[3] = interleave<T, 2, true>(high[0], high[1], lanes);
  }
}

// Transposes a square of kLanes rows: swaps its off-diagonal quarters, then those of the quarters,
// down to segments. With fewer kRows, each stretch of as many lanes is transposed for itself.
template <class T, int kRows = kLanes<T>, int kBlock = kRows / 2>
[[gnu::always_inline]] inline void transpose(Vec<T>* rows) {
  if constexpr (kBlock >= kSegment<T>) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      if (i & kBlock) continue;
      swap_blocks<T, kBlock>(rows[i], rows[i + kBlock], std::make_index_sequence<kLanes<T>>());
    }
    transpose<T, kRows, kBlock / 2>(rows);
  } else {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; i += kSegment<T>) transpose_segments<T>(rows + i);
  }
}

// Half a vector.
template <class T>
struct HalfTraits {
  typedef T Vec __attribute__((vector_size(BWT_SIMD_BYTES / 2)));
};

template <class T, std::size_t... kLane>
[[gnu::always_inline]] inline void store_halves(T* low, T* high, Vec<T> v,
                                                std::index_sequence<kLane...>) {
  const typename HalfTraits<T>::Vec a = __builtin_shufflevector(v, v, kLane...),
                                    b = __builtin_shufflevector(v, v,
                                                                (kLane + sizeof...(kLane))...);
  __builtin_memcpy(low, &a, sizeof a);
  __builtin_memcpy(high, &b, sizeof b);
}

// The lower lanes to one place, the upper ones to another.
template <class T>
[[gnu::always_inline]] inline void store_halves(T* low, T* high, Vec<T> v) {
  store_halves<T>(low, high, v, std::make_index_sequence<kLanes<T> / 2>());
}

// 2^n exp(r), where `rounded` is n + kRounder and x = n log(2) + r; 0 for x at and below kExpFloor.
template <class T>
[[gnu::always_inline]] inline Vec<T> exp_of_reduced(Vec<T> x, Vec<T> rounded, Vec<T> r) {
  using Traits = VectorTraits<T>;
  constexpr int kTerms = sizeof(Traits::kExp) / sizeof(T);
  Vec<T> p = broadcast(Traits::kExp[kTerms - 1]);
#pragma GCC unroll 16
  for (int i = kTerms - 2; i >= 0; --i) p = p * r + Traits::kExp[i];
  p = p * r + T(1);
  p = p * r + T(1);
  const Patterns<T> power = (Patterns<T>)rounded << Traits::kMantissaBits;  // 2^n as exponent
  return (Vec<T>)(((Patterns<T>)p + power) & ~(Patterns<T>)(x <= Traits::kExpFloor));
}

// exp(x) for kExpFloor < x < 88 within 2 units in the last place, 0 at and below kExpFloor.
template <class T>
[[gnu::always_inline]] inline Vec<T> exp(Vec<T> x) {
  using Traits = VectorTraits<T>;
  const Vec<T> rounded = x * Traits::kLog2e + Traits::kRounder;
  const Vec<T> n = rounded - Traits::kRounder;
  Vec<T> r = x - n * Traits::kLn2High;
  r = r - n * Traits::kLn2Low;
  return exp_of_reduced<T>(x, rounded, r);
}

// exp(-x^2 / 2) as precisely: the square is not rounded before it is reduced.
template <class T>
[[gnu::always_inline]] inline Vec<T> exp_of_half_square(Vec<T> x) {
  using Traits = VectorTraits<T>;
  const Vec<T> half = x * T(-0.5), square = half * x;
  const Vec<T> range = square * Traits::kLog2e + Traits::kRounder;
  const Vec<T> n = range - Traits::kRounder;
  const Vec<T> multiple = rounded<T>(n * Traits::kLn2High);
#if BWT_SIMD_BYTES > 16 || defined(__aarch64__)
  Vec<T> r = half * rounded<T>(x) - multiple;  // a fused multiply-add
#else
  constexpr int kCut = Traits::kMantissaBits / 2 + 1;  // the square of the other digits is exact
  const Vec<T> leading = (Vec<T>)((Patterns<T>)x >> kCut << kCut), trailing = x - leading;
  Vec<T> r = (leading * leading * T(-0.5) - multiple) + trailing * (half + leading * T(-0.5));
#endif
  r = r - n * Traits::kLn2Low;
  return exp_of_reduced<T>(square, range, r);
}

// log(z) for z >= 1: a guess that takes log2 as linear between powers of 2, then Halley's iteration
// for exp(y) = z, of third order.
template <class T>
[[gnu::always_inline]] inline Vec<T> log(Vec<T> z) {
  using Traits = VectorTraits<T>;
  const T unit = T(0.6931471805599453) / T(int64_t{1} << Traits::kMantissaBits);
  Vec<T> y = __builtin_convertvector((Bits<T>)z - Traits::kOneBits, Vec<T>) * unit;
  for (int step = 0; step < Traits::kLogSteps; ++step) {
    const Vec<T> e = exp<T>(y);
    y += T(2) * (z - e) / (z + e);
  }
  return y;
}

}  // namespace BWT_SIMD
}  // namespace bwt
