// The backward pass and smoothing for many states: vectors of states.

namespace bwt {
namespace BWT_SIMD {
namespace {
namespace many_states {

// Steps that are computed together: as many as fit into the L2 cache with up to five arrays.
constexpr int64_t kArrayBytes = 48 * 1024;
template <class T>
int64_t chunk_steps(const HmmModel<T>& model) {
  const int64_t step_bytes = block_size(model) * padded_states(model) * sizeof(T);
  const int64_t fitting = kArrayBytes / step_bytes;
  return fitting < 8 ? 8 : smaller(fitting, 64);
}

// The numbers of a chunk, [row, step, padded S], copied from memory sequence by sequence. Read
// where they lie, the rows of a block would be a power of two apart for some sizes, and push each
// other out of the caches.
template <class T>
class Chunk {
 public:
  Chunk(int64_t rows, int64_t steps, int64_t stride, Arena& arena)
      : steps_(steps),
        stride_(stride),
        numbers_(arena.take<T>(rows * steps * stride)) {}

  T* at(int64_t row, int64_t step) const { return numbers_ + (row * steps_ + step) * stride_; }

  void read(int64_t row, int64_t step, const T* from, int64_t count, int64_t states) const {
    T* to = at(row, step);
    for (const T* end = from + count * states; from < end; from += states, to += stride_) {
      for (int64_t i = 0; i < states; i += kLanes<T>) {
        store(to + i, load_at_most(from + i, states - i));
      }
    }
  }

 private:
  int64_t steps_;
  int64_t stride_;
  T* numbers_;
};

template <class T>
struct BackwardScratch {
  BackwardScratch(const HmmModel<T>& model, bool smooth, Arena& arena)
      : transition(model, true, arena),
        tables(model, arena),
        stride(transition.stride()),
        rows(block_size(model)),
        chunk(chunk_steps(model)),
        filtered(rows, chunk + 1, stride, arena),
        predicted(rows, chunk, stride, arena),
        grad_filtered(rows, chunk, stride, arena),
        adjoint(rows, chunk, stride, arena),
        later(arena.take<T>(rows * stride)),
        offsets(arena.take<int32_t>(rows * chunk)) {
    if (smooth) return;
    grad_transition = arena.take<T>(model.states * stride * (model.own_transition ? rows : 1));
    grad_tables = arena.take<T>(table_size(model) * (model.own_emission ? rows : 1));
  }

  T* grad_transition_of(int64_t row) const {
    return grad_transition + (transition.own ? row * transition.states * stride : 0);
  }
  T* grad_table_of(int64_t row) const { return grad_tables + (tables.own ? row * tables.size : 0); }

  Transition<T> transition;  // transposed
  Tables<T> tables;
  int64_t stride;
  int64_t rows;  // sequences of a block
  int64_t chunk;
  Chunk<T> filtered;  // step 0 is the one before the chunk
  Chunk<T> predicted;
  Chunk<T> grad_filtered;
  Chunk<T> adjoint;              // grad_predicted, then the adjoint of predicted
  T* later;                      // [row, padded S]: A predicted'_{t+1}
  int32_t* offsets;              // [row, step of the chunk]
  T* grad_transition = nullptr;  // [S, padded S], for each row or for all
  T* grad_tables = nullptr;      // as tables
  int64_t summed_steps = 0;
  Care care;  // of shared parameters
};

struct BackwardRow {
  int64_t sequence;
  int64_t length;
  bool watched;
};

// The numbers of one step of one sequence.
template <class T>
struct BackwardStep {
  const T* filtered;
  const T* predicted;
  const T* grad_filtered;  // or null
  const T* emission;
  T* later;
  T* adjoint;
  T* grad_emission;
  T* smoothed;
  T grad_log;
  bool last;           // of its sequence
  bool has_predicted;  // whether `adjoint` holds a gradient of predicted
};

// Returns whether its sequence turned out to be delicate.
template <class T, bool kSmooth, bool kWatched>
bool backward_step(const BackwardStep<T>& step, int64_t states) {
  constexpr int n = kLanes<T>;
  const BackwardStep<T> x = step;  // a copy, which stores to the arrays cannot change
  Vec<T> sums = {}, means = {};
  for (int64_t i = 0; i < states; i += n) {
    Vec<T> f = x.last ? broadcast(T(kSmooth ? 1 : 0)) : load(x.later + i);
    if (!kSmooth && x.grad_filtered) f += load(x.grad_filtered + i);
    store(x.later + i, f);
    sums = load(x.predicted + i) * load(x.emission + i) + sums;
    means = f * load(x.filtered + i) + means;
  }
  const T sum = sum_lanes<T>(sums)[0], mean = sum_lanes<T>(means)[0];
  const bool possible = sum >= 1;
  const Vec<T> limit = broadcast(sum * kHmmFloor<T>);
  Bits<T> delicate = {};
  const T inverse = possible ? 1 / sum : 0, scale = kSmooth && mean > 0 ? 1 / mean : T(1);
  for (int64_t i = 0; i < states; i += n) {
    const Vec<T> p = load(x.predicted + i);
    const Vec<T> w = kSmooth ? load(x.later + i) * scale : load(x.later + i) - mean + x.grad_log;
    const Vec<T> e = load(x.emission + i);
    Vec<T> adjoint = w * (e * inverse);
    if (kSmooth) {
      // What is never reached has no part in smoothing.
      if (kWatched) adjoint = p > T(0) ? adjoint : Vec<T>{};
      store_at_most(x.smoothed + i, p * adjoint, states - i);
    } else {
      store(x.grad_emission + i, load(x.grad_emission + i) + w * (p * kHmmLift<T> * inverse));
      if (x.has_predicted) adjoint += load(x.adjoint + i);
    }
    if (kWatched) delicate |= sinking<T>(p * e, limit) | too_large<T>(adjoint);
    store(x.adjoint + i, adjoint);
  }
  return !possible || any<T>(delicate);
}

// grad_transition += filtered_{t-1}^T predicted'_t, summed over steps.
template <class T>
void add_transitions(const T* filtered, const T* adjoint, int64_t stride, int64_t states,
                     int64_t steps, T* gradient) {
  for (int64_t i = 0; i < states; i += kTileRows) {
    const int64_t rows = smaller(states - i, kTileRows);
    for (int64_t j = 0; j < states; j += kTileVectors * kLanes<T>) {
      const Product<T> p{
          filtered + i, stride, adjoint + j, stride, 0, steps, gradient + i * stride + j, stride};
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
                  BackwardScratch<T>& scratch) {
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

// Copies what a chunk of a sequence needs.
template <class T>
void read_chunk(const HmmBackward<T>& a, const BackwardRow& row, int64_t r, int64_t begin,
                int64_t steps, BackwardScratch<T>& scratch) {
  const HmmModel<T>& m = a.model;
  const int64_t S = m.states, at = (row.sequence * m.steps + begin) * S;
  table_offsets(m, row.sequence, begin, steps, 0, scratch.offsets + r * scratch.chunk);
  const int64_t before = begin > 0 ? 1 : 0;
  scratch.filtered.read(r, 1 - before, a.filtered + at - before * S, steps + before, S);
  scratch.predicted.read(r, 0, a.predicted + at, steps, S);
  if (a.grad_filtered) scratch.grad_filtered.read(r, 0, a.grad_filtered + at, steps, S);
  if (a.grad_predicted) scratch.adjoint.read(r, 0, a.grad_predicted + at, steps, S);
}

template <class T, bool kSmooth>
bool backward_step(const HmmBackward<T>& a, const BackwardRow& row, int64_t r, int64_t begin,
                   int64_t t, BackwardScratch<T>& scratch) {
  const HmmModel<T>& m = a.model;
  const int32_t offset = scratch.offsets[r * scratch.chunk + t];
  BackwardStep<T> step{};
  step.filtered = scratch.filtered.at(r, t + 1);
  step.predicted = scratch.predicted.at(r, t);
  if (a.grad_filtered) step.grad_filtered = scratch.grad_filtered.at(r, t);
  step.emission = scratch.tables.of(r) + offset;
  step.later = scratch.later + r * scratch.stride;
  step.adjoint = scratch.adjoint.at(r, t);
  if (kSmooth) {
    step.smoothed = a.smoothed + (row.sequence * m.steps + begin + t) * m.states;
  } else {
    step.grad_emission = scratch.grad_table_of(r) + offset;
  }
  if (a.grad_log_likelihood) step.grad_log = a.grad_log_likelihood[row.sequence];
  step.last = begin + t + 1 == row.length;
  step.has_predicted = a.grad_predicted != nullptr;
  return row.watched ? backward_step<T, kSmooth, true>(step, m.states)
                     : backward_step<T, kSmooth, false>(step, m.states);
}

// The chunk that begins at a step, of all sequences of a block.
template <class T, bool kSmooth>
void backward_chunk(const HmmBackward<T>& a, const BackwardRow* rows, int64_t count, int64_t begin,
                    BackwardScratch<T>& scratch) {
  const int64_t S = a.model.states, stride = scratch.stride;
  int64_t most = 0;
  for (int64_t r = 0; r < count; ++r) {
    const int64_t seen = smaller(rows[r].length - begin, scratch.chunk);
    if (seen > 0) read_chunk(a, rows[r], r, begin, seen, scratch);
    most = seen > most ? seen : most;
  }
  for (int64_t t = most - 1; t >= 0; --t) {
    for (int64_t r = 0; r < count; ++r) {
      if (begin + t < rows[r].length) {
        if (backward_step<T, kSmooth>(a, rows[r], r, begin, t, scratch)) {
          a.delicate[rows[r].sequence] = 1;
        }
      } else {
        clear(scratch.adjoint.at(r, t), stride);
      }
    }
    scratch.transition.multiply(count, scratch.adjoint.at(0, t), scratch.chunk * stride,
                                scratch.later);
  }
  if (kSmooth) return;
  const int64_t from = begin == 0 ? 1 : 0;  // nothing comes before the first step
  for (int64_t r = 0; r < count; ++r) {
    const int64_t steps = smaller(rows[r].length - begin, scratch.chunk) - from;
    if (steps <= 0) continue;
    add_transitions(scratch.filtered.at(r, from), scratch.adjoint.at(r, from), stride, S, steps,
                    scratch.grad_transition_of(r));
  }
}

template <class T>
void write_gradients(const HmmBackward<T>& a, const BackwardRow& row, int64_t r,
                     const HmmSharedGradients& shared, BackwardScratch<T>& scratch) {
  const HmmModel<T>& m = a.model;
  const int64_t S = m.states;
  const T* first = scratch.adjoint.at(r, 0);
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
void backward_block(const HmmBackward<T>& a, int64_t first, int64_t count,
                    const HmmSharedGradients& shared, BackwardScratch<T>& scratch) {
  const HmmModel<T>& m = a.model;
  BackwardRow rows[kTileRows];
  int64_t longest = 0;
  for (int64_t r = 0; r < count; ++r) {
    bool wrong = false;
    const int64_t sequence = first + r, length = length_of(m, sequence, &wrong);
    // Neither impossible nor malformed sequences have a gradient.
    const bool finite = a.log_likelihood[sequence] > -std::numeric_limits<T>::infinity();
    Care care = own_care(m, sequence);
    care.add(scratch.care);
    if (finite && length > 0 && care.watched && care.tiny) a.delicate[sequence] = 1;
    rows[r] = {sequence, finite && !a.delicate[sequence] ? length : 0, care.watched};
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
  for (int64_t begin = round_down(longest - 1, scratch.chunk); begin >= 0 && longest > 0;
       begin -= scratch.chunk) {
    backward_chunk<T, kSmooth>(a, rows, count, begin, scratch);
    scratch.summed_steps += count * scratch.chunk;
    if (!kSmooth && scratch.summed_steps >= kStepsPerSum) flush_shared(m, shared, scratch);
  }
  if (kSmooth) return;
  for (int64_t r = 0; r < count; ++r) write_gradients(a, rows[r], r, shared, scratch);
}

// The blocks from begin to end, whose shared gradients are added up.
template <class T, bool kSmooth>
void backward_piece(const HmmBackward<T>& a, int64_t begin, int64_t end,
                    const HmmSharedGradients& shared, BackwardScratch<T>& scratch) {
  const int64_t size = scratch.rows;
  for (int64_t block = begin; block < end; ++block) {
    backward_block<T, kSmooth>(a, block * size, smaller(a.model.batch - block * size, size), shared,
                               scratch);
  }
  if (!kSmooth) flush_shared(a.model, shared, scratch);
}

// The pieces of the batch from begin to end, each with its own sums of shared gradients.
template <class T>
void backward_pieces(const HmmBackward<T>& a, int64_t begin, int64_t end, int64_t pieces,
                     const HmmSharedGradients* shared, void* memory) {
  const HmmModel<T>& m = a.model;
  Arena arena(memory);
  BackwardScratch<T> scratch(m, a.smoothed != nullptr, arena);
  scratch.transition.load_shared(m);
  scratch.tables.load_shared(m);
  scratch.care = shared_care(m);
  if (!a.smoothed && !m.own_emission) clear(scratch.grad_tables, table_size(m));
  if (!a.smoothed && !m.own_transition) clear(scratch.grad_transition, m.states * scratch.stride);
  for (int64_t piece = begin; piece < end; ++piece) {
    const HmmPiece blocks(m.batch, scratch.rows, piece, pieces);
    if (a.smoothed) {
      backward_piece<T, true>(a, blocks.begin, blocks.end, {}, scratch);
    } else {
      backward_piece<T, false>(a, blocks.begin, blocks.end, shared[piece], scratch);
    }
  }
}

}  // namespace many_states
}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt
