// One warp per sequence. Every row is a function of its step and of the first use of each key and
// value, so that after one pass over the steps all rows are written in parallel, coalesced.
#pragma once

#include "cuda/bijection_posterior/warp.cuh"
#include "host_device/bijection_posterior/faults.h"
#include "host_device/bijection_posterior/row_writer.h"

namespace bwt {

template <class Out>
struct NoiselessBatch {
  const int64_t* keys;    // [B, K]
  const int64_t* values;  // [B, K]
  int64_t batch, length;
  int symbols;
  RowWriter<Out> out;
  int64_t* first_fault;
};

// What lane t of a warp knows of its step, once the first use of each key and value is known.
struct LaneStep {
  int known;      // value of a known key, -1 for a new key
  int unused;     // values that no key had before this step
  int64_t fault;  // kNoFault or this step's fault
};

// The first step of every key and value: shared memory of a warp, 2 V entries.
struct FirstUse {
  int* key;
  int* value;
};

template <class Out>
__device__ void find_first_uses(const NoiselessBatch<Out>& in, const int64_t* keys,
                                const int64_t* values, FirstUse first) {
  const int lane = threadIdx.x % kWarp;
  for (int v = lane; v < in.symbols; v += kWarp) first.key[v] = first.value[v] = INT32_MAX;
  __syncwarp();
  for (int64_t t = lane; t < in.length; t += kWarp) {
    const uint64_t key = keys[t], value = values[t];
    if (key < in.symbols) atomicMin(first.key + key, static_cast<int>(t));
    if (value < in.symbols) atomicMin(first.value + value, static_cast<int>(t));
  }
  __syncwarp();
}

template <class Out>
__device__ LaneStep look_at_step(const NoiselessBatch<Out>& in, const int64_t* keys,
                                 const int64_t* values, FirstUse first, int64_t t,
                                 int unused_before) {
  const int lane = threadIdx.x % kWarp;
  const bool inside = t < in.length;
  const uint64_t key = inside ? keys[t] : 0, value = inside ? values[t] : 0;
  const bool key_ok = key < in.symbols, value_ok = value < in.symbols;
  const bool fresh = inside && key_ok && first.key[key] == t;
  LaneStep step;
  step.known = inside && key_ok && !fresh ? static_cast<int>(values[first.key[key]]) : -1;
  const unsigned fresh_lanes = __ballot_sync(kAllLanes, fresh);
  step.unused = unused_before - __popc(fresh_lanes & ((1u << lane) - 1));
  step.fault = kNoFault;
  if (!inside) return step;
  const bool consistent =
      value_ok && (fresh ? first.value[value] == t : step.known == static_cast<int>(value));
  if (!key_ok) {
    step.fault = encode_fault(t, Fault::kKeyRange);
  } else if (!value_ok) {
    step.fault = encode_fault(t, Fault::kValueRange);
  } else if (!consistent) {
    step.fault = encode_fault(t, Fault::kContradiction);
  }
  return step;
}

// The lowest fault of the warp.
__device__ inline int64_t lowest(int64_t fault) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const int64_t other = __shfl_xor_sync(kAllLanes, static_cast<long long>(fault), distance);
    fault = other < fault ? other : fault;
  }
  return fault;
}

// Writes 32 steps, row by row in one run of addresses: lane i writes elements i, i + 32, ...
template <class Out>
__device__ void write_rows(const NoiselessBatch<Out>& in, FirstUse first, LaneStep step,
                           int64_t start, int rows, int64_t rows_known, Out* posterior) {
  const int lane = threadIdx.x % kWarp;
  const Out my_share = static_cast<Out>(1.0 / step.unused);
  Out* out = posterior + start * in.symbols;
  const int count = rows * in.symbols;
  int row = lane / in.symbols, v = lane % in.symbols;
  const int row_step = kWarp / in.symbols, v_step = kWarp % in.symbols;
  for (int base = 0; base < count; base += kWarp) {
    const int from = row < kWarp ? row : kWarp - 1;
    const int known = __shfl_sync(kAllLanes, step.known, from);
    const Out share = __shfl_sync(kAllLanes, my_share, from);
    if (base + lane < count) {
      Out p;
      if (start + row >= rows_known) {
        p = Out(0);
      } else if (known >= 0) {
        p = v == known ? Out(1) : Out(0);
      } else {
        p = first.value[v] >= start + row ? share : Out(0);
      }
      out[base + lane] = p;
    }
    row += row_step;
    v += v_step;
    if (v >= in.symbols) {
      v -= in.symbols;
      ++row;
    }
  }
}

// Sum over this lane and those below.
__device__ inline double scan_sum(double x) {
  const int lane = threadIdx.x % kWarp;
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const double below = __shfl_up_sync(kAllLanes, x, distance);
    if (lane >= distance) x += below;
  }
  return x;
}

template <class Out>
__device__ void noiseless_sequence(const NoiselessBatch<Out>& in, int64_t sequence,
                                   FirstUse first) {
  const int lane = threadIdx.x % kWarp;
  const int64_t* keys = in.keys + sequence * in.length;
  const int64_t* values = in.values + sequence * in.length;
  const RowWriter<Out> out = in.out.at(sequence, in.length, in.symbols);
  find_first_uses(in, keys, values, first);
  int unused = in.symbols;
  int64_t fault = kNoFault;
  double log_evidence = 0.0;
  for (int64_t start = 0; start < in.length; start += kWarp) {
    const int64_t t = start + lane;
    const int rows = static_cast<int>(min(in.length - start, static_cast<int64_t>(kWarp)));
    const LaneStep step = look_at_step(in, keys, values, first, t, unused);
    const int64_t here = lowest(step.fault);
    if (fault == kNoFault) fault = here;
    const int64_t rows_known = fault == kNoFault ? in.length : RowWriter<Out>::rows_before(fault);
    const int64_t evidence_known = fault == kNoFault ? in.length : fault >> 2;
    const bool fresh = t < in.length && step.known < 0 && t < evidence_known;
    const double evidence = log_evidence + scan_sum(fresh ? -log(double(step.unused)) : 0.0);
    if (t < in.length) {
      const bool shares = t < rows_known && step.known < 0;
      out.entropy[t] = shares ? static_cast<Out>(log2(double(step.unused))) : Out(0);
      out.log_evidence[t] =
          t < evidence_known ? static_cast<Out>(evidence) : static_cast<Out>(-INFINITY);
    }
    write_rows(in, first, step, start, rows, rows_known, out.posterior);
    log_evidence = __shfl_sync(kAllLanes, evidence, kWarp - 1);
    unused -= __popc(__ballot_sync(kAllLanes, fresh));
  }
  if (fault != kNoFault && lane == 0) report_fault(in.first_fault, sequence, in.length, fault);
}

template <class Out>
__global__ void noiseless_kernel(NoiselessBatch<Out> in) {
  extern __shared__ int first_uses[];
  const int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  int* mine = first_uses + 2 * in.symbols * warp;
  const FirstUse first{mine, mine + in.symbols};
  for (int64_t b = int64_t{blockIdx.x} * warps + warp; b < in.batch;
       b += int64_t{gridDim.x} * warps) {
    noiseless_sequence(in, b, first);
    __syncwarp();
  }
}

}  // namespace bwt
