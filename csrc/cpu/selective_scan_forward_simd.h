// The forward pass of selective_scan_simd.h.

namespace bwt {
namespace BWT_SIMD {
namespace {

constexpr int kForwardGroup = 4;

template <class T>
struct ForwardScratch {
  ForwardScratch(const ScanShape& shape, Arena& arena)
      : rates(shape, arena),
        steps(arena),
        state(arena.take<T>(shape.states * rates.stride)),
        y(arena.take<T>(kScanChunk * kLanes<T>)) {}

  Rates<T> rates;
  Steps<T> steps;
  T* state;  // [N,stride]
  T* y;      // [step][lane]
};

// Adds the states n .. n + kGroup to y, and moves them on.
template <class T, int kGroup, bool kTame>
void forward_group(const ScanInputs<T>& inputs, const Place& at, int64_t n,
                   const ForwardScratch<T>& scratch) {
  constexpr int lanes = kLanes<T>;
  const int64_t stride = scratch.rates.stride, count = at.count;
  const T* rates = scratch.rates.scaled + n * stride + at.channel;
  T* state = scratch.state + n * stride + at.channel;
  const T* sizes = scratch.steps.size;
  const T* moved = scratch.steps.input;
  const T* B = inputs.B.at(at.batch, at.first) + n;
  const T* C = inputs.C.at(at.batch, at.first) + n;
  const int64_t b_stride = inputs.B.time_stride, c_stride = inputs.C.time_stride;
  T* y = scratch.y;
  Vec<T> rate[kGroup], h[kGroup];
#pragma GCC unroll 8
  for (int i = 0; i < kGroup; ++i) {
    rate[i] = load(rates + i * stride);
    h[i] = load(state + i * stride);
  }
  for (int64_t t = 0; t < count; ++t, B += b_stride, C += c_stride) {
    const Vec<T> size = load(sizes + t * lanes), input = load(moved + t * lanes);
    Vec<T> sum = load(y + t * lanes);
    Vec<T> factor[kGroup];
    exp2_products<T, kTame, kGroup>(size, rate, factor);
#pragma GCC unroll 8
    for (int i = 0; i < kGroup; ++i) {
      h[i] = factor[i] * h[i] + input * B[i];
      sum = h[i] * C[i] + sum;
    }
    store(y + t * lanes, sum);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kGroup; ++i) store(state + i * stride, h[i]);
}

template <class T>
void forward_place(const ScanForward<T>& a, const Place& at, ForwardScratch<T>& scratch) {
  constexpr int lanes = kLanes<T>;
  const ScanInputs<T>& inputs = a.inputs;
  const int64_t E = inputs.shape.channels;
  const bool tame = scratch.steps.fill(inputs, at, scratch.rates.largest, false);
  const Vec<T> skip =
      inputs.D == nullptr ? Vec<T>{} : load_at_most(inputs.D + at.channel, at.width);
  for (int64_t t = 0; t < at.count; ++t) {
    store(scratch.y + t * lanes, skip * load(scratch.steps.u + t * lanes));
  }
  for_state_groups<kForwardGroup>(inputs.shape.states, [&]<int kGroup>(int64_t n) {
    if (tame) {
      forward_group<T, kGroup, true>(inputs, at, n, scratch);
    } else {
      forward_group<T, kGroup, false>(inputs, at, n, scratch);
    }
  });
  T* y = a.y + (at.batch * inputs.shape.steps + at.first) * E + at.channel;
  for (int64_t t = 0; t < at.count; ++t, y += E) {
    store_at_most(y, load(scratch.y + t * lanes), at.width);
  }
}

template <class T>
void save_state(const ScanForward<T>& a, int64_t batch, int64_t number, const T* state,
                int64_t stride) {
  const ScanShape& shape = a.inputs.shape;
  T* to = a.states + (batch * a.inputs.saved() + number) * shape.states * shape.channels;
  for (int64_t n = 0; n < shape.states; ++n, to += shape.channels, state += stride) {
    __builtin_memcpy(to, state, shape.channels * sizeof(T));
  }
}

template <class T>
void forward_entry(const ScanForward<T>& a, int64_t batch, ForwardScratch<T>& scratch) {
  const ScanShape& shape = a.inputs.shape;
  const int64_t steps = a.inputs.every > 0 ? a.inputs.every : kScanChunk;
  clear(scratch.state, shape.states * scratch.rates.stride);
  for (int64_t chunk = 0; chunk * steps < shape.steps; ++chunk) {
    for (int64_t channel = 0; channel < shape.channels; channel += kLanes<T>) {
      forward_place(a, place_at<T>(shape, batch, chunk, steps, channel), scratch);
    }
    if (chunk < a.inputs.saved()) save_state(a, batch, chunk, scratch.state, scratch.rates.stride);
  }
}

template <class T>
void forward(const ScanForward<T>& a, int64_t begin, int64_t end, void* memory) {
  Arena arena(memory);
  ForwardScratch<T> scratch(a.inputs.shape, arena);
  scratch.rates.fill(a.inputs);
  for (int64_t batch = begin; batch < end; ++batch) forward_entry(a, batch, scratch);
}

template <class T>
int64_t forward_scratch(const ScanForward<T>& a) {
  Arena arena(nullptr);
  ForwardScratch<T>(a.inputs.shape, arena);
  return arena.bytes();
}

}  // namespace

int64_t scan_forward_scratch_f32(const ScanForward<float>& a) { return forward_scratch(a); }
int64_t scan_forward_scratch_f64(const ScanForward<double>& a) { return forward_scratch(a); }

void scan_forward_f32(const ScanForward<float>& a, int64_t begin, int64_t end, void* scratch) {
  forward(a, begin, end, scratch);
}
void scan_forward_f64(const ScanForward<double>& a, int64_t begin, int64_t end, void* scratch) {
  forward(a, begin, end, scratch);
}

}  // namespace BWT_SIMD
}  // namespace bwt
