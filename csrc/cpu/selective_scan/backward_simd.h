// The backward pass of the selective scan.

namespace bwt {
namespace BWT_SIMD {
namespace {

constexpr int kBackwardGroup = 4;

template <class T>
struct BackwardScratch {
  BackwardScratch(const ScanShape& shape, Arena& arena)
      : rates(shape, arena),
        steps(arena),
        carried(shape, arena),
        grad_rates(shape, arena),
        grad_skip(arena.take<T>(round_up(shape.channels, kLanes<T>))),
        start(arena.take<T>(kTile * shape.states * kLanes<T>)),
        grad_y(Steps<T>::take(arena)),
        grad_size(Steps<T>::take(arena)),
        grad_input(Steps<T>::take(arena)),
        factors(arena.take<T>(kScanChunk * kBackwardGroup * kLanes<T>)),
        states(arena.take<T>(kScanChunk * kBackwardGroup * kLanes<T>)),
        grad_B(arena.take<T>(kScanChunk * shape.states * kLanes<T>)),
        grad_C(arena.take<T>(kScanChunk * shape.states * kLanes<T>)) {}

  Rates<T> rates;
  Steps<T> steps;
  Blocks<T> carried;  // a g of the step after the chunk
  Blocks<T> grad_rates;
  T* grad_skip;   // [E]
  T* start;       // [vector][N][lane]: h before the chunk
  T* grad_y;      // [vector][step][lane]
  T* grad_size;   // [vector][step][lane], in units of the rates; at last the gradient of delta
  T* grad_input;  // [vector][step][lane]; at last the gradient of u
  T* factors;     // [step][group][lane]: a
  T* states;      // [step][group][lane]: h before the step
  T* grad_B;      // [step][N][lane], summed over vectors of channels
  T* grad_C;
};

// The states n .. n + kGroup of a chunk again, and what they add to the gradient of C.
template <class T, int kGroup>
[[gnu::noinline]] void recompute_group(const ScanInputs<T>& inputs, const Tile<T>& tile,
                                       int64_t vector, int64_t n,
                                       const BackwardScratch<T>& scratch) {
  constexpr int lanes = kLanes<T>;
  const int64_t count = tile.count, N = inputs.shape.states;
  const T* start = scratch.start + (vector * N + n) * lanes;
  const T* factors = scratch.factors;
  const T* moved = scratch.steps.input + tile.at(vector);
  const T* grads_y = scratch.grad_y + tile.at(vector);
  const T* B = inputs.B.at(tile.batch, tile.first) + n;
  const int64_t b_stride = inputs.B.time_stride;
  T* states = scratch.states;
  T* grad_C = scratch.grad_C + n * lanes;
  Vec<T> h[kGroup];
#pragma GCC unroll 8
  for (int i = 0; i < kGroup; ++i) h[i] = load(start + i * lanes);
  for (int64_t t = 0; t < count; ++t, B += b_stride) {
    const Vec<T> input = load(moved + t * lanes), grad_y = load(grads_y + t * lanes);
#pragma GCC unroll 8
    for (int i = 0; i < kGroup; ++i) {
      store(states + i * lanes, h[i]);
      h[i] = load(factors + i * lanes) * h[i] + input * B[i];
      store(grad_C + i * lanes, grad_y * h[i] + load(grad_C + i * lanes));
    }
    factors += kGroup * lanes;
    states += kGroup * lanes;
    grad_C += N * lanes;
  }
}

// Their other gradients, backwards in time.
template <class T, int kGroup>
[[gnu::noinline]] void adjoint_group(const ScanInputs<T>& inputs, const Tile<T>& tile,
                                     int64_t vector, int64_t n, const BackwardScratch<T>& scratch) {
  constexpr int lanes = kLanes<T>;
  const int64_t last = tile.count - 1, N = inputs.shape.states;
  const int64_t channel = tile.channel + vector * lanes;
  const T* rates = scratch.rates.scaled.at(channel, n);
  const T* factors = scratch.factors + last * kGroup * lanes;
  const T* states = scratch.states + last * kGroup * lanes;
  const T* sizes = scratch.steps.size + tile.at(vector);
  const T* moved = scratch.steps.input + tile.at(vector);
  const T* grads_y = scratch.grad_y + tile.at(vector);
  const T* B = inputs.B.at(tile.batch, tile.first + last) + n;
  const T* C = inputs.C.at(tile.batch, tile.first + last) + n;
  const int64_t b_stride = inputs.B.time_stride, c_stride = inputs.C.time_stride;
  T* carried = scratch.carried.at(channel, n);
  T* grad_rates = scratch.grad_rates.at(channel, n);
  T* grad_sizes = scratch.grad_size + tile.at(vector);
  T* grad_inputs = scratch.grad_input + tile.at(vector);
  T* grad_B = scratch.grad_B + (last * N + n) * lanes;
  Vec<T> g[kGroup], grad_rate[kGroup];
#pragma GCC unroll 8
  for (int i = 0; i < kGroup; ++i) {
    g[i] = load(carried + i * lanes);
    grad_rate[i] = load(grad_rates + i * lanes);
  }
  for (int64_t t = last; t >= 0; --t, B -= b_stride, C -= c_stride) {
    const Vec<T> size = load(sizes + t * lanes), input = load(moved + t * lanes);
    const Vec<T> grad_y = load(grads_y + t * lanes);
    Vec<T> grad_size = n > 0 ? load(grad_sizes + t * lanes) : Vec<T>{};
    Vec<T> grad_input = n > 0 ? load(grad_inputs + t * lanes) : Vec<T>{};
#pragma GCC unroll 8
    for (int i = 0; i < kGroup; ++i) {
      g[i] = grad_y * C[i] + g[i];
      store(grad_B + i * lanes, input * g[i] + load(grad_B + i * lanes));
      grad_input = g[i] * B[i] + grad_input;
      g[i] *= load(factors + i * lanes);
      const Vec<T> v = g[i] * load(states + i * lanes);
      grad_rate[i] = size * v + grad_rate[i];
      grad_size = v * load(rates + i * lanes) + grad_size;
    }
    store(grad_sizes + t * lanes, grad_size);
    store(grad_inputs + t * lanes, grad_input);
    factors -= kGroup * lanes;
    states -= kGroup * lanes;
    grad_B -= N * lanes;
  }
#pragma GCC unroll 8
  for (int i = 0; i < kGroup; ++i) {
    store(carried + i * lanes, g[i]);
    store(grad_rates + i * lanes, grad_rate[i]);
  }
}

// From the gradients of s u and s to those of u, delta and D.
template <class T>
void finish_gradients(const ScanInputs<T>& inputs, const Tile<T>& tile, int64_t vector,
                      const BackwardScratch<T>& scratch) {
  const int64_t channel = tile.channel + vector * kLanes<T>, end = tile.at(vector + 1);
  const Vec<T> skip = skip_at(inputs, channel);
  const Steps<T> steps = scratch.steps;
  const bool softplus = inputs.softplus;
  const T* grads_y = scratch.grad_y;
  T* grad_sizes = scratch.grad_size;
  T* grad_inputs = scratch.grad_input;
  Vec<T> grad_skip = load(scratch.grad_skip + channel);
  for (int64_t i = tile.at(vector); i < end; i += kLanes<T>) {
    const Vec<T> u = load(steps.u + i), grad_y = load(grads_y + i);
    const Vec<T> slope = softplus ? load(steps.slope + i) : broadcast(T(1));
    const Vec<T> grad_input = load(grad_inputs + i);
    const Vec<T> grad_size = load(grad_sizes + i) * T(kScanLn2) + grad_input * u;
    grad_skip += grad_y * u;
    store(grad_inputs + i, load(steps.size + i) * grad_input + skip * grad_y);
    store(grad_sizes + i, grad_size * slope);
  }
  store(scratch.grad_skip + channel, grad_skip);
}

template <class T>
void read_start(const ScanBackward<T>& a, const Tile<T>& tile, const BackwardScratch<T>& scratch) {
  const int64_t E = a.inputs.shape.channels, N = a.inputs.shape.states;
  const int64_t before = tile.first / a.inputs.every - 1;
  const T* rows = a.inputs.initial;
  if (before >= 0) {
    rows = a.states + (tile.batch * a.inputs.saved() + before) * N * E;
  } else if (rows != nullptr) {
    rows += tile.batch * N * E;
  }
  if (rows == nullptr) {
    clear(scratch.start, tile.vectors() * N * kLanes<T>);
  } else {
    read_rows(rows + tile.channel, E, N, tile.width, scratch.start);
  }
}

template <class T>
void backward_tile(const ScanBackward<T>& a, const Tile<T>& tile, BackwardScratch<T>& scratch) {
  const ScanInputs<T>& inputs = a.inputs;
  const bool tame = scratch.steps.fill(inputs, tile, scratch.rates.largest);
  Steps<T>::read(a.grad_y, tile, scratch.grad_y);
  read_start(a, tile, scratch);
  for (int64_t vector = 0; vector < tile.vectors(); ++vector) {
    const T* sizes = scratch.steps.size + tile.at(vector);
    for_state_groups<kBackwardGroup>(inputs.shape.states, [&]<int kGroup>(int64_t n) {
      const T* rates = scratch.rates.scaled.at(tile.channel + vector * kLanes<T>, n);
      fill_factors<T, kGroup>(sizes, tile.count, rates, tame, scratch.factors);
      recompute_group<T, kGroup>(inputs, tile, vector, n, scratch);
      adjoint_group<T, kGroup>(inputs, tile, vector, n, scratch);
    });
    finish_gradients(inputs, tile, vector, scratch);
  }
  const int64_t E = inputs.shape.channels;
  const int64_t begin = (tile.batch * inputs.shape.steps + tile.first) * E + tile.channel;
  write_rows(scratch.grad_input, tile.count, tile.width, a.grad_u + begin, E);
  write_rows(scratch.grad_size, tile.count, tile.width, a.grad_delta + begin, E);
}

template <class T>
void sum_channels(const T* sums, int64_t count, T* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = sum_lanes<T>(load(sums + i * kLanes<T>))[0];
}

template <class T>
void backward_entry(const ScanBackward<T>& a, int64_t batch, BackwardScratch<T>& scratch) {
  const ScanShape& shape = a.inputs.shape;
  const int64_t steps = a.inputs.every, E = shape.channels, N = shape.states;
  scratch.carried.read(a.grad_last == nullptr ? nullptr : a.grad_last + batch * N * E, E);
  for (int64_t first = round_down(shape.steps - 1, steps); first >= 0; first -= steps) {
    clear(scratch.grad_B, steps * N * kLanes<T>);
    clear(scratch.grad_C, steps * N * kLanes<T>);
    for (int64_t channel = 0; channel < shape.channels; channel += kTile * kLanes<T>) {
      backward_tile(a, Tile<T>(shape, batch, first, steps, channel), scratch);
    }
    const int64_t count = smaller(steps, shape.steps - first);
    const int64_t begin = (batch * shape.steps + first) * N;
    sum_channels(scratch.grad_B, count * N, a.grad_B + begin);
    sum_channels(scratch.grad_C, count * N, a.grad_C + begin);
  }
  if (a.grad_initial != nullptr) scratch.carried.write(a.grad_initial + batch * N * E, E);
}

template <class T>
void backward_pieces(const ScanBackward<T>& a, int64_t begin, int64_t end, int64_t pieces,
                     void* memory) {
  const ScanShape& shape = a.inputs.shape;
  const int64_t E = shape.channels, N = shape.states, entries = shape.entries_of_model();
  Arena arena(memory);
  BackwardScratch<T> scratch(shape, arena);
  ScanBackward<T> own = a;
  for (int64_t piece = begin; piece < end; ++piece) {
    const int64_t model = piece / pieces, part = piece % pieces;
    if (piece == begin || part == 0) {
      own.inputs = a.inputs.of_model(model);
      scratch.rates.fill(own.inputs);
    }
    scratch.grad_rates.clear();
    clear(scratch.grad_skip, round_up(E, kLanes<T>));
    const int64_t first = model * entries + entries * part / pieces;
    const int64_t last = model * entries + entries * (part + 1) / pieces;
    for (int64_t batch = first; batch < last; ++batch) backward_entry(own, batch, scratch);
    write_rows(scratch.grad_rates.data, N, E, a.grad_A + piece * N * E, E);
    __builtin_memcpy(a.grad_D + piece * E, scratch.grad_skip, E * sizeof(T));
  }
}

template <class T>
int64_t scratch_bytes(const ScanBackward<T>& a) {
  Arena arena(nullptr);
  BackwardScratch<T>(a.inputs.shape, arena);
  return arena.bytes();
}

}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt
