// The forward pass for many states: vectors of states.

namespace bwt {
namespace BWT_SIMD {
namespace {
namespace many_states {

// The product of many numbers in double, as mantissa and exponent.
class LogProduct {
 public:
  void multiply(double x) {
    int64_t bits;
    x *= mantissa_;
    __builtin_memcpy(&bits, &x, sizeof bits);
    exponent_ += (bits >> 52) - 1023;
    bits = (bits & ((int64_t{1} << 52) - 1)) | VectorTraits<double>::kOneBits;
    __builtin_memcpy(&mantissa_, &bits, sizeof bits);
  }
  double log(int64_t lifted) const { return std::log(mantissa_) + (exponent_ - lifted) * kLn2; }

 private:
  double mantissa_ = 1.0;
  int64_t exponent_ = 0;
};

constexpr int64_t kOffsetsChunk = 256;  // steps whose observations are looked up at a time

template <class T>
struct ForwardScratch {
  ForwardScratch(const HmmModel<T>& model, Arena& arena)
      : transition(model, false, arena),
        tables(model, arena),
        joint(arena.take<T>(kTileRows * transition.stride())),
        product(arena.take<T>(kTileRows * transition.stride())),
        offsets(arena.take<int32_t>(kTileRows * kOffsetsChunk)) {}

