// The forward pass of the selective scan.

namespace bwt {
namespace BWT_SIMD {
namespace {

constexpr int kForwardGroup = 8;

template <class T>
struct ForwardScratch {
  ForwardScratch(const ScanShape& shape, Arena& arena)
      : rates(shape, arena),
        steps(arena),
        state(shape, arena),
        factors(arena.take<T>(kScanChunk * kForwardGroup * kLanes<T>)),
        y(Steps<T>::take(arena)) {}

  Rates<T> rates;
  Steps<T> steps;
  Blocks<T> state;
  T* factors;  // [step][group][lane]: a
  T* y;        // [vector][step][lane]
};

// Adds the states n .. n + kGroup to y, and moves them on.
template <class T, int kGroup>
[[gnu::noinline]] void forward_group(const ScanInputs<T>& inputs, const Tile<T>& tile,
                                     int64_t vector, int64_t n, const ForwardScratch<T>& scratch) {
  constexpr int lanes = kLanes<T>;
  const int64_t count = tile.count;
  const T* factors = scratch.factors;
  const T* moved = scratch.steps.input + tile.at(vector);
  const T* B = inputs.B.at(tile.batch, tile.first) + n;
  const T* C = inputs.C.at(tile.batch, tile.first) + n;
  const int64_t b_stride = inputs.B.time_stride, c_stride = inputs.C.time_stride;
  T* state = scratch.state.at(tile.channel + vector * lanes, n);
  T* y = scratch.y + tile.at(vector);
  Vec<T> h[kGroup];
#pragma GCC unroll 8
  for (int i = 0; i < kGroup; ++i) h[i] = load(state + i * lanes);
  for (int64_t t = 0; t < count; ++t, B += b_stride, C += c_stride) {
    const Vec<T> input = load(moved + t * lanes);
    Vec<T> sum = load(y + t * lanes);
#pragma GCC unroll 8
    for (int i = 0; i < kGroup; ++i) {
      h[i] = load(factors + i * lanes) * h[i] + input * B[i];
      sum = h[i] * C[i] + sum;
    }
    factors += kGroup * lanes;
    store(y + t * lanes, sum);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kGroup; ++i) store(state + i * lanes, h[i]);
}

template <class T>
void forward_vector(const ScanInputs<T>& inputs, const Tile<T>& tile, int64_t vector, bool tame,
                    ForwardScratch<T>& scratch) {
  const int64_t channel = tile.channel + vector * kLanes<T>;
  const Vec<T> skip = skip_at(inputs, channel);
  const T* u = scratch.steps.u;
  T* y = scratch.y;
  for (int64_t i = tile.at(vector); i < tile.at(vector + 1); i += kLanes<T>) {
    store(y + i, skip * load(u + i));
  }
  const T* sizes = scratch.steps.size + tile.at(vector);
  for_state_groups<kForwardGroup>(inputs.shape.states, [&]<int kGroup>(int64_t n) {
    const T* rates = scratch.rates.scaled.at(channel, n);
    fill_factors<T, kGroup>(sizes, tile.count, rates, tame, scratch.factors);
    forward_group<T, kGroup>(inputs, tile, vector, n, scratch);
  });
}

template <class T>
void forward_tile(const ScanForward<T>& a, const Tile<T>& tile, ForwardScratch<T>& scratch) {
  const ScanShape& shape = a.inputs.shape;
  const int64_t E = shape.channels, N = shape.states, saved = a.inputs.saved();
  const bool tame = scratch.steps.fill(a.inputs, tile, scratch.rates.largest);
  for (int64_t vector = 0; vector < tile.vectors(); ++vector) {
    forward_vector(a.inputs, tile, vector, tame, scratch);
  }
  T* y = a.y + (tile.batch * shape.steps + tile.first) * E + tile.channel;
  write_rows(scratch.y, tile.count, tile.width, y, E);
  const int64_t number = saved == 0 ? 0 : tile.first / a.inputs.every;
  if (number < saved) {
    T* states = a.states + (tile.batch * saved + number) * N * E + tile.channel;
    write_rows(scratch.state.at(tile.channel, 0), N, tile.width, states, E);
  }
}

template <class T>
void forward_entry(const ScanForward<T>& a, int64_t batch, ForwardScratch<T>& scratch) {
  const ScanShape& shape = a.inputs.shape;
  const int64_t steps = a.inputs.every > 0 ? a.inputs.every : kScanChunk;
  const int64_t E = shape.channels, begin = batch * shape.states * E;
  scratch.state.read(a.inputs.initial == nullptr ? nullptr : a.inputs.initial + begin, E);
  for (int64_t first = 0; first < shape.steps; first += steps) {
    for (int64_t channel = 0; channel < shape.channels; channel += kTile * kLanes<T>) {
      forward_tile(a, Tile<T>(shape, batch, first, steps, channel), scratch);
    }
  }
  if (a.last != nullptr) scratch.state.write(a.last + begin, E);
}

template <class T>
void forward_entries(const ScanForward<T>& a, int64_t begin, int64_t end, void* memory) {
  const ScanShape& shape = a.inputs.shape;
  const int64_t entries = shape.entries_of_model();
  Arena arena(memory);
  ForwardScratch<T> scratch(shape, arena);
  for (int64_t batch = begin; batch < end;) {
    const int64_t model = batch / entries, last = smaller(end, (model + 1) * entries);
    const ScanForward<T> own{a.inputs.of_model(model), a.y, a.states, a.last};
    scratch.rates.fill(own.inputs);
    for (; batch < last; ++batch) forward_entry(own, batch, scratch);
  }
}

template <class T>
int64_t scratch_bytes(const ScanForward<T>& a) {
  Arena arena(nullptr);
  ForwardScratch<T>(a.inputs.shape, arena);
  return arena.bytes();
}

}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt
