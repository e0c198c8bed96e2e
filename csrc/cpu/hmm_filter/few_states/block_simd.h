// The layout for few states: one sequence in each lane. Steps are computed in chunks whose numbers
// [step, state, lane] stay in the L1 cache; rows of memory are transposed on the way there and
// back.

namespace bwt {
namespace BWT_SIMD {
namespace {
namespace few_states {

// Bytes of one array [step, state, lane] of a chunk, which has up to four of them. Chunks of the
// widest vectors have as many steps as those of half the width: each begins and ends within a line
// of every row that it writes.
constexpr int64_t kArrayBytes = (BWT_SIMD_BYTES == 64 ? 12 : 6) * 1024;
constexpr int64_t kOffsetsStride = kArrayBytes / BWT_SIMD_BYTES;  // steps of a chunk, at most

// Steps of a chunk: a whole number of vectors, if there are that many steps.
template <class T>
int64_t chunk_steps(const HmmModel<T>& model) {
  const int64_t fitting = round_down(kArrayBytes / (model.states * BWT_SIMD_BYTES), kLanes<T>);
  const int64_t wanted = fitting > 0 ? fitting : kLanes<T>;
  return smaller(model.steps > 0 ? model.steps : 1, wanted);
}

// to[i][lane] = rows[lane][i] for i < count. The last vectors overlap those before.
template <class T>
void load_rows(const T* const* rows, int64_t count, T* to) {
  constexpr int n = kLanes<T>;
  Vec<T> square[n];
  for (int64_t next = 0; next < count; next += n) {
    const int64_t i = next + n <= count || count < n ? next : count - n;
#pragma GCC unroll 16
    for (int k = 0; k < n; ++k) {
      square[k] = count < n ? load_partial(rows[k] + i, count) : load(rows[k] + i);
    }
    transpose<T>(square);
#pragma GCC unroll 16
    for (int k = 0; k < n; ++k) {
      if (count >= n || k < count) store(to + (i + k) * n, square[k]);
    }
  }
}

// Stores of 64 bytes to rows of any alignment all touch two lines. Half as wide, every other one
// does, and a transposition has a step less; in the cache the forward pass takes a tenth less time.
template <class T>
void store_rows_by_halves(const T* from, int64_t count, T* const* rows) {
  constexpr int n = kLanes<T>, half = n / 2;
  Vec<T> square[half];
  for (int64_t next = 0; next < count; next += half) {
    const int64_t i = smaller(next, count - half);
#pragma GCC unroll 16
    for (int k = 0; k < half; ++k) square[k] = load(from + (i + k) * n);
    transpose<T, half>(square);
#pragma GCC unroll 16
    for (int k = 0; k < half; ++k) store_halves(rows[k] + i, rows[k + half] + i, square[k]);
  }
}

// rows[lane][i] = from[i][lane] for i < count and lane < lanes.
template <class T>
void store_rows(const T* from, int64_t count, int lanes, T* const* rows) {
  constexpr int n = kLanes<T>;
  if constexpr (BWT_SIMD_BYTES == 64) {
    if (lanes == n && count >= n / 2) return store_rows_by_halves(from, count, rows);
  }
  Vec<T> square[n];
  for (int64_t next = 0; next < count; next += n) {
    const int64_t i = next + n <= count || count < n ? next : count - n;
#pragma GCC unroll 16
    for (int k = 0; k < n; ++k) {
      square[k] = count >= n || k < count ? load(from + (i + k) * n) : Vec<T>{};
    }
    transpose<T>(square);
    if (lanes == n && count >= n) {
#pragma GCC unroll 16
      for (int k = 0; k < n; ++k) store(rows[k] + i, square[k]);
    } else {
      for (int k = 0; k < lanes; ++k) store_at_most(rows[k] + i, square[k], count);
    }
  }
}

// The sequences of a block. Lanes without one repeat the last with a length of zero.
template <class T>
struct Block {
  static constexpr int n = kLanes<T>;

  Block(const HmmModel<T>& model, int64_t block)
      : first(block * n),
        lanes(int(smaller(n, model.batch - first))) {
    for (int lane = 0; lane < n; ++lane) {
      sequence[lane] = first + smaller(lane, lanes - 1);
      bool outside = false;
      set_length(lane, lane < lanes ? length_of(model, sequence[lane], &outside) : 0);
      if (outside) wrong[lane] = -1;
    }
  }
  void set_length(int lane, int64_t value) {
    length[lane] = value;
    lengths[lane] = value;
  }
  bool ragged(int64_t steps) const {
    for (int64_t l : length) {
      if (l != steps) return true;
    }
    return false;
  }
  int64_t longest() const {
    int64_t most = 0;
    for (int64_t l : length) most = l > most ? l : most;
    return most;
  }
  // Lanes whose sequences have the step.
  [[gnu::always_inline]] Bits<T> active(int64_t step) const { return lengths > Integer<T>(step); }
  // rows[lane] = where the numbers of its sequence begin, `size` for each sequence.
  template <class Number>
  void point(Number* numbers, int64_t size, int64_t offset, Number** rows) const {
    for (int lane = 0; lane < n; ++lane) rows[lane] = numbers + sequence[lane] * size + offset;
  }

  int64_t first;
  int lanes;
  int64_t sequence[n];
  int64_t length[n];
  Bits<T> lengths;
  Bits<T> wrong = {};               // sequences with invalid arguments
  Bits<T> watched = {}, tiny = {};  // as in Care
};

// The parameters of a block's sequences. Shared ones are put in place once.
template <class T>
struct Parameters {
  static constexpr int n = kLanes<T>;

  Parameters(const HmmModel<T>& model, Arena& arena)
      : initial(arena.take<T>(model.states * n)),
        transition(arena.take<T>(model.states * model.states * n)),
        table(arena.take<T>(table_size(model) * (model.own_emission ? n : 1))),
        emission(model.own_emission ? arena.take<T>(model.states * model.symbols * n) : nullptr),
        offsets(arena.take<int32_t>(kOffsetsStride * n)) {}

  void load_shared(const HmmModel<T>& m) {
    const int64_t S = m.states;
    shared_wrong = shared_parameters_are_wrong(m);
    care = shared_care(m);
    if (!m.own_initial) repeat(m.initial, S, initial);
    if (!m.own_transition) repeat(m.transition, S * S, transition);
    if (!m.own_emission) return fill_table(m, m.emission, table);
    for (int lane = 0; lane < n; ++lane) {  // missing observations
      T* row = table + lane * table_size(m);
      for (int64_t s = 0; s < padded_states(m); ++s) row[s] = s < S ? kHmmLift<T> : T(0);
    }
  }

  void load_own(const HmmModel<T>& m, Block<T>& block) {
    const int64_t S = m.states, V = m.symbols;
    const T* rows[n];
    if (shared_wrong) block.wrong = ~Bits<T>{};
    if (care.watched) block.watched = ~Bits<T>{};
    if (care.tiny) block.tiny = ~Bits<T>{};
    if (m.own_initial) {
      block.point(m.initial, S, 0, rows);
      load_rows(rows, S, initial);
      block.wrong |= wrong_rows(initial, 1, S, m.row_sum_tolerance);
      block.watched |= below(initial, S, kHmmSmall<T>).any;
    }
    if (m.own_transition) {
      block.point(m.transition, S * S, 0, rows);
      load_rows(rows, S * S, transition);
      block.wrong |= wrong_rows(transition, S, S, m.row_sum_tolerance);
      const Below<T> steps = below(transition, S * S, kHmmSmall<T>);
      block.watched |= steps.any;
      block.tiny |= steps.positive;
    }
    if (m.own_emission) {
      block.point(m.emission, S * V, 0, rows);
      load_rows(rows, S * V, emission);
      block.wrong |= wrong_rows(emission, S, V, m.row_sum_tolerance);
      block.tiny |= below(emission, S * V, kHmmSmallEmission<T>).positive;
      fill_tables(m);
    }
  }

  // Offsets of the table rows of a chunk. Steps that a sequence does not have count as missing.
  void find_rows(const HmmModel<T>& m, Block<T>& block, int64_t begin, int64_t end) {
    for (int lane = 0; lane < n; ++lane) {
      const int32_t base = m.own_emission ? int32_t(lane * table_size(m)) : 0;
      int32_t* to = offsets + lane * kOffsetsStride;
      const int64_t seen = block.length[lane] - begin;
      const int64_t count = seen < 0 ? 0 : smaller(seen, end - begin);
      if (!table_offsets(m, block.sequence[lane], begin, count, base, to)) block.wrong[lane] = -1;
      for (int64_t t = count; t < end - begin; ++t) to[t] = base;
    }
  }

  // The lifted emissions of step t of the chunk, state by state.
  template <int kStates>
  [[gnu::always_inline]] void emissions(int64_t t, Vec<T>* e) const {
#pragma GCC unroll 8
    for (int first = 0; first < kStates; first += n) {
      Vec<T> square[n];
#pragma GCC unroll 16
      for (int k = 0; k < n; ++k) {
        square[k] = load(table + offsets[k * kOffsetsStride + t] + first);
      }
      transpose<T>(square);
#pragma GCC unroll 16
      for (int k = 0; k < n; ++k) {
        if (first + k < kStates) e[first + k] = square[k];
      }
    }
  }

  T* initial;        // [S][lane]
  T* transition;     // [S,S][lane]
  T* table;          // [lane][V + 1][padded S], or one for all
  T* emission;       // [S,V][lane]
  int32_t* offsets;  // [lane][kOffsetsStride]: table rows of a chunk
  bool shared_wrong = false;
  Care care;  // of the shared ones

 private:
  static void repeat(const T* from, int64_t count, T* to) {
    for (int64_t i = 0; i < count; ++i) store(to + i * n, broadcast(from[i]));
  }
  static Below<T> below(const T* numbers, int64_t count, T limit) {
    Below<T> found;
    for (int64_t i = 0; i < count; ++i) found.add(load(numbers + i * n), limit);
    return found;
  }
  static Bits<T> wrong_rows(const T* rows, int64_t count, int64_t length, T tolerance) {
    Bits<T> wrong = {};
    for (int64_t row = 0; row < count; ++row) {
      Vec<T> sum = {};
      for (int64_t i = 0; i < length; ++i, rows += n) {
        const Vec<T> x = load(rows);
        sum += x;
        wrong |= ~(x >= T(0));
      }
      wrong |= wrong_sum<T>(sum, tolerance);
    }
    return wrong;
  }
  void fill_tables(const HmmModel<T>& m) {
    const int64_t S = m.states, V = m.symbols, padded = padded_states(m);
    Vec<T> square[n];
    for (int64_t v = 0; v < V; ++v) {
      for (int64_t first = 0; first < S; first += n) {
#pragma GCC unroll 16
        for (int k = 0; k < n; ++k) {
          const int64_t s = first + k;
          square[k] = s < S ? load(emission + (s * V + v) * n) * kHmmLift<T> : Vec<T>{};
        }
        transpose<T>(square);
#pragma GCC unroll 16
        for (int k = 0; k < n; ++k) {
          store(table + k * table_size(m) + (v + 1) * padded + first, square[k]);
        }
      }
    }
  }
};

}  // namespace few_states
}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt
