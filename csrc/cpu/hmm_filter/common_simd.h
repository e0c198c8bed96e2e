// What both layouts of hidden Markov models share. Emissions are looked up in a table of rows
// [V + 1][padded S], of which row 0 stands for a missing observation.

namespace bwt {
namespace BWT_SIMD {
namespace {

// An integer as wide as T.
template <class T>
using Integer = decltype(Bits<T>{}[0] + 0);

template <class T>
int64_t padded_states(const HmmModel<T>& model) {
  return round_up(model.states, kLanes<T>);
}
template <class T>
int64_t table_size(const HmmModel<T>& model) {
  return (model.symbols + 1) * padded_states(model);
}

// For at most this many steps, shared gradients are summed in T; then in double.
constexpr int64_t kStepsPerSum = 16384;

// Lanes in which a sum of probabilities is not 1. A NaN is wrong, too.
template <class T>
[[gnu::always_inline]] inline Bits<T> wrong_sum(Vec<T> sum, T tolerance) {
  return ~((sum - T(1) <= tolerance) & (sum - T(1) >= -tolerance));
}

// Whether each of `count` contiguous rows is a distribution.
template <class T>
bool are_distributions(const T* rows, int64_t count, int64_t length, T tolerance) {
  constexpr int n = kLanes<T>;
  for (const T* end = rows + count * length; rows < end; rows += length) {
    Vec<T> sum{};
    Bits<T> wrong{};
    for (int64_t i = 0; i < length; i += n) {
      const Vec<T> x = load_at_most(rows + i, length - i);
      sum += x;
      wrong |= ~(x >= T(0));
    }
    if (any<T>(wrong | wrong_sum<T>(sum_lanes<T>(sum), tolerance))) return false;
  }
  return true;
}

// Lanes below a limit, and those among them that are positive.
template <class T>
struct Below {
  [[gnu::always_inline]] void add(Vec<T> x, T limit) {
    const Bits<T> small = x < limit;
    any |= small;
    positive |= small & (x > T(0));
  }
  Bits<T> any = {}, positive = {};
};

// What its parameters say of a sequence (arguments.h): whether it has to be watched.
struct Care {
  bool watched = false;
  bool tiny = false;  // delicate if it is watched

