// The layout for many states: vectors of states. A block of sequences goes through time together,
// so that one register tile multiplies them all with a shared transition matrix. Where each has its
// own matrix and rows are short, this hides the latency of the sums.

namespace bwt {
namespace BWT_SIMD {
namespace {
namespace many_states {

// Sequences of a block.
template <class T>
int64_t block_size(const HmmModel<T>& model) {
  if (!model.own_transition) return kTileRows;
  const int64_t vectors = padded_states(model) / kLanes<T>;
  return vectors >= 5 ? 1 : vectors >= 3 ? 2 : vectors == 2 ? 4 : kTileRows;
}

// The transition matrix of a block, to be multiplied with from the left.
template <class T>
struct Transition {
  Transition(const HmmModel<T>& model, bool transposed_, Arena& arena)
      : own(model.own_transition),
        transposed(transposed_),
        states(model.states),
        padded(padded_states(model)),
        matrix(arena.take<T>(own ? block_size(model) * states * padded : Panels<T>::size(states))) {
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
  // Between the rows of `result`.
  int64_t stride() const { return round_up(states, Panels<T>::kPanel); }

  bool own;
  bool transposed;
  int64_t states;
  int64_t padded;
  T* matrix;
};

// The emission tables of a block.
template <class T>
struct Tables {
  Tables(const HmmModel<T>& model, Arena& arena)
      : own(model.own_emission),
        size(table_size(model)),
        tables(arena.take<T>(size * (own ? block_size(model) : 1))) {}

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
  const T tolerance = m.row_sum_tolerance;
  return (m.own_initial && !are_distributions(m.initial + sequence * S, 1, S, tolerance)) ||
         (m.own_transition &&
          !are_distributions(m.transition + sequence * S * S, S, S, tolerance)) ||
         (m.own_emission && !are_distributions(m.emission + sequence * S * V, S, V, tolerance));
}

}  // namespace many_states
}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt
