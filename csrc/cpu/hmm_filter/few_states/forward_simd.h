// The forward pass for few states: one sequence in each lane.

namespace bwt {
namespace BWT_SIMD {
namespace {
namespace few_states {

template <class T>
struct ForwardScratch {
  ForwardScratch(const HmmModel<T>& model, Arena& arena)
      : chunk(chunk_steps(model)),
        parameters(model, arena),
        filtered(arena.take<T>(chunk * model.states * kLanes<T>)),
        predicted(arena.take<T>(chunk * model.states * kLanes<T>)) {}

  int64_t chunk;
  Parameters<T> parameters;
  T* filtered;   // [step, S][lane]
  T* predicted;  // [step, S][lane]
};

// What a block carries from step to step. Probabilities are not normalised, so that no step waits
// for a division: the recursion only divides them by a power of two next to their sum. So the sum
// of the last step is the product of all c_t but for these powers.
template <class T, int kStates>
struct Carried {
  Vec<T> joint[kStates] = {};         // predicted * lifted emission
  Vec<T> sum = Vec<T>{} + T(1);       // of these, at the last step that the sequence has
  Vec<T> scale = sum, inverse = sum;  // of the sum; 0 once the sequence has become impossible
  Bits<T> exponents = {};             // of all sums, biased
  Bits<T> impossible = {};
  Bits<T> delicate = {};
};

// 2^-k for a normal number in [2^k, 2^(k+1)).
template <class T>
[[gnu::always_inline]] inline Vec<T> power_below_inverse(Vec<T> x) {
  using Traits = VectorTraits<T>;
  constexpr auto kMantissa = (Integer<T>(1) << Traits::kMantissaBits) - 1;
  const Patterns<T> twice = (Patterns<T>)(Bits<T>{} + 2 * Traits::kOneBits);
  return (Vec<T>)(twice - (Patterns<T>)((Bits<T>)x & ~kMantissa));
}

template <class T, int kCount>
[[gnu::always_inline]] inline Vec<T> tree_sum(const Vec<T>* x) {
  if constexpr (kCount == 1)
    return x[0];
  else
    return tree_sum<T, kCount / 2>(x) + tree_sum<T, kCount - kCount / 2>(x + kCount / 2);
}

// The chunk will be written to `rows` of both outputs. They are fetched into the cache during the
// arithmetic, a long chain of dependent steps; otherwise all stores would wait for memory at once.
template <class T, int kStates, bool kWatched>
void forward_chunk(const ForwardScratch<T>& scratch, const Block<T>& block, bool ragged,
                   int64_t begin, int64_t end, T* const* rows, Carried<T, kStates>& carried) {
  constexpr int n = kLanes<T>;
  constexpr int kLineNumbers = kLineBytes / sizeof(T);
  int64_t fetched = 0;
  const Parameters<T> parameters = scratch.parameters;
  Carried<T, kStates> state = carried;
  T* predicted = scratch.predicted;
  T* filtered = scratch.filtered;
  for (int64_t t = begin; t < end; ++t, predicted += kStates * n, filtered += kStates * n) {
    const Bits<T> active = ragged ? block.active(t) : ~Bits<T>{};
    if (ragged) {
      state.scale = (Vec<T>)((Bits<T>)state.scale & active);
      state.inverse = (Vec<T>)((Bits<T>)state.inverse & active);
    }
    Vec<T> scaled[kStates];
#pragma GCC unroll 8
    for (int j = 0; j < kStates; ++j) {
      Vec<T> next;
      if (t == 0) {
        next = load(parameters.initial + j * n);
      } else {
        next = state.joint[0] * load(parameters.transition + j * n);
#pragma GCC unroll 8
        for (int i = 1; i < kStates; ++i) {
          next = state.joint[i] * load(parameters.transition + (i * kStates + j) * n) + next;
        }
      }
      store(predicted + j * n, next * state.inverse);
      scaled[j] = next * state.scale;
    }
    Vec<T> e[kStates];
    parameters.template emissions<kStates>(t - begin, e);
    if (fetched <= (t - begin) * kStates) {
#pragma GCC unroll 32
      for (int row = 0; row < 2 * n; ++row) __builtin_prefetch(rows[row] + fetched, 1);
      fetched += kLineNumbers;
    }
#pragma GCC unroll 8
    for (int j = 0; j < kStates; ++j) state.joint[j] = scaled[j] * e[j];
    const Vec<T> sum = tree_sum<T, kStates>(state.joint);
    const Bits<T> possible = sum >= T(1);
    state.impossible |= active & ~possible;
    state.delicate |= (Bits<T>)sum & ~possible;  // not 0
    if (kWatched) {
#pragma GCC unroll 8
      for (int j = 0; j < kStates; ++j) {
        state.delicate |= sinking<T>(state.joint[j], sum * kHmmFloor<T>);
      }
    }
    state.sum = ragged ? (active ? sum : state.sum) : sum;
    state.exponents += (Bits<T>)sum >> VectorTraits<T>::kMantissaBits;
    state.scale = (Vec<T>)((Bits<T>)power_below_inverse<T>(sum) & possible);
    state.inverse = (Vec<T>)((Bits<T>)(T(1) / sum) & possible);
#pragma GCC unroll 8
    for (int j = 0; j < kStates; ++j) store(filtered + j * n, state.joint[j] * state.inverse);
  }
  carried = state;
}

// The logarithm of a product of `steps` lifted numbers, from their last sum and all exponents.
template <class T>
double log_of(T sum, int64_t exponents, int64_t steps) {
  constexpr int kBias = std::numeric_limits<T>::max_exponent - 1;
  int exponent;  // of the last sum, which all have
  const double mantissa = 2 * std::frexp(double(sum), &exponent);
  return std::log(mantissa) + (exponents - steps * (kBias + kHmmLiftExponent<T>)) * kLn2;
}

template <class T, int kStates>
void forward_block(const HmmForward<T>& a, int64_t number, ForwardScratch<T>& scratch) {
  constexpr int n = kLanes<T>;
  const HmmModel<T>& m = a.model;
  Block<T> block(m, number);
  const bool ragged = block.ragged(m.steps);
  scratch.parameters.load_own(m, block);
  const auto run =
      any<T>(block.watched) ? forward_chunk<T, kStates, true> : forward_chunk<T, kStates, false>;
  Carried<T, kStates> state;
  state.delicate = block.watched & block.tiny;
  int64_t exponents[n] = {};
  T* rows[2 * n];
  for (int64_t begin = 0; begin < m.steps; begin += scratch.chunk) {
    const int64_t end = smaller(m.steps, begin + scratch.chunk);
    const int64_t count = (end - begin) * kStates, size = m.steps * kStates;
    scratch.parameters.find_rows(m, block, begin, end);
    block.point(a.predicted, size, begin * kStates, rows);
    block.point(a.filtered, size, begin * kStates, rows + n);
    run(scratch, block, ragged, begin, end, rows, state);
    for (int lane = 0; lane < n; ++lane) exponents[lane] += state.exponents[lane];
    state.exponents = Bits<T>{};
    store_rows(scratch.predicted, count, block.lanes, rows);
    store_rows(scratch.filtered, count, block.lanes, rows + n);
  }
  for (int lane = 0; lane < block.lanes; ++lane) {
    a.delicate[block.first + lane] = state.delicate[lane] && !block.wrong[lane];
    const double log = log_of(state.sum[lane], exponents[lane], block.length[lane]);
    a.log_likelihood[block.first + lane] = block.wrong[lane] ? std::numeric_limits<T>::quiet_NaN()
                                           : state.impossible[lane]
                                               ? -std::numeric_limits<T>::infinity()
                                               : T(log);
  }
}

template <class T, int kStates>
void forward_blocks(const HmmForward<T>& a, int64_t begin, int64_t end, void* memory) {
  Arena arena(memory);
  ForwardScratch<T> scratch(a.model, arena);
  scratch.parameters.load_shared(a.model);
  for (int64_t block = begin; block < end; ++block) forward_block<T, kStates>(a, block, scratch);
}

}  // namespace few_states
}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt
