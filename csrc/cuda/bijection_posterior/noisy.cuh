// One block per sequence: the walk up and down the ladder with the threads of a block as its team,
// and the levels in shared memory where they fit, else in global memory.
#pragma once

#include "cuda/bijection_posterior/levels.cuh"
#include "cuda/bijection_posterior/warp.cuh"
#include "host_device/bijection_posterior/channel_gradient.h"
#include "host_device/bijection_posterior/faults.h"
#include "host_device/bijection_posterior/ladder.h"
#include "host_device/bijection_posterior/row_writer.h"
#include "host_device/wide.h"

namespace bwt {

struct IdRows {
  const int64_t* keys;
  const int64_t* values;

  __device__ int key(int64_t t) const { return narrow(keys[t]); }
  __device__ int value(int64_t t) const { return narrow(values[t]); }
  __device__ static int narrow(int64_t id) {
    return id == static_cast<int>(id) ? static_cast<int>(id) : -1;
  }
};

template <class Real>
struct NoisyBatch {
  const int64_t* keys;    // [B, K]
  const int64_t* values;  // [B, K]
  int64_t batch, length;
  const double* channel;  // [V, V]
  Lattice lattice;
  int capacity;     // of the ring of levels
  int numbers;      // of a block: the ring with its margin, or all levels and then all adjoints
  Real* workspace;  // [blocks, numbers]; null: they are in shared memory
  int64_t* first_fault;
  const int* wide;  // whether the channel needs Wide

  // Whether this is the kernel that computes: those for double and for Wide are both launched, for
  // the host does not know which is needed and would have to wait to hear it.
  __device__ bool is_for_this_channel() const { return (*wide != 0) == Number<Real>::kWide; }

  // Shared memory: scratch, sums of the groups, then the levels where they fit.
  __host__ __device__ static size_t scratch_bytes(int symbols) {
    return (LadderScratch<Real>::bytes(symbols) + 15) / 16 * 16;
  }
  __host__ __device__ static size_t partial_bytes(const Lattice& lattice, int threads) {
    return size_t(threads / kWarp * lattice.symbols + 1) / 2 * 2 * sizeof(Real);
  }
};

// One warp tells whether doubles are wide enough.
__global__ void channel_range_kernel(const double* channel, int count, int64_t observations,
                                     int* wide) {
  ChannelRange range;
  for (int i = threadIdx.x; i < count; i += kWarp) range.include(channel[i]);
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    range.smallest = fmin(range.smallest, shuffle_xor(range.smallest, distance));
    range.largest = fmax(range.largest, shuffle_xor(range.largest, distance));
  }
  if (threadIdx.x == 0) *wide = range.needs_wide(observations);
}

// The ladder of one sequence on this block's memory.
template <class Real>
__device__ auto block_ladder(const NoisyBatch<Real>& in, int64_t sequence, bool adjoints,
                             char* shared) {
  const int symbols = in.lattice.symbols;
  char* partial = shared + in.scratch_bytes(symbols);
  Real* level = in.workspace == nullptr
                    ? reinterpret_cast<Real*>(partial + in.partial_bytes(in.lattice, blockDim.x))
                    : in.workspace + size_t(blockIdx.x) * in.numbers;
  const RankedLevels<Real> levels(in.lattice, in.capacity, level,
                                  adjoints ? level + in.capacity : nullptr,
                                  reinterpret_cast<Real*>(partial));
  const IdRows rows{in.keys + sequence * in.length, in.values + sequence * in.length};
  return Ladder<Real, BlockTeam, RankedLevels<Real>, IdRows>(
      BlockTeam{}, levels, LadderScratch<Real>(shared, symbols), rows, in.channel, symbols);
}

template <class Real, class Out>
__global__ void noisy_kernel(NoisyBatch<Real> in, RowWriter<Out> out) {
  if (!in.is_for_this_channel()) return;
  extern __shared__ double2 shared[];
  for (int64_t b = blockIdx.x; b < in.batch; b += gridDim.x) {
    auto ladder = block_ladder(in, b, false, reinterpret_cast<char*>(shared));
    RowWriter<Out> writer = out.at(b, in.length, in.lattice.symbols);
    const int64_t fault = ladder.walk(in.length, writer);
    if (fault == kNoFault) continue;
    writer.clear(BlockTeam{}, fault, in.length, in.lattice.symbols);
    if (threadIdx.x == 0) report_fault(in.first_fault, b, in.length, fault);
  }
}

// d_channel [blocks, V, V]: the caller sums over blocks, in a fixed order.
template <class Real, class In>
__global__ void channel_gradient_kernel(NoisyBatch<Real> in, const In* d_posterior,
                                        const In* d_entropy, const double* d_later_evidence,
                                        double* d_channel) {
  if (!in.is_for_this_channel()) return;
  extern __shared__ double2 shared[];
  const int64_t rows = in.length;
  for (int64_t b = blockIdx.x; b < in.batch; b += gridDim.x) {
    auto ladder = block_ladder(in, b, true, reinterpret_cast<char*>(shared));
    ChannelGradient<Real, In> sink{
        d_posterior + b * rows * in.lattice.symbols, d_entropy + b * rows,
        d_later_evidence + b * rows,
        d_channel + blockIdx.x * in.lattice.symbols * in.lattice.symbols};
    ladder.walk(rows, sink);
  }
}

}  // namespace bwt