  void add(const Care& other) {
    watched |= other.watched;
    tiny |= other.tiny;
  }
};

// Parameters that are null do not count.
template <class T>
Care care_for(int64_t S, int64_t V, const T* initial, const T* transition, const T* emission) {
  constexpr int n = kLanes<T>;
  const auto below = [](const T* numbers, int64_t count, T limit) {
    Below<T> found;
    for (int64_t i = 0; numbers && i < count; i += n) {
      // Lanes beyond the last are read as 1.
      const Vec<T> x = load_at_most(numbers + i, count - i);
      found.add(lane_numbers<T>() < T(count - i) ? x : broadcast(T(1)), limit);
    }
    return found;
  };
  const Below<T> start = below(initial, S, kHmmSmall<T>);
  const Below<T> steps = below(transition, S * S, kHmmSmall<T>);
  const Below<T> shown = below(emission, S * V, kHmmSmallEmission<T>);
  return {any<T>(start.any | steps.any), any<T>(steps.positive | shown.positive)};
}

template <class T>
Care shared_care(const HmmModel<T>& m) {
  return care_for(m.states, m.symbols, m.own_initial ? nullptr : m.initial,
                  m.own_transition ? nullptr : m.transition, m.own_emission ? nullptr : m.emission);
}

template <class T>
Care own_care(const HmmModel<T>& m, int64_t b) {
  const int64_t S = m.states, V = m.symbols;
  return care_for(S, V, m.own_initial ? m.initial + b * S : nullptr,
                  m.own_transition ? m.transition + b * S * S : nullptr,
                  m.own_emission ? m.emission + b * S * V : nullptr);
}

// Lanes whose number is positive, but so small that it might be lost later.
template <class T>
[[gnu::always_inline]] inline Bits<T> sinking(Vec<T> joint, Vec<T> limit) {
  return (joint < limit) & (joint > T(0));
}
template <class T>
[[gnu::always_inline]] inline Bits<T> too_large(Vec<T> x) {
  return ~((x <= kHmmLargest<T>)&(x >= -kHmmLargest<T>));
}

using Words = Bits<float>;
typedef uint32_t UnsignedWords __attribute__((vector_size(BWT_SIMD_BYTES)));
constexpr int kWords = kLanes<float>;

// y + 1 for kWords consecutive observations. Bits beyond the lower 32 are added to `lost`.
[[gnu::always_inline]] inline UnsignedWords load_rows_of(const int32_t* ids, Bits<double>&) {
  UnsignedWords words;
  __builtin_memcpy(&words, ids, sizeof words);
  return words + 1;
}
template <std::size_t... kLane>
[[gnu::always_inline]] inline UnsignedWords low_halves(Bits<double> a, Bits<double> b,
                                                       std::index_sequence<kLane...>) {
  return __builtin_shufflevector((UnsignedWords)a, (UnsignedWords)b, 2 * kLane...);
}
[[gnu::always_inline]] inline UnsignedWords load_rows_of(const int64_t* ids, Bits<double>& lost) {
  Bits<double> a, b;
  __builtin_memcpy(&a, ids, sizeof a);
  __builtin_memcpy(&b, ids + kWords / 2, sizeof b);
  a += 1;
  b += 1;
  lost |= a | b;
  return low_halves(a, b, std::make_index_sequence<kWords>());
}

// (y + 1) * unit + base for `count` >= kWords observations in a row. Returns false if one of them
// is out of range; then the offsets must not be used.
template <class Id>
bool offsets_in_range(const Id* ids, int64_t count, int64_t symbols, int32_t unit, int32_t base,
                      int32_t* offsets) {
  UnsignedWords largest{};
  Bits<double> lost{};
  for (int64_t next = 0; next < count; next += kWords) {
    const int64_t t = smaller(next, count - kWords);  // the last vector overlaps the one before
    const UnsignedWords rows = load_rows_of(ids + t, lost);
    largest = largest < rows ? rows : largest;
    const Words offset = (Words)rows * unit + base;
    __builtin_memcpy(offsets + t, &offset, sizeof offset);
  }
  lost &= ~int64_t{0xffffffff};
  return !any<float>(largest > uint32_t(symbols)) && !any<double>(lost);
}

// Table rows of some observations of one sequence, as offsets: (y + 1) * unit + base. Returns false
// if one is out of range; it counts as missing.
template <class Id>
bool table_offsets(const Id* ids, int64_t stride, int64_t count, int64_t symbols, int32_t unit,
                   int32_t base, int32_t* offsets) {
  if (stride == 1 && count >= kWords &&
      offsets_in_range(ids, count, symbols, unit, base, offsets)) {
    return true;
  }
  const uint64_t limit = symbols;
  bool right = true;
  for (int64_t t = 0; t < count; ++t) {
    const uint64_t row = uint64_t(int64_t(ids[t * stride])) + 1;
    right &= row <= limit;
    offsets[t] = int32_t(row <= limit ? row : 0) * unit + base;
  }
  return right;
}

template <class T>
bool table_offsets(const HmmModel<T>& model, int64_t sequence, int64_t step, int64_t count,
                   int32_t base, int32_t* offsets) {
  const HmmObservations& y = model.observations;
  const int64_t at = sequence * y.batch_stride + step * y.time_stride;
  const int32_t unit = int32_t(padded_states(model));
  if (y.wide) {
    return table_offsets(static_cast<const int64_t*>(y.data) + at, y.time_stride, count,
                         model.symbols, unit, base, offsets);
  }
  return table_offsets(static_cast<const int32_t*>(y.data) + at, y.time_stride, count,
                       model.symbols, unit, base, offsets);
}

// table[v + 1][s] = lifted emission[s][v]; zeros beyond S.
template <class T>
void fill_table(const HmmModel<T>& model, const T* emission, T* table) {
  const int64_t padded = padded_states(model), S = model.states, V = model.symbols;
  for (int64_t s = 0; s < padded; ++s) table[s] = s < S ? kHmmLift<T> : T(0);
  for (int64_t s = 0; s < padded; ++s) {
    T* column = table + padded + s;
    for (int64_t v = 0; v < V; ++v) {
      column[v * padded] = s < S ? emission[s * V + v] * kHmmLift<T> : T(0);
    }
  }
}

// gradient[s][v] (+)= table[v + 1][s]
template <class T, class Out>
void read_table(const HmmModel<T>& model, const T* table, Out* gradient, bool accumulate) {
  const int64_t padded = padded_states(model), V = model.symbols;
  for (int64_t s = 0; s < model.states; ++s) {
    for (int64_t v = 0; v < V; ++v) {
      const Out x = table[(v + 1) * padded + s];
      gradient[s * V + v] = accumulate ? gradient[s * V + v] + x : x;
    }
  }
}

// The length of a sequence, or 0 and `wrong` if it is out of range.
template <class T>
int64_t length_of(const HmmModel<T>& model, int64_t sequence, bool* wrong) {
  if (model.lengths == nullptr) return model.steps;
  const int64_t length = model.lengths[sequence];
  if (length >= 0 && length <= model.steps) return length;
  *wrong = true;
  return 0;
}

template <class T>
bool shared_parameters_are_wrong(const HmmModel<T>& m) {
  const int64_t S = m.states;
  const T tolerance = m.row_sum_tolerance;
  return (!m.own_initial && !are_distributions(m.initial, 1, S, tolerance)) ||
         (!m.own_transition && !are_distributions(m.transition, S, S, tolerance)) ||
         (!m.own_emission && !are_distributions(m.emission, S, m.symbols, tolerance));
}

constexpr double kLn2 = 0.69314718055994530942;

}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt
