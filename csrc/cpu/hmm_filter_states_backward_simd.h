// The backward pass and smoothing for many states: vectors of states.

namespace bwt {
namespace BWT_SIMD {
namespace {

constexpr int64_t kGroupChunk = 64;  // steps whose adjoints are kept for the product with filtered

template <class T>
struct GroupBackwardScratch {
  GroupBackwardScratch(const HmmModel<T>& model, bool smooth, Arena& arena)
      : transition(model, true, arena),
        tables(model, arena),
        stride(transition.stride()),
        group(group_size(model)),
        adjoint(arena.take<T>(group * kGroupChunk * stride)),
        later(arena.take<T>(group * stride)),
        offsets(arena.take<int32_t>(group * kGroupChunk)) {
    if (smooth) return;
    grad_transition = arena.take<T>(model.states * stride * (model.own_transition ? group : 1));
    grad_tables = arena.take<T>(table_size(model) * (model.own_emission ? group : 1));
  }

  T* grad_transition_of(int64_t row) const {
    return grad_transition + (transition.own ? row * transition.states * stride : 0);
  }
  T* grad_table_of(int64_t row) const { return grad_tables + (tables.own ? row * tables.size : 0); }

  GroupTransition<T> transition;  // transposed
  GroupTables<T> tables;
  int64_t stride;
  int64_t group;
  T* adjoint;                    // [row, step of the chunk, padded S]: predicted'
  T* later;                      // [row, padded S]: A predicted'_{t+1}
  int32_t* offsets;              // [row, step of the chunk]
  T* grad_transition = nullptr;  // [S, padded S], for each row or for all
  T* grad_tables = nullptr;      // as tables
  int64_t summed_steps = 0;
};

struct BackwardRow {
  int64_t sequence;
  int64_t length;
};

// One step of one sequence.
template <class T, bool kSmooth>
void backward_step(const HmmBackward<T>& a, const BackwardRow& row, int64_t t, const T* emission,
                   T* later, T* adjoint, T* grad_emission) {
  constexpr int n = kLanes<T>;
  const int64_t S = a.model.states, at = (row.sequence * a.model.steps + t) * S;
  const T* predicted = a.predicted + at;
  const T* filtered = a.filtered + at;
  const bool last = t + 1 == row.length;
  Vec<T> sums = {}, means = {};
  for (int64_t i = 0; i < S; i += n) {
    Vec<T> f = last ? broadcast(T(kSmooth ? 1 : 0)) : load(later + i);
    if (!kSmooth && a.grad_filtered) f += load_at_most(a.grad_filtered + at + i, S - i);
    store(later + i, f);
    sums = load_at_most(predicted + i, S - i) * load(emission + i) + sums;
    means = f * load_at_most(filtered + i, S - i) + means;
  }
  const T sum = sum_lanes<T>(sums)[0], mean = sum_lanes<T>(means)[0];
  const bool possible = sum >= std::numeric_limits<T>::min();
  const T inverse = possible ? 1 / sum : 0, scale = mean > 0 ? 1 / mean : T(1);
  const T grad_log = a.grad_log_likelihood ? a.grad_log_likelihood[row.sequence] : T(0);
  for (int64_t i = 0; i < S; i += n) {
    const Vec<T> p = load_at_most(predicted + i, S - i);
    const Vec<T> w = kSmooth ? load(later + i) * scale : load(later + i) - mean + grad_log;
    Vec<T> x = w * (load(emission + i) * inverse);
    if (kSmooth) {
      store_at_most(a.smoothed + at + i, p * x, S - i);
    } else {
      store(grad_emission + i, load(grad_emission + i) + w * (p * kHmmLift<T> * inverse));
      if (a.grad_predicted) x += load_at_most(a.grad_predicted + at + i, S - i);
    }
    store(adjoint + i, x);
  }
}

// grad_transition += filtered_{t-1}^T predicted'_t, summed over steps.
template <class T>
void add_transitions(const T* filtered, int64_t states, const T* adjoint, int64_t stride,
                     int64_t steps, T* gradient) {
  for (int64_t i = 0; i < states; i += kTileRows) {
    const int64_t rows = smaller(states - i, kTileRows);
    for (int64_t j = 0; j < states; j += kTileVectors * kLanes<T>) {
      const Product<T> p{
          filtered + i, states, adjoint + j, stride, 0, steps, gradient + i * stride + j, stride};
      if (states - j > kLanes<T>) {
        multiply_rows<T, Left::kTransposed, false, true, kTileRows, kTileVectors>(rows, p);
      } else {
        multiply_rows<T, Left::kTransposed, false, true, kTileRows, 1>(rows, p);
      }
    }
  }
}

template <class T>
void flush_shared(const HmmModel<T>& m, const HmmSharedGradients& shared,
                  GroupBackwardScratch<T>& scratch) {
  if (scratch.summed_steps == 0) return;
  const int64_t S = m.states;
  scratch.summed_steps = 0;
  if (!m.own_emission) {
    read_table(m, scratch.grad_tables, shared.emission, true);
    clear(scratch.grad_tables, table_size(m));
  }
  if (m.own_transition) return;
  for (int64_t i = 0; i < S; ++i) {
    for (int64_t j = 0; j < S; ++j) {
      shared.transition[i * S + j] += scratch.grad_transition[i * scratch.stride + j];
    }
  }
  clear(scratch.grad_transition, S * scratch.stride);
}

// The chunk that begins at a step, of all sequences of a group.
template <class T, bool kSmooth>
void backward_chunk(const HmmBackward<T>& a, const BackwardRow* rows, int64_t count, int64_t begin,
                    GroupBackwardScratch<T>& scratch) {
  const HmmModel<T>& m = a.model;
  const int64_t S = m.states, stride = scratch.stride, row_size = kGroupChunk * stride;
  int64_t most = 0;
  for (int64_t r = 0; r < count; ++r) {
    const int64_t seen = smaller(rows[r].length - begin, kGroupChunk);
    if (seen <= 0) continue;
    table_offsets(m, rows[r].sequence, begin, seen, 0, scratch.offsets + r * kGroupChunk);
    most = seen > most ? seen : most;
  }
  for (int64_t t = most - 1; t >= 0; --t) {
    for (int64_t r = 0; r < count; ++r) {
      T* adjoint = scratch.adjoint + r * row_size + t * stride;
      if (begin + t >= rows[r].length) {
        clear(adjoint, stride);
        continue;
      }
      const int32_t offset = scratch.offsets[r * kGroupChunk + t];
      backward_step<T, kSmooth>(a, rows[r], begin + t, scratch.tables.of(r) + offset,
                                scratch.later + r * stride, adjoint,
                                kSmooth ? nullptr : scratch.grad_table_of(r) + offset);
    }
    scratch.transition.multiply(count, scratch.adjoint + t * stride, row_size, scratch.later);
  }
  if (kSmooth) return;
  for (int64_t r = 0; r < count; ++r) {
    const int64_t from = begin == 0 ? 1 : 0;
    const int64_t steps = smaller(rows[r].length - begin, kGroupChunk) - from;
    if (steps <= 0) continue;
    add_transitions(a.filtered + (rows[r].sequence * m.steps + begin + from - 1) * S, S,
                    scratch.adjoint + r * row_size + from * stride, stride, steps,
                    scratch.grad_transition_of(r));
  }
}

template <class T>
void write_gradients(const HmmBackward<T>& a, const BackwardRow& row, int64_t r,
                     const HmmSharedGradients& shared, GroupBackwardScratch<T>& scratch) {
  const HmmModel<T>& m = a.model;
  const int64_t S = m.states;
  const T* first = scratch.adjoint + r * kGroupChunk * scratch.stride;
  for (int64_t j = 0; j < S; ++j) {
    const T x = row.length > 0 ? first[j] : T(0);
    if (m.own_initial) {
      a.grad_initial[row.sequence * S + j] = x;
    } else {
      shared.initial[j] += x;
    }
  }
  if (m.own_transition) {
    T* to = a.grad_transition + row.sequence * S * S;
    const T* from = scratch.grad_transition_of(r);
    for (int64_t i = 0; i < S; ++i) {
      __builtin_memcpy(to + i * S, from + i * scratch.stride, S * sizeof(T));
    }
  }
  if (m.own_emission) {
    read_table(m, scratch.grad_table_of(r), a.grad_emission + row.sequence * S * m.symbols, false);
  }
}

template <class T, bool kSmooth>
void backward_group(const HmmBackward<T>& a, int64_t first, int64_t count,
                    const HmmSharedGradients& shared, GroupBackwardScratch<T>& scratch) {
  const HmmModel<T>& m = a.model;
  BackwardRow rows[kTileRows];
  int64_t longest = 0;
  for (int64_t r = 0; r < count; ++r) {
    bool wrong = false;
    const int64_t sequence = first + r, length = length_of(m, sequence, &wrong);
    // Neither impossible nor malformed sequences have a gradient.
    const bool finite = a.log_likelihood[sequence] > -std::numeric_limits<T>::infinity();
    rows[r] = {sequence, finite ? length : 0};
    longest = rows[r].length > longest ? rows[r].length : longest;
    scratch.transition.load_own(m, sequence, r);
    scratch.tables.load_own(m, sequence, r);
    if (kSmooth) {
      const int64_t S = m.states;
      clear(a.smoothed + (sequence * m.steps + rows[r].length) * S, (m.steps - rows[r].length) * S);
      continue;
    }
    if (m.own_transition) clear(scratch.grad_transition_of(r), m.states * scratch.stride);
    if (m.own_emission) clear(scratch.grad_table_of(r), table_size(m));
  }
  clear(scratch.later, count * scratch.stride);
  for (int64_t begin = round_down(longest - 1, kGroupChunk); begin >= 0 && longest > 0;
       begin -= kGroupChunk) {
    backward_chunk<T, kSmooth>(a, rows, count, begin, scratch);
    scratch.summed_steps += count * kGroupChunk;
    if (!kSmooth && scratch.summed_steps >= kStepsPerSum) flush_shared(m, shared, scratch);
  }
  if (kSmooth) return;
  for (int64_t r = 0; r < count; ++r) write_gradients(a, rows[r], r, shared, scratch);
}

// Groups begin to end, whose shared gradients are added up.
template <class T, bool kSmooth>
void backward_piece(const HmmBackward<T>& a, int64_t begin, int64_t end,
                    const HmmSharedGradients& shared, GroupBackwardScratch<T>& scratch) {
  const int64_t size = scratch.group;
  for (int64_t group = begin; group < end; ++group) {
    backward_group<T, kSmooth>(a, group * size, smaller(a.model.batch - group * size, size), shared,
                               scratch);
  }
  if (!kSmooth) flush_shared(a.model, shared, scratch);
}

}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt
