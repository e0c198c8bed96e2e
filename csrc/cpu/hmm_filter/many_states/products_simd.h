// The layout for many states: vectors of states. A group of sequences goes through time
// together, so that one register tile multiplies them all with a shared transition matrix, or hides
// the latency of sums for short rows with matrices of their own.

namespace bwt {
namespace BWT_SIMD {
namespace {

// 12 sums hide the latency of two multiply-adds per cycle and leave registers for the operands.
constexpr int kTileRows = 6;
constexpr int kTileVectors = 2;
constexpr int kMostSums = 8;  // with matrices of their own, of which nothing is used twice

// Sequences of a group.
template <class T>
int64_t group_size(const HmmModel<T>& model) {
  if (!model.own_transition) return kTileRows;
  const int64_t vectors = padded_states(model) / kLanes<T>;
  return vectors >= 5 ? 1 : vectors >= 3 ? 2 : vectors == 2 ? 4 : kTileRows;
}

// C = A B with one B for all rows, or (kOwn) one for each, own_stride apart. B[k, column] is
// right[k * right_stride + column]; A[row, k] is left[row * left_stride + k], or transposed
// left[k * left_stride + row].
template <class T>
struct Product {
  const T* left;
  int64_t left_stride;
  const T* right;
  int64_t right_stride;
  int64_t own_stride;
  int64_t inner;
  T* result;
  int64_t result_stride;
};

enum class Left { kPlain, kTransposed };

template <class T, Left kLeft, bool kOwn, bool kAccumulate, int kRows, int kVectors>
void multiply_tile(const Product<T>& product) {
  constexpr int n = kLanes<T>;
  constexpr int kSums = kRows * kVectors;
  const Product<T> p = product;  // a copy, which stores to the result cannot change
  const int64_t row_stride = kLeft == Left::kPlain ? p.left_stride : 1;
  const int64_t inner_stride = kLeft == Left::kPlain ? 1 : p.left_stride;
  Vec<T> sum[kSums];
#pragma GCC unroll 12
  for (int i = 0; i < kSums; ++i) sum[i] = Vec<T>{};
  const T* left = p.left;
  const T* right = p.right;
  for (int64_t step = 0; step < p.inner; ++step, left += inner_stride, right += p.right_stride) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) {
      const T* row = kOwn ? right + i / kVectors * p.own_stride : right;
      sum[i] = left[i / kVectors * row_stride] * load(row + i % kVectors * n) + sum[i];
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < kSums; ++i) {
    T* to = p.result + i / kVectors * p.result_stride + i % kVectors * n;
    store(to, kAccumulate ? load(to) + sum[i] : sum[i]);
  }
}

// Rows at run time, up to kRows of them.
template <class T, Left kLeft, bool kOwn, bool kAccumulate, int kRows, int kVectors>
void multiply_rows(int64_t rows, const Product<T>& p) {
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      return multiply_rows<T, kLeft, kOwn, kAccumulate, kRows - 1, kVectors>(rows, p);
    }
  }
  multiply_tile<T, kLeft, kOwn, kAccumulate, kRows, kVectors>(p);
}

// A matrix [S, S], or its transpose, as panels [S / panel][S][panel] of one or two vectors.
template <class T>
struct Panels {
  static constexpr int64_t kPanel = kTileVectors * kLanes<T>;

  static int64_t size(int64_t states) { return round_up(states, kPanel) * states; }

  static void pack(const T* matrix, int64_t states, bool transposed, T* panels) {
    for (int64_t first = 0; first < states; first += kPanel) {
      for (int64_t k = 0; k < states; ++k) {
        for (int64_t i = 0; i < kPanel; ++i, ++panels) {
          const int64_t column = first + i;
          *panels = column >= states ? T(0)
                    : transposed     ? matrix[column * states + k]
                                     : matrix[k * states + column];
        }
      }
    }
  }
};

// result [rows, S] = left [rows, S] * shared panels
template <class T>
void multiply_shared(int64_t rows, int64_t states, const T* left, int64_t left_stride,
                     const T* panels, T* result, int64_t result_stride) {
  constexpr int64_t kPanel = Panels<T>::kPanel;
  for (int64_t column = 0; column < states; column += kPanel) {
    const Product<T> p{left, left_stride, panels + column * states, kPanel,
                       0,    states,      result + column,          result_stride};
    if (states - column > kLanes<T>) {
      multiply_rows<T, Left::kPlain, false, false, kTileRows, kTileVectors>(rows, p);
    } else {
      multiply_rows<T, Left::kPlain, false, false, kTileRows, 1>(rows, p);
    }
  }
}

// The same with a matrix [S, padded S] for each row.
template <class T, int kVectors = kMostSums>
void multiply_own(int64_t rows, int64_t vectors, const Product<T>& p) {
  if constexpr (kVectors > 1) {
    if (vectors < kVectors) return multiply_own<T, kVectors - 1>(rows, vectors, p);
  }
  constexpr int kRows = kVectors >= 5 ? 1 : kVectors >= 3 ? 2 : kVectors == 2 ? 4 : kTileRows;
  for (int64_t row = 0; row < rows; row += kRows) {
    Product<T> part = p;
    part.left += row * p.left_stride;
    part.right += row * p.own_stride;
    part.result += row * p.result_stride;
    multiply_rows<T, Left::kPlain, true, false, kRows, kVectors>(smaller(rows - row, kRows), part);
  }
}