  Transition<T> transition;
  Tables<T> tables;
  T* joint;          // [row, padded S]: predicted * lifted emission
  T* product;        // [row, padded S]: joint * transition
  int32_t* offsets;  // [row, step]
  bool shared_wrong = false;
  Care care;  // of shared parameters
};

// What a sequence carries from step to step.
template <class T>
struct ForwardRow {
  int64_t sequence;
  int64_t length;
  T inverse = 1;
  bool wrong = false;
  bool impossible = false;
  bool delicate = false;
  LogProduct likelihood;
};

// How a row is written: in whole vectors if they fill it, or if later steps of the same sequence
// overwrite what lies beyond.
enum class RowStore { kPartial, kWhole, kStreamed };

template <RowStore kStore, class T>
[[gnu::always_inline]] inline void store_row(T* to, int64_t i, int64_t states, Vec<T> v) {
  if constexpr (kStore == RowStore::kStreamed) {
    stream(to + i, v);
  } else if constexpr (kStore == RowStore::kWhole) {
    store(to + i, v);
  } else {
    store_at_most(to + i, v, states - i);
  }
}

// One step of one sequence, from `product` (or the initial distribution) to `joint`.
template <RowStore kStore, bool kWatched, class T>
void forward_step(const HmmForward<T>& a, const T* from, int64_t limit, const T* emission,
                  int64_t t, T* joint, ForwardRow<T>& row) {
  constexpr int n = kLanes<T>;
  const int64_t S = a.model.states, at = (row.sequence * a.model.steps + t) * S;
  const T inverse = t == 0 ? T(1) : row.inverse;
  T* predicted = a.predicted + at;
  T* filtered = a.filtered + at;
  Vec<T> sum = {};
  for (int64_t i = 0; i < S; i += n) {
    const Vec<T> p = load_at_most(from + i, limit - i) * inverse;
    const Vec<T> u = p * load(emission + i);
    store_row<kStore>(predicted, i, S, p);
    store(joint + i, u);
    sum += u;
  }
  const T total = sum_lanes<T>(sum)[0];
  const bool possible = total >= 1;
  row.inverse = possible ? 1 / total : 0;
  row.impossible |= !possible;
  row.delicate |= !possible && total != 0;
  if (possible) row.likelihood.multiply(total);
  const Vec<T> floor = broadcast(total * kHmmFloor<T>);
  Bits<T> low = {};
  for (int64_t i = 0; i < S; i += n) {
    const Vec<T> u = load(joint + i);
    store_row<kStore, T>(filtered, i, S, u * row.inverse);
    if (kWatched) low |= sinking<T>(u, floor);
  }
  if (kWatched && any<T>(low)) row.delicate = true;
}

template <class T, bool kWatched>
auto forward_step_for(bool streamed, bool whole) {
  return streamed ? forward_step<RowStore::kStreamed, kWatched, T>
         : whole  ? forward_step<RowStore::kWhole, kWatched, T>
                  : forward_step<RowStore::kPartial, kWatched, T>;
}

template <class T>
void forward_block(const HmmForward<T>& a, int64_t first, int64_t count,
                   ForwardScratch<T>& scratch) {
  const HmmModel<T>& m = a.model;
  const int64_t S = m.states, stride = scratch.transition.stride();
  const bool streamed = a.streamed && S * sizeof(T) % kLineBytes == 0;  // whole lines
  ForwardRow<T> rows[kTileRows];
  int64_t longest = 0;
  bool watched = false;
  for (int64_t r = 0; r < count; ++r) {
    ForwardRow<T>& row = rows[r];
    row.sequence = first + r;
    row.wrong = scratch.shared_wrong || own_parameters_are_wrong(m, row.sequence);
    row.length = length_of(m, row.sequence, &row.wrong);
    Care care = own_care(m, row.sequence);
    care.add(scratch.care);
    row.delicate = care.watched && care.tiny;
    watched |= care.watched;
    longest = row.length > longest ? row.length : longest;
    scratch.transition.load_own(m, row.sequence, r);
    scratch.tables.load_own(m, row.sequence, r);
    clear(scratch.joint + r * stride, stride);
  }
  for (int64_t t = 0; t < longest; ++t) {
    if (t % kOffsetsChunk == 0) {
      for (int64_t r = 0; r < count; ++r) {
        const int64_t seen = smaller(rows[r].length - t, kOffsetsChunk);
        if (seen > 0 &&
            !table_offsets(m, rows[r].sequence, t, seen, 0, scratch.offsets + r * kOffsetsChunk)) {
          rows[r].wrong = true;
        }
      }
    }
    if (t > 0) scratch.transition.multiply(count, scratch.joint, stride, scratch.product);
    const bool whole = S % kLanes<T> == 0 || t + 2 < m.steps;
    const auto step = watched ? forward_step_for<T, true>(streamed, whole)
                              : forward_step_for<T, false>(streamed, whole);
    for (int64_t r = 0; r < count; ++r) {
      if (t >= rows[r].length) continue;
      const T* initial = m.initial + (m.own_initial ? rows[r].sequence * S : 0);
      step(a, t == 0 ? initial : scratch.product + r * stride, t == 0 ? S : stride,
           scratch.tables.of(r) + scratch.offsets[r * kOffsetsChunk + t % kOffsetsChunk], t,
           scratch.joint + r * stride, rows[r]);
    }
  }
  for (int64_t r = 0; r < count; ++r) {
    const ForwardRow<T>& row = rows[r];
    const int64_t end = (row.sequence * m.steps + row.length) * S;
    clear(a.filtered + end, (m.steps - row.length) * S);
    clear(a.predicted + end, (m.steps - row.length) * S);
    a.delicate[row.sequence] = row.delicate && !row.wrong;
    const double log = row.likelihood.log(row.length * kHmmLiftExponent<T>);
    a.log_likelihood[row.sequence] = row.wrong        ? std::numeric_limits<T>::quiet_NaN()
                                     : row.impossible ? -std::numeric_limits<T>::infinity()
                                                      : T(log);
  }
}

template <class T>
void forward_blocks(const HmmForward<T>& a, int64_t begin, int64_t end, void* memory) {
  Arena arena(memory);
  ForwardScratch<T> scratch(a.model, arena);
  scratch.transition.load_shared(a.model);
  scratch.tables.load_shared(a.model);
  scratch.shared_wrong = shared_parameters_are_wrong(a.model);
  scratch.care = shared_care(a.model);
  const int64_t size = block_size(a.model);
  for (int64_t block = begin; block < end; ++block) {
    forward_block(a, block * size, smaller(a.model.batch - block * size, size), scratch);
  }
  if (a.streamed) end_streams();
}

}  // namespace many_states
}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt
