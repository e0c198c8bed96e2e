// The backward pass of selective_scan_simd.h.

namespace bwt {
namespace BWT_SIMD {
namespace {

constexpr int kBackwardGroup = 4;

template <class T>
struct BackwardScratch {
  BackwardScratch(const ScanShape& shape, Arena& arena)
      : rates(shape, arena),
        steps(arena),
        carried(arena.take<T>(shape.states * rates.stride)),
        grad_rates(arena.take<T>(shape.states * rates.stride)),
        grad_skip(arena.take<T>(rates.stride)),
        grad_y(Steps<T>::take(arena)),
        grad_size(Steps<T>::take(arena)),
        grad_input(Steps<T>::take(arena)),
        factors(arena.take<T>(kScanChunk * kBackwardGroup * kLanes<T>)),
        states(arena.take<T>((kScanChunk + 1) * kBackwardGroup * kLanes<T>)),
        grad_B(arena.take<T>(kScanChunk * shape.states * kLanes<T>)),
        grad_C(arena.take<T>(kScanChunk * shape.states * kLanes<T>)) {}

  Rates<T> rates;
  Steps<T> steps;
  T* carried;     // [N,stride]: a g of the step after the chunk
  T* grad_rates;  // [N,stride]
  T* grad_skip;   // [stride]
  T* grad_y;      // [step][lane]
  T* grad_size;   // [step][lane], in units of the rates
  T* grad_input;  // [step][lane]
  T* factors;     // [step][group][lane]: a
  T* states;      // [1 + step][group][lane]: h, from the step before the chunk on
  T* grad_B;      // [step][N][lane], summed over vectors of channels
  T* grad_C;
};

// The states n .. n + kGroup of a chunk again, from `saved` on (null: from zero).
template <class T, int kGroup, bool kTame>
void recompute_group(const ScanInputs<T>& inputs, const Place& at, int64_t n, const T* saved,
                     const BackwardScratch<T>& scratch) {
  constexpr int lanes = kLanes<T>;
  const int64_t stride = scratch.rates.stride, count = at.count;
  const T* rates = scratch.rates.scaled + n * stride + at.channel;
  const T* sizes = scratch.steps.size;
  const T* moved = scratch.steps.input;
  const T* B = inputs.B.at(at.batch, at.first) + n;
  const int64_t b_stride = inputs.B.time_stride;
  T* factors = scratch.factors;
  T* states = scratch.states;
  Vec<T> rate[kGroup], h[kGroup];
#pragma GCC unroll 8
  for (int i = 0; i < kGroup; ++i) {
    rate[i] = load(rates + i * stride);
    h[i] = saved ? load_at_most(saved + (n + i) * inputs.shape.channels, at.width) : Vec<T>{};
    store(states + i * lanes, h[i]);
  }
  for (int64_t t = 0; t < count; ++t, B += b_stride) {
    const Vec<T> size = load(sizes + t * lanes), input = load(moved + t * lanes);
    states += kGroup * lanes;
    Vec<T> factor[kGroup];
    exp2_products<T, kTame, kGroup>(size, rate, factor);
#pragma GCC unroll 8
    for (int i = 0; i < kGroup; ++i) {
      h[i] = factor[i] * h[i] + input * B[i];
      store(factors + i * lanes, factor[i]);
      store(states + i * lanes, h[i]);
    }
    factors += kGroup * lanes;
  }
}

template <class T, int kGroup>
void adjoint_group(const ScanInputs<T>& inputs, const Place& at, int64_t n,
                   const BackwardScratch<T>& scratch) {
  constexpr int lanes = kLanes<T>;
  const int64_t stride = scratch.rates.stride, N = inputs.shape.states;
  const T* rates = scratch.rates.scaled + n * stride + at.channel;
  T* carried = scratch.carried + n * stride + at.channel;
  T* grad_rates = scratch.grad_rates + n * stride + at.channel;
  Vec<T> g[kGroup], grad_rate[kGroup];
#pragma GCC unroll 8
  for (int i = 0; i < kGroup; ++i) {
    g[i] = load(carried + i * stride);
    grad_rate[i] = load(grad_rates + i * stride);
  }
  for (int64_t t = at.count - 1; t >= 0; --t) {
    const T* B = inputs.B.at(at.batch, at.first + t) + n;
    const T* C = inputs.C.at(at.batch, at.first + t) + n;
    const T* factors = scratch.factors + t * kGroup * lanes;
    const T* before = scratch.states + t * kGroup * lanes;
    const T* after = before + kGroup * lanes;
    T* grad_B = scratch.grad_B + (t * N + n) * lanes;
    T* grad_C = scratch.grad_C + (t * N + n) * lanes;
    const Vec<T> size = load(scratch.steps.size + t * lanes);
    const Vec<T> input = load(scratch.steps.input + t * lanes);
    const Vec<T> grad_y = load(scratch.grad_y + t * lanes);
    Vec<T> grad_size = load(scratch.grad_size + t * lanes);
    Vec<T> grad_input = load(scratch.grad_input + t * lanes);
#pragma GCC unroll 8
    for (int i = 0; i < kGroup; ++i) {
      g[i] = grad_y * C[i] + g[i];
      store(grad_C + i * lanes, grad_y * load(after + i * lanes) + load(grad_C + i * lanes));
      store(grad_B + i * lanes, input * g[i] + load(grad_B + i * lanes));
      grad_input = g[i] * B[i] + grad_input;
      g[i] *= load(factors + i * lanes);
      const Vec<T> v = g[i] * load(before + i * lanes);
      grad_rate[i] = size * v + grad_rate[i];
      grad_size = v * load(rates + i * stride) + grad_size;
    }
    store(scratch.grad_size + t * lanes, grad_size);
    store(scratch.grad_input + t * lanes, grad_input);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kGroup; ++i) {
    store(carried + i * stride, g[i]);
    store(grad_rates + i * stride, grad_rate[i]);
  }
}

template <class T>
void load_gradients(const ScanBackward<T>& a, const Place& at, BackwardScratch<T>& scratch) {
  constexpr int lanes = kLanes<T>;
  for (int64_t t = 0; t < at.count; ++t) {
    const T* from = a.grad_y.at(at.batch, at.first + t) + at.channel;
    store(scratch.grad_y + t * lanes, load_row(from, at.width));
  }
  clear(scratch.grad_size, at.count * lanes);
  clear(scratch.grad_input, at.count * lanes);
}

template <class T>
void store_gradients(const ScanBackward<T>& a, const Place& at, BackwardScratch<T>& scratch) {
  constexpr int lanes = kLanes<T>;
  const ScanInputs<T>& inputs = a.inputs;
  const int64_t E = inputs.shape.channels;
  const Vec<T> skip =
      inputs.D == nullptr ? Vec<T>{} : load_at_most(inputs.D + at.channel, at.width);
  Vec<T> grad_skip = load(scratch.grad_skip + at.channel);
  const int64_t begin = (at.batch * inputs.shape.steps + at.first) * E + at.channel;
  for (int64_t t = 0; t < at.count; ++t) {
    const Vec<T> u = load(scratch.steps.u + t * lanes);
    const Vec<T> grad_y = load(scratch.grad_y + t * lanes);
    const Vec<T> grad_input = load(scratch.grad_input + t * lanes);
    const Vec<T> grad_size = load(scratch.grad_size + t * lanes) * T(kScanLn2) + grad_input * u;
    const Vec<T> grad_u = load(scratch.steps.size + t * lanes) * grad_input + skip * grad_y;
    grad_skip += grad_y * u;
    store_at_most(a.grad_u + begin + t * E, grad_u, at.width);
    const Vec<T> slope = inputs.softplus ? load(scratch.steps.slope + t * lanes) : broadcast(T(1));
    store_at_most(a.grad_delta + begin + t * E, grad_size * slope, at.width);
  }
  store(scratch.grad_skip + at.channel, grad_skip);
}

template <class T>
void backward_place(const ScanBackward<T>& a, const Place& at, BackwardScratch<T>& scratch) {
  const ScanInputs<T>& inputs = a.inputs;
  const ScanShape& shape = inputs.shape;
  const bool tame = scratch.steps.fill(inputs, at, scratch.rates.largest, true);
  const int64_t before = at.first / inputs.every - 1;
  const T* saved =
      before < 0 ? nullptr
                 : a.states + (at.batch * inputs.saved() + before) * shape.states * shape.channels +
                       at.channel;
  load_gradients(a, at, scratch);
  for_state_groups<kBackwardGroup>(shape.states, [&]<int kGroup>(int64_t n) {
    if (tame) {
      recompute_group<T, kGroup, true>(inputs, at, n, saved, scratch);
    } else {
      recompute_group<T, kGroup, false>(inputs, at, n, saved, scratch);
    }
    adjoint_group<T, kGroup>(inputs, at, n, scratch);
  });
  store_gradients(a, at, scratch);
}

template <class T>
void sum_channels(const T* sums, int64_t count, T* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = sum_lanes<T>(load(sums + i * kLanes<T>))[0];
}

template <class T>
void backward_entry(const ScanBackward<T>& a, int64_t batch, BackwardScratch<T>& scratch) {
  const ScanShape& shape = a.inputs.shape;
  const int64_t steps = a.inputs.every, N = shape.states;
  clear(scratch.carried, N * scratch.rates.stride);
  for (int64_t chunk = (shape.steps - 1) / steps; chunk >= 0; --chunk) {
    clear(scratch.grad_B, steps * N * kLanes<T>);
    clear(scratch.grad_C, steps * N * kLanes<T>);
    for (int64_t channel = 0; channel < shape.channels; channel += kLanes<T>) {
      backward_place(a, place_at<T>(shape, batch, chunk, steps, channel), scratch);
    }
    const int64_t first = chunk * steps, count = smaller(steps, shape.steps - first);
    const int64_t begin = (batch * shape.steps + first) * N;
    sum_channels(scratch.grad_B, count * N, a.grad_B + begin);
    sum_channels(scratch.grad_C, count * N, a.grad_C + begin);
  }
}

template <class T>
void backward(const ScanBackward<T>& a, int64_t begin, int64_t end, int64_t pieces, void* memory) {
  const ScanShape& shape = a.inputs.shape;
  Arena arena(memory);
  BackwardScratch<T> scratch(shape, arena);
  scratch.rates.fill(a.inputs);
  const int64_t E = shape.channels, stride = scratch.rates.stride;
  for (int64_t piece = begin; piece < end; ++piece) {
    clear(scratch.grad_rates, shape.states * stride);
    clear(scratch.grad_skip, stride);
    const int64_t last = shape.batch * (piece + 1) / pieces;
    for (int64_t batch = shape.batch * piece / pieces; batch < last; ++batch) {
      backward_entry(a, batch, scratch);
    }
    for (int64_t n = 0; n < shape.states; ++n) {
      __builtin_memcpy(a.grad_A + (piece * shape.states + n) * E, scratch.grad_rates + n * stride,
                       E * sizeof(T));
    }
    __builtin_memcpy(a.grad_D + piece * E, scratch.grad_skip, E * sizeof(T));
  }
}

template <class T>
int64_t backward_scratch(const ScanBackward<T>& a) {
  Arena arena(nullptr);
  BackwardScratch<T>(a.inputs.shape, arena);
  return arena.bytes();
}

}  // namespace

int64_t scan_backward_scratch_f32(const ScanBackward<float>& a) { return backward_scratch(a); }
int64_t scan_backward_scratch_f64(const ScanBackward<double>& a) { return backward_scratch(a); }

void scan_backward_f32(const ScanBackward<float>& a, int64_t begin, int64_t end, int64_t pieces,
                       void* scratch) {
  backward(a, begin, end, pieces, scratch);
}
void scan_backward_f64(const ScanBackward<double>& a, int64_t begin, int64_t end, int64_t pieces,
                       void* scratch) {
  backward(a, begin, end, pieces, scratch);
}

}  // namespace BWT_SIMD
}  // namespace bwt
