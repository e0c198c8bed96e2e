// What both passes of the selective scan share.
//
// Vectors hold channels. A chunk of steps is computed for one tile of channels after the other, and
// there for a group of states at a time. First come all exponentials of the group, which depend on
// nothing, then its recurrence, whose h are registers: in one loop the processor would see too few
// steps ahead to overlap the long chains of operations. These loops are functions of their own, not
// inlined, as they need all registers. Arrays in scratch are [vector][row][lane], so that what a
// group needs is in one piece; as rows of E numbers, often a power of two, it would be where the
// cache has few lines.

namespace bwt {
namespace BWT_SIMD {
namespace {

// Polynomials of least relative error:
// 2^f = kExp2[0] + kExp2[1] * f + .. for |f| <= 1/2 (2e-9 and 3e-18),
// 2 atanh(r) = r * (kAtanh[0] + kAtanh[1] * r^2 + ..) for |r| <= 1/3 (4e-9 and 1e-18).
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
  static constexpr float kAtanh[] = {2.00000000792092682f, 0.666663146810835416f,
                                     0.400249103191510252f, 0.279606023890012248f,
                                     0.281783360123540898f};
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
  static constexpr double kAtanh[] = {
      2.0,
      0.666666666666661342,
      0.400000000001903246,
      0.285714285449251124,
      0.222222241117760162,
      0.181817397876176812,
      0.153866354563681021,
      0.133001024855579383,
      0.121122491711155519,
      0.0831568349343618666,
      0.170600639344152621,
  };
};

constexpr int kTile = 2;  // vectors of channels
constexpr double kScanLog2e = 1.44269504088896340736;
constexpr double kScanLn2 = 0.69314718055994530942;

template <class T>
[[gnu::always_inline]] inline Vec<T> absolute(Vec<T> x) {
  return (Vec<T>)((Bits<T>)x & ~(Bits<T>)broadcast(T(-0.0)));
}

// Exponentials that are computed together, so that the processor need not wait for one.
constexpr int kAtOnce = 4;

// factor[i] = 2^(size * rate[i]), stage by stage for all i. Tame: |size * rate| < kLimit is known.
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
    const Patterns<T> power = (Patterns<T>)rounded[i] << VectorTraits<T>::kMantissaBits;
    factor[i] = (Vec<T>)((Patterns<T>)factor[i] + power);
  }
}

// The steps of a chunk and the channels that are computed at a time.
template <class T>
struct Tile {
  Tile(const ScanShape& shape, int64_t batch, int64_t first, int64_t steps, int64_t channel)
      : batch(batch),
        first(first),
        count(smaller(steps, shape.steps - first)),
        channel(channel),
        width(smaller(kTile * kLanes<T>, shape.channels - channel)) {}

  int64_t vectors() const { return (width + kLanes<T> - 1) / kLanes<T>; }
  int64_t numbers() const { return vectors() * count * kLanes<T>; }
  // Where the steps of a vector begin in [vector][step][lane].
  int64_t at(int64_t vector) const { return vector * count * kLanes<T>; }

  int64_t batch;
  int64_t first;  // step
  int64_t count;  // of steps
  int64_t channel;
  int64_t width;  // in channels
};

// Between `count` rows of `width` numbers and scratch [vector][row][lane]. What the next tile has
// of the rows is fetched.
template <class T>
void read_rows(const T* from, int64_t stride, int64_t count, int64_t width, T* to) {
  constexpr int lanes = kLanes<T>;
  for (int64_t row = 0; row < count; ++row, from += stride, to += lanes) {
    __builtin_prefetch(from + kTile * lanes);
    for (int64_t e = 0; e < width; e += lanes) {
      store(to + e * count, load_at_most(from + e, width - e));
    }
  }
}

template <class T>
void write_rows(const T* from, int64_t count, int64_t width, T* to, int64_t stride) {
  constexpr int lanes = kLanes<T>;
  for (int64_t row = 0; row < count; ++row, from += lanes, to += stride) {
    __builtin_prefetch(to + kTile * lanes, 1);
    for (int64_t e = 0; e < width; e += lanes) {
      store_at_most(to + e, load(from + e * count), width - e);
    }
  }
}

// Numbers [N,E] in scratch, as [vector][N][lane] for all channels.
template <class T>
struct Blocks {
  Blocks(const ScanShape& shape, Arena& arena)
      : states(shape.states),
        count(round_up(shape.channels, kLanes<T>) * shape.states),
        data(arena.take<T>(count)) {}

  T* at(int64_t channel, int64_t n) const { return data + channel * states + n * kLanes<T>; }
  void clear() const { BWT_SIMD::clear(data, count); }
  // From rows [N,E], or zeros from null; and back.
  void read(const T* rows, int64_t channels) const {
    if (rows == nullptr) return clear();
    read_rows(rows, channels, states, channels, data);
  }
  void write(T* rows, int64_t channels) const {
    write_rows(data, states, channels, rows, channels);
  }

  int64_t states;
  int64_t count;
  T* data;
};

// A in units of log 2.
template <class T>
struct Rates {
  Rates(const ScanShape& shape, Arena& arena)
      : scaled(shape, arena),
        largest(arena.take<T>(round_up(shape.channels, kLanes<T>))) {}

  void fill(const ScanInputs<T>& inputs) {
    const ScanShape& shape = inputs.shape;
    scaled.clear();
    clear(largest, round_up(shape.channels, kLanes<T>));
    for (int64_t e = 0; e < shape.channels; ++e) {
      const int64_t lane = e % kLanes<T>;
      for (int64_t n = 0; n < shape.states; ++n) {
        const T rate = inputs.A[e * shape.states + n] * T(kScanLog2e);
        const T size = rate < 0 ? -rate : rate;
        scaled.at(e - lane, n)[lane] = rate;
        largest[e] = size <= largest[e] ? largest[e] : size;  // NaN is largest
      }
    }
  }

  Blocks<T> scaled;
  T* largest;  // [E], of |scaled| over the states
};

// log(1 + e^x) = max(x, 0) + log(1 + w) with w = e^-|x|, and log(1 + w) = 2 atanh(w / (2 + w)), a
// polynomial that keeps its relative precision for small w. Its slope is the sigmoid. The arrays
// have room for a multiple of kAtOnce vectors.
template <class T>
[[gnu::noinline]] void softplus(const T* x, int64_t numbers, T* value, T* slope) {
  constexpr int lanes = kLanes<T>, kTerms = sizeof(ScanTraits<T>::kAtanh) / sizeof(T);
  constexpr T kLargest = (ScanTraits<T>::kLimit - 1) * T(kScanLn2);
  for (int64_t i = 0; i < numbers; i += kAtOnce * lanes) {
    Vec<T> sizes[kAtOnce], w[kAtOnce];
#pragma GCC unroll 8
    for (int k = 0; k < kAtOnce; ++k) {
      sizes[k] = absolute<T>(load(x + i + k * lanes));
      sizes[k] = sizes[k] > kLargest ? broadcast(kLargest) : sizes[k];  // NaN stays
    }
    exp2_products<T, true, kAtOnce>(broadcast(T(-kScanLog2e)), sizes, w);
#pragma GCC unroll 8
    for (int k = 0; k < kAtOnce; ++k) store(slope + i + k * lanes, w[k]);
  }
  for (int64_t i = 0; i < numbers; i += lanes) {
    const Vec<T> from = load(x + i), w = load(slope + i);
    const Vec<T> r = w / (T(2) + w), square = r * r;
    Vec<T> p = broadcast(ScanTraits<T>::kAtanh[kTerms - 1]);
#pragma GCC unroll 16
    for (int k = kTerms - 2; k >= 0; --k) p = p * square + ScanTraits<T>::kAtanh[k];
    store(value + i, r * p + (from < T(0) ? Vec<T>{} : from));  // NaN stays
    store(slope + i, (from > T(0) ? broadcast(T(1)) : w) / (T(1) + w));
  }
}

// What is computed once for all states, [vector][step][lane].
template <class T>
struct Steps {
  explicit Steps(Arena& arena)
      : u(take(arena)),
        size(take(arena)),
        input(take(arena)),
        slope(take(arena)) {}

  static T* take(Arena& arena) {
    return arena.take<T>(round_up(kTile * kScanChunk, kAtOnce) * kLanes<T>);
  }

  // Returns whether all factors are of moderate size, for rates up to `largest`.
  bool fill(const ScanInputs<T>& inputs, const Tile<T>& tile, const T* largest) {
    read(inputs.u, tile, u);
    read(inputs.delta, tile, inputs.softplus ? input : size);
    if (inputs.softplus) softplus(input, tile.numbers(), size, slope);
    bool tame = true;
    for (int64_t vector = 0; vector < tile.vectors(); ++vector) {
      const Vec<T> rate = load(largest + tile.channel + vector * kLanes<T>);
      tame &= fill_input(tile.at(vector), tile.at(vector + 1), rate);
    }
    return tame;
  }

  static void read(const ScanRows<const T>& rows, const Tile<T>& tile, T* to) {
    const T* from = rows.at(tile.batch, tile.first) + tile.channel;
    read_rows(from, rows.time_stride, tile.count, tile.width, to);
  }

  bool fill_input(int64_t begin, int64_t end, Vec<T> rate) {
    const T* sizes = size;
    const T* from = u;
    T* to = input;
    Bits<T> wild{};
    for (int64_t i = begin; i < end; i += kLanes<T>) {
      const Vec<T> step = load(sizes + i);
      wild |= ~(absolute<T>(step) * rate < ScanTraits<T>::kLimit);
      store(to + i, step * load(from + i));
    }
    return !any<T>(wild);
  }

  T* u;
  T* size;   // s
  T* input;  // s u
  T* slope;  // ds / d delta
};

// factors [step][group][lane] = 2^(size * rate)
template <class T, int kGroup, bool kTame>
[[gnu::noinline]] void exponentials(const T* sizes, int64_t count, const T* rates, T* factors) {
  constexpr int lanes = kLanes<T>, kWidth = kGroup < kAtOnce ? kGroup : kAtOnce;
  for (int64_t t = 0; t < count; ++t) {
    const Vec<T> size = load(sizes + t * lanes);
#pragma GCC unroll 8
    for (int n = 0; n < kGroup; n += kWidth, factors += kWidth * lanes) {
      Vec<T> rate[kWidth], factor[kWidth];
#pragma GCC unroll 8
      for (int i = 0; i < kWidth; ++i) rate[i] = load(rates + (n + i) * lanes);
      exp2_products<T, kTame, kWidth>(size, rate, factor);
#pragma GCC unroll 8
      for (int i = 0; i < kWidth; ++i) store(factors + i * lanes, factor[i]);
    }
  }
}

template <class T, int kGroup>
void fill_factors(const T* sizes, int64_t count, const T* rates, bool tame, T* factors) {
  if (tame) {
    exponentials<T, kGroup, true>(sizes, count, rates, factors);
  } else {
    exponentials<T, kGroup, false>(sizes, count, rates, factors);
  }
}

// D, or zeros.
template <class T>
Vec<T> skip_at(const ScanInputs<T>& inputs, int64_t channel) {
  if (inputs.D == nullptr) return Vec<T>{};
  return load_at_most(inputs.D + channel, inputs.shape.channels - channel);
}

// Calls run.template operator()<kGroup>(n) for groups of states that begin at n and cover all.
template <int kGroup, class Run>
void for_state_groups(int64_t states, Run run, int64_t n = 0) {
  for (; n + kGroup <= states; n += kGroup) run.template operator()<kGroup>(n);
  if constexpr (kGroup > 1) for_state_groups<kGroup / 2>(states, run, n);
}

}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt
