// The backward pass and smoothing for few states: one sequence in each lane.

namespace bwt {
namespace BWT_SIMD {
namespace {
namespace few_states {

template <class T>
struct BackwardScratch {
  static constexpr int n = kLanes<T>;

  BackwardScratch(const HmmModel<T>& model, bool smooth, Arena& arena)
      : chunk(chunk_steps(model)),
        parameters(model, arena),
        filtered(arena.take<T>((chunk + 1) * model.states * n)),
        predicted(arena.take<T>(chunk * model.states * n)),
        grad_filtered(arena.take<T>(chunk * model.states * n)),
        adjoint(arena.take<T>(chunk * model.states * n)),
        grad_initial(arena.take<T>(model.states * n)),
        grad_transition(arena.take<T>(model.states * model.states * n)),
        grad_table(smooth ? nullptr
                          : arena.take<T>(table_size(model) * (model.own_emission ? n : 1))) {}

  int64_t chunk;
  Parameters<T> parameters;
  T* filtered;       // [1 + step, S][lane]; the first is that of the step before the chunk
  T* predicted;      // [step, S][lane]
  T* grad_filtered;  // [step, S][lane]
  T* adjoint;        // [step, S][lane]: grad_predicted, then the adjoint of predicted
  T* grad_initial;
  T* grad_transition;
  T* grad_table;  // as parameters.table
  int64_t summed_steps = 0;
};

// The rows that the emissions of step t came from += values, state by state.
template <class T, int kStates>
[[gnu::always_inline]] inline void add_emissions(const Parameters<T>& parameters, int64_t t,
                                                 const Vec<T>* values, T* table) {
  constexpr int n = kLanes<T>;
#pragma GCC unroll 8
  for (int first = 0; first < kStates; first += n) {
    Vec<T> square[n];
#pragma GCC unroll 16
    for (int k = 0; k < n; ++k) square[k] = first + k < kStates ? values[first + k] : Vec<T>{};
    transpose<T>(square);
#pragma GCC unroll 16
    for (int k = 0; k < n; ++k) {
      T* row = table + parameters.offsets[k * kOffsetsStride + t] + first;
      store(row, load(row) + square[k]);
    }
  }
}

// From the last step of a chunk to its first. `carried` is A predicted'_{t+1} of its last step and
// becomes that of the step before the chunk. Replaces scratch.adjoint by predicted', or by smoothed
// when smoothing. Returns the lanes of sequences that turned out to be delicate.
template <class T, int kStates, bool kSmooth, bool kWatched>
Bits<T> backward_chunk(const HmmBackward<T>& a, const BackwardScratch<T>& scratch,
                       const Block<T>& block, int64_t begin, int64_t end, Vec<T> grad_log,
                       Vec<T>* carried) {
  constexpr int n = kLanes<T>;
  const Parameters<T> parameters = scratch.parameters;
  const bool has_filtered = a.grad_filtered != nullptr, has_predicted = a.grad_predicted != nullptr;
  Vec<T> later[kStates];
  Bits<T> delicate = {};
#pragma GCC unroll 8
  for (int j = 0; j < kStates; ++j) later[j] = carried[j];
  for (int64_t t = end - 1; t >= begin; --t) {
    const int64_t at = (t - begin) * kStates * n;
    const Bits<T> active = block.active(t);
    Vec<T> p[kStates], e[kStates], f[kStates], joint[kStates];
    parameters.template emissions<kStates>(t - begin, e);
    if (kSmooth) {
      const Bits<T> last = block.lengths == Integer<T>(t + 1);
#pragma GCC unroll 8
      for (int j = 0; j < kStates; ++j) later[j] = last ? broadcast(T(1)) : later[j];
    } else if (has_filtered) {
#pragma GCC unroll 8
      for (int j = 0; j < kStates; ++j) later[j] += load(scratch.grad_filtered + at + j * n);
    }
    Vec<T> sum = {}, mean = {};
#pragma GCC unroll 8
    for (int j = 0; j < kStates; ++j) {
      p[j] = load(scratch.predicted + at + j * n);
      f[j] = load(scratch.filtered + at + (kStates + j) * n);
      joint[j] = p[j] * e[j];
      sum += joint[j];
      mean = later[j] * f[j] + mean;
    }
    const Bits<T> possible = active & (sum >= T(1));
    delicate |= active & ~possible;
    const Vec<T> inverse = T(1) / (possible ? sum : broadcast(T(1)));
    const Vec<T> scale = T(1) / (mean > T(0) ? mean : broadcast(T(1)));
    Vec<T> adjoint[kStates], grad_e[kStates];
#pragma GCC unroll 8
    for (int j = 0; j < kStates; ++j) {
      const Vec<T> w = kSmooth ? later[j] * scale : later[j] - mean + grad_log;
      adjoint[j] = w * (e[j] * inverse);
      if (!kSmooth) {
        grad_e[j] = w * (p[j] * kHmmLift<T> * inverse);
        grad_e[j] = possible ? grad_e[j] : Vec<T>{};
        if (has_predicted) adjoint[j] += load(scratch.adjoint + at + j * n);
      }
      // What is never reached has no part in smoothing.
      adjoint[j] =
          (kSmooth && kWatched ? possible & (p[j] > T(0)) : possible) ? adjoint[j] : Vec<T>{};
      if (kWatched) {
        delicate |= active & sinking<T>(joint[j], sum * kHmmFloor<T>);
        delicate |= too_large<T>(adjoint[j]);
      }
      store(scratch.adjoint + at + j * n, kSmooth ? adjoint[j] * p[j] : adjoint[j]);
    }
    if (!kSmooth) add_emissions<T, kStates>(parameters, t - begin, grad_e, scratch.grad_table);
#pragma GCC unroll 8
    for (int i = 0; i < kStates; ++i) {
      const T* row = parameters.transition + i * kStates * n;
      later[i] = load(row) * adjoint[0];
#pragma GCC unroll 8
      for (int j = 1; j < kStates; ++j) later[i] = load(row + j * n) * adjoint[j] + later[i];
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < kStates; ++j) carried[j] = later[j];
  return delicate;
}

// grad_transition += sum over the steps of a chunk of filtered_{t-1}^T predicted'_t.
template <class T, int kStates>
void add_transitions(const BackwardScratch<T>& scratch, int64_t skipped, int64_t steps) {
  constexpr int n = kLanes<T>;
  constexpr int kRows = kStates > 1 ? 2 : 1;  // 2 kStates sums fit into the registers
  for (int i = 0; i < kStates; i += kRows) {
    const int second = i + 1 < kStates ? 1 : 0;
    Vec<T> sum[2][kStates] = {};
    for (int64_t t = skipped; t < steps; ++t) {
      const T* before = scratch.filtered + (t * kStates + i) * n;
      const Vec<T> f0 = load(before), f1 = load(before + second * n);
#pragma GCC unroll 8
      for (int j = 0; j < kStates; ++j) {
        const Vec<T> adjoint = load(scratch.adjoint + (t * kStates + j) * n);
        sum[0][j] = f0 * adjoint + sum[0][j];
        sum[1][j] = f1 * adjoint + sum[1][j];
      }
    }
    for (int row = 0; row <= second; ++row) {
      T* to = scratch.grad_transition + (i + row) * kStates * n;
#pragma GCC unroll 8
      for (int j = 0; j < kStates; ++j) store(to + j * n, load(to + j * n) + sum[row][j]);
    }
  }
}

// Sums over lanes.
template <class T>
void add_lanes(const T* values, int64_t count, double* sums) {
  for (int64_t i = 0; i < count; ++i) {
    for (int lane = 0; lane < kLanes<T>; ++lane) sums[i] += values[i * kLanes<T> + lane];
  }
}

template <class T>
void flush_shared_table(const HmmModel<T>& m, const HmmSharedGradients& shared,
                        BackwardScratch<T>& scratch) {
  if (m.own_emission || scratch.summed_steps == 0) return;
  read_table(m, scratch.grad_table, shared.emission, true);
  clear(scratch.grad_table, table_size(m));
  scratch.summed_steps = 0;
}

template <class T>
void write_gradients(const HmmBackward<T>& a, const Block<T>& block,
                     const HmmSharedGradients& shared, BackwardScratch<T>& scratch) {
  constexpr int n = kLanes<T>;
  const HmmModel<T>& m = a.model;
  const int64_t S = m.states, V = m.symbols, padded = padded_states(m);
  T* rows[n];
  if (m.own_initial) {
    block.point(a.grad_initial, S, 0, rows);
    store_rows(scratch.grad_initial, S, block.lanes, rows);
  } else {
    add_lanes(scratch.grad_initial, S, shared.initial);
  }
  if (m.own_transition) {
    block.point(a.grad_transition, S * S, 0, rows);
    store_rows(scratch.grad_transition, S * S, block.lanes, rows);
  } else {
    add_lanes(scratch.grad_transition, S * S, shared.transition);
  }
  if (!m.own_emission) {
    if (scratch.summed_steps >= kStepsPerSum) flush_shared_table(m, shared, scratch);
    return;
  }
  T* gradient = scratch.parameters.emission;  // read into the table before, free now
  Vec<T> square[n];
  for (int64_t v = 0; v < V; ++v) {
    for (int64_t first = 0; first < S; first += n) {
#pragma GCC unroll 16
      for (int k = 0; k < n; ++k) {
        square[k] = load(scratch.grad_table + k * table_size(m) + (v + 1) * padded + first);
      }
      transpose<T>(square);
      for (int k = 0; k < n && first + k < S; ++k) {
        store(gradient + ((first + k) * V + v) * n, square[k]);
      }
    }
  }
  block.point(a.grad_emission, S * V, 0, rows);
  store_rows(gradient, S * V, block.lanes, rows);
}

template <class T, int kStates, bool kSmooth>
void backward_block(const HmmBackward<T>& a, int64_t number, const HmmSharedGradients& shared,
                    BackwardScratch<T>& scratch) {
  constexpr int n = kLanes<T>;
  const HmmModel<T>& m = a.model;
  const int64_t size = m.steps * kStates;
  Block<T> block(m, number);
  Vec<T> grad_log = {};
  for (int lane = 0; lane < block.lanes; ++lane) {
    // Neither impossible nor malformed sequences have a gradient.
    if (!(a.log_likelihood[block.first + lane] > -std::numeric_limits<T>::infinity()) ||
        a.delicate[block.first + lane]) {
      block.set_length(lane, 0);
    }
    if (a.grad_log_likelihood) grad_log[lane] = a.grad_log_likelihood[block.first + lane];
  }
  scratch.parameters.load_own(m, block);
  const auto run = any<T>(block.watched) ? backward_chunk<T, kStates, kSmooth, true>
                                         : backward_chunk<T, kStates, kSmooth, false>;
  Bits<T> delicate = block.watched & block.tiny;
  clear(scratch.grad_initial, kStates * n);
  clear(scratch.grad_transition, kStates * kStates * n);
  if (!kSmooth && m.own_emission) clear(scratch.grad_table, table_size(m) * n);
  Vec<T> later[kStates] = {};
  const T* rows[n];
  T* smoothed[n];
  for (int64_t begin = round_down(m.steps - 1, scratch.chunk); begin >= 0; begin -= scratch.chunk) {
    const int64_t end = smaller(m.steps, begin + scratch.chunk);
    const int64_t count = (end - begin) * kStates, before = begin > 0 ? kStates : 0;
    scratch.parameters.find_rows(m, block, begin, end);
    block.point(a.filtered, size, begin * kStates - before, rows);
    load_rows(rows, count + before, scratch.filtered + (kStates - before) * n);
    block.point(a.predicted, size, begin * kStates, rows);
    load_rows(rows, count, scratch.predicted);
    if (a.grad_filtered) {
      block.point(a.grad_filtered, size, begin * kStates, rows);
      load_rows(rows, count, scratch.grad_filtered);
    }
    if (a.grad_predicted) {
      block.point(a.grad_predicted, size, begin * kStates, rows);
      load_rows(rows, count, scratch.adjoint);
    }
    delicate |= run(a, scratch, block, begin, end, grad_log, later);
    if (kSmooth) {
      block.point(a.smoothed, size, begin * kStates, smoothed);
      store_rows(scratch.adjoint, count, block.lanes, smoothed);
    } else {
      add_transitions<T, kStates>(scratch, begin == 0 ? 1 : 0, end - begin);
      if (begin == 0) {
        __builtin_memcpy(scratch.grad_initial, scratch.adjoint, kStates * n * sizeof(T));
      }
    }
  }
  for (int lane = 0; lane < block.lanes; ++lane) {
    if (delicate[lane] && block.length[lane] > 0) a.delicate[block.first + lane] = 1;
  }
  if (kSmooth) return;
  scratch.summed_steps += m.steps * n;
  write_gradients(a, block, shared, scratch);
}

// The blocks from begin to end, whose shared gradients are added up.
template <class T, int kStates, bool kSmooth>
void backward_piece(const HmmBackward<T>& a, int64_t begin, int64_t end,
                    const HmmSharedGradients& shared, BackwardScratch<T>& scratch) {
  for (int64_t block = begin; block < end; ++block) {
    backward_block<T, kStates, kSmooth>(a, block, shared, scratch);
  }
  if (!kSmooth) flush_shared_table(a.model, shared, scratch);
}

// The pieces of the batch from begin to end, each with its own sums of shared gradients.
template <class T, int kStates>
void backward_pieces(const HmmBackward<T>& a, int64_t begin, int64_t end, int64_t pieces,
                     const HmmSharedGradients* shared, void* memory) {
  const HmmModel<T>& m = a.model;
  Arena arena(memory);
  BackwardScratch<T> scratch(m, a.smoothed != nullptr, arena);
  scratch.parameters.load_shared(m);
  if (!a.smoothed && !m.own_emission) clear(scratch.grad_table, table_size(m));
  for (int64_t piece = begin; piece < end; ++piece) {
    const HmmPiece blocks(m.batch, kLanes<T>, piece, pieces);
    if (a.smoothed) {
      backward_piece<T, kStates, true>(a, blocks.begin, blocks.end, {}, scratch);
    } else {
      backward_piece<T, kStates, false>(a, blocks.begin, blocks.end, shared[piece], scratch);
    }
  }
}

}  // namespace few_states
}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt
