// One block per sequence: the walk up and down the ladder with the threads of a block as its team,
// and the table of subsets in shared memory where it fits, else in global memory.
#pragma once

#include "cuda/bijection_posterior/warp.cuh"
#include "host_device/bijection_posterior/channel_gradient.h"
#include "host_device/bijection_posterior/faults.h"
#include "host_device/bijection_posterior/ladder.h"
#include "host_device/bijection_posterior/row_writer.h"
#include "host_device/wide.h"

namespace bwt {

// The threads of a block as a team: every loop ends with a barrier.
struct BlockTeam {
  template <class Body>
  __device__ void each(int count, Body body) const {
    for (int i = threadIdx.x; i < count; i += blockDim.x) body(i);
    __syncthreads();
  }
  template <class Body>
  __device__ void one(Body body) const {
    if (threadIdx.x == 0) body();
    __syncthreads();
  }
  __device__ void sync() const { __syncthreads(); }
};

__device__ inline double shuffle_xor(double x, int distance) {
  return __shfl_xor_sync(kAllLanes, x, distance);
}

__device__ inline Wide shuffle_xor(Wide x, int distance) {
  return {__shfl_xor_sync(kAllLanes, x.mantissa, distance),
          __shfl_xor_sync(kAllLanes, static_cast<long long>(x.exponent), distance)};
}

template <class Real>
__device__ Real warp_sum(Real x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) x += shuffle_xor(x, distance);
  return x;
}

// All subsets of V symbols sorted by size, as bit masks, and where each size begins.
struct SubsetList {
  const uint32_t* masks;  // [2^V]
  const int* begin;       // [V + 2]
};

// Levels indexed by the bit mask itself, in shared or in global memory.
template <class Real>
struct MaskTable {
  SubsetList subsets;
  int symbols;
  Real* level;    // [2^V]
  Real* adjoint;  // [2^V]

  __device__ void reset(BlockTeam team) {
    team.one([&] {
      level[0] = Number<Real>::from(1.0);
      if (adjoint != nullptr) adjoint[0] = Number<Real>::from(0.0);
    });
  }

  __device__ void raise(BlockTeam team, int rung, const Real* like) {
    team.each(count(rung + 1), [&](int i) {
      const uint32_t set = member(rung + 1, i);
      Real sum = Number<Real>::from(0.0);
      for (uint32_t rest = set; rest != 0; rest &= rest - 1) {
        sum += level[set & ~(rest & -rest)] * like[__ffs(rest) - 1];
      }
      level[set] = sum;
    });
  }

  // One warp per symbol.
  __device__ void unused(BlockTeam team, int size, Real* sums) {
    each_symbol([&](int v, int lane) {
      Real sum = Number<Real>::from(0.0);
      for (int i = lane; i < count(size); i += kWarp) {
        const uint32_t set = member(size, i);
        if (!(set >> v & 1)) sum += level[set];
      }
      sum = warp_sum(sum);
      if (lane == 0) sums[v] = sum;
    });
    team.sync();
  }

  __device__ void clear_adjoint(BlockTeam team, int size) {
    team.each(count(size), [&](int i) { adjoint[member(size, i)] = Number<Real>::from(0.0); });
  }

  __device__ void unused_adjoint(BlockTeam team, int size, const Real* d_sums) {
    team.each(count(size), [&](int i) {
      const uint32_t set = member(size, i);
      Real sum = adjoint[set];
      for (int v = 0; v < symbols; ++v) {
        if (!(set >> v & 1)) sum += d_sums[v];
      }
      adjoint[set] = sum;
    });
  }

  __device__ void lower(BlockTeam team, int rung, const Real* like, Real* d_like) {
    each_symbol([&](int v, int lane) {
      Real sum = Number<Real>::from(0.0);
      for (int i = lane; i < count(rung + 1); i += kWarp) {
        const uint32_t set = member(rung + 1, i);
        if (set >> v & 1) sum += adjoint[set] * level[set & ~(1u << v)];
      }
      sum = warp_sum(sum);
      if (lane == 0) d_like[v] = sum;
    });
    team.each(count(rung), [&](int i) {
      const uint32_t set = member(rung, i);
      Real sum = adjoint[set];
      for (int v = 0; v < symbols; ++v) {
        if (!(set >> v & 1)) sum += adjoint[set | 1u << v] * like[v];
      }
      adjoint[set] = sum;
    });
  }

 private:
  __device__ int count(int size) const { return subsets.begin[size + 1] - subsets.begin[size]; }
  __device__ uint32_t member(int size, int i) const {
    return subsets.masks[subsets.begin[size] + i];
  }

  template <class Body>
  __device__ void each_symbol(Body body) const {
    const int warps = blockDim.x / kWarp;
    for (int v = threadIdx.x / kWarp; v < symbols; v += warps) body(v, threadIdx.x % kWarp);
  }
};

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
  int symbols;
  const double* channel;  // [V, V]
  SubsetList subsets;
  Real* workspace;  // [blocks, 2^V] (twice that with adjoints); null: the table is in shared memory
  int64_t* first_fault;
  const int* wide;  // whether the channel needs Wide

  // Whether this is the kernel that computes: those for double and for Wide are both launched, for
  // the host does not know which is needed and would have to wait to hear it.
  __device__ bool is_for_this_channel() const { return (*wide != 0) == Number<Real>::kWide; }

  // Shared memory: scratch, then the table where it fits.
  __host__ __device__ static size_t scratch_bytes(int symbols) {
    return (LadderScratch<Real>::bytes(symbols) + 15) / 16 * 16;
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
  const size_t table = size_t{1} << in.symbols;
  Real* level = in.workspace == nullptr
                    ? reinterpret_cast<Real*>(shared + in.scratch_bytes(in.symbols))
                    : in.workspace + blockIdx.x * table * (adjoints ? 2 : 1);
  const MaskTable<Real> levels{in.subsets, in.symbols, level, adjoints ? level + table : nullptr};
  const IdRows rows{in.keys + sequence * in.length, in.values + sequence * in.length};
  return Ladder<Real, BlockTeam, MaskTable<Real>, IdRows>(
      BlockTeam{}, levels, LadderScratch<Real>(shared, in.symbols), rows, in.channel, in.symbols);
}

template <class Real, class Out>
__global__ void noisy_kernel(NoisyBatch<Real> in, RowWriter<Out> out) {
  if (!in.is_for_this_channel()) return;
  extern __shared__ double2 shared[];
  for (int64_t b = blockIdx.x; b < in.batch; b += gridDim.x) {
    auto ladder = block_ladder(in, b, false, reinterpret_cast<char*>(shared));
    RowWriter<Out> writer = out.at(b, in.length, in.symbols);
    const int64_t fault = ladder.walk(in.length, writer);
    if (fault == kNoFault) continue;
    writer.clear(BlockTeam{}, fault, in.length, in.symbols);
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
    ChannelGradient<Real, In> sink{d_posterior + b * rows * in.symbols, d_entropy + b * rows,
                                   d_later_evidence + b * rows,
                                   d_channel + blockIdx.x * in.symbols * in.symbols};
    ladder.walk(rows, sink);
  }
}

}  // namespace bwt