// The transition matrix of a group, to be multiplied with from the left.
template <class T>
struct GroupTransition {
  GroupTransition(const HmmModel<T>& model, bool transposed_, Arena& arena)
      : own(model.own_transition),
        transposed(transposed_),
        states(model.states),
        padded(padded_states(model)),
        matrix(arena.take<T>(own ? group_size(model) * states * padded : Panels<T>::size(states))) {
  }

  void load_shared(const HmmModel<T>& m) {
    if (!own) Panels<T>::pack(m.transition, states, transposed, matrix);
  }
  void load_own(const HmmModel<T>& m, int64_t sequence, int64_t row) {
    if (!own) return;
    const T* from = m.transition + sequence * states * states;
    T* to = matrix + row * states * padded;
    for (int64_t k = 0; k < states; ++k) {
      for (int64_t i = 0; i < padded; ++i) {
        to[k * padded + i] =
            i >= states ? T(0) : from[transposed ? i * states + k : k * states + i];
      }
    }
  }
  // result [rows, padded S] = left [rows, S] * matrix
  void multiply(int64_t rows, const T* left, int64_t left_stride, T* result) const {
    if (!own) return multiply_shared(rows, states, left, left_stride, matrix, result, stride());
    const int64_t vectors = padded / kLanes<T>;
    for (int64_t first = 0; first < vectors; first += kMostSums) {
      const int64_t column = first * kLanes<T>;
      multiply_own<T>(rows, smaller(vectors - first, kMostSums),
                      {left, left_stride, matrix + column, padded, states * padded, states,
                       result + column, stride()});
    }
  }
  // Of a row of `result`.
  int64_t stride() const { return round_up(states, Panels<T>::kPanel); }

  bool own;
  bool transposed;
  int64_t states;
  int64_t padded;
  T* matrix;
};

// The emission tables of a group.
template <class T>
struct GroupTables {
  GroupTables(const HmmModel<T>& model, Arena& arena)
      : own(model.own_emission),
        size(table_size(model)),
        tables(arena.take<T>(size * (own ? group_size(model) : 1))) {}

  void load_shared(const HmmModel<T>& m) {
    if (!own) fill_table(m, m.emission, tables);
  }
  void load_own(const HmmModel<T>& m, int64_t sequence, int64_t row) {
    if (own) fill_table(m, m.emission + sequence * m.states * m.symbols, tables + row * size);
  }
  T* of(int64_t row) const { return own ? tables + row * size : tables; }

  bool own;
  int64_t size;
  T* tables;
};

template <class T>
bool own_parameters_are_wrong(const HmmModel<T>& m, int64_t sequence) {
  const int64_t S = m.states, V = m.symbols;
  return (m.own_initial && !are_distributions(m.initial + sequence * S, 1, S)) ||
         (m.own_transition && !are_distributions(m.transition + sequence * S * S, S, S)) ||
         (m.own_emission && !are_distributions(m.emission + sequence * S * V, S, V));
}

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
struct GroupForwardScratch {
  GroupForwardScratch(const HmmModel<T>& model, Arena& arena)
      : transition(model, false, arena),
        tables(model, arena),
        joint(arena.take<T>(kTileRows * transition.stride())),
        product(arena.take<T>(kTileRows * transition.stride())),
        offsets(arena.take<int32_t>(kTileRows * kOffsetsChunk)) {}

  GroupTransition<T> transition;
  GroupTables<T> tables;
  T* joint;          // [row, padded S]: predicted * lifted emission
  T* product;        // [row, padded S]: joint * transition
  int32_t* offsets;  // [row, step]
  bool shared_wrong = false;
  Care care;  // of shared parameters
};

// What a sequence carries from step to step.
template <class T>
struct GroupRow {
  int64_t sequence;
  int64_t length;
  T inverse = 1;
  bool wrong = false;
  bool impossible = false;
  bool delicate = false;
  LogProduct likelihood;
};

constexpr int64_t kLineBytes = 64;

// How a row is written: in whole vectors if they fill it or others of the same sequence follow.
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
                  int64_t t, T* joint, GroupRow<T>& row) {
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
void forward_group(const HmmForward<T>& a, int64_t first, int64_t count,
                   GroupForwardScratch<T>& scratch) {
  const HmmModel<T>& m = a.model;
  const int64_t S = m.states, stride = scratch.transition.stride();
  const bool streamed = a.streamed && S * sizeof(T) % kLineBytes == 0;  // whole lines
  GroupRow<T> rows[kTileRows];
  int64_t longest = 0;
  bool watched = false;
  for (int64_t r = 0; r < count; ++r) {
    GroupRow<T>& row = rows[r];
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
    const GroupRow<T>& row = rows[r];
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
void forward_groups(const HmmForward<T>& a, int64_t begin, int64_t end, void* memory) {
  Arena arena(memory);
  GroupForwardScratch<T> scratch(a.model, arena);
  scratch.transition.load_shared(a.model);
  scratch.tables.load_shared(a.model);
  scratch.shared_wrong = shared_parameters_are_wrong(a.model);
  scratch.care = shared_care(a.model);
  const int64_t size = group_size(a.model);
  for (int64_t group = begin; group < end; ++group) {
    forward_group(a, group * size, smaller(a.model.batch - group * size, size), scratch);
  }
  if (a.streamed) end_streams();
}

}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt
