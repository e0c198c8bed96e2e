// The levels of a ladder, stored by rank, and a block of threads that works on them.
#pragma once

#include "cuda/bijection_posterior/lattice.cuh"
#include "cuda/bijection_posterior/warp.cuh"
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

// Some levels in a ring of numbers, one after the other. Where there is no room for one more, the
// lowest are given up, and a level that is alone is overwritten by the next: the ring need not
// hold more than the largest level and a little. With room for all subsets nothing is given up,
// and adjoints have the same places. A warp works on subsets that share their high part.
template <class Real>
class RankedLevels {
 public:
  // partial: [warps, V]
  __device__ RankedLevels(const Lattice& lattice, int capacity, Real* level, Real* adjoint,
                          Real* partial)
      : lattice_(lattice),
        capacity_(capacity),
        level_(level),
        adjoint_(adjoint),
        partial_(partial),
        lane_(threadIdx.x % kWarp),
        warp_(threadIdx.x / kWarp),
        warps_(blockDim.x / kWarp) {}

  __device__ void reset(BlockTeam team) {
    begin_ = lowest_ = 0;
    has_adjoint_ = 0;
    team.one([&] { level_[0] = Number<Real>::from(1.0); });
  }

  // Levels above this one are no longer needed. Returns the highest of the others that is there.
  __device__ int cut(BlockTeam team, int level) {
    if (level >= lowest_) return level;
    reset(team);
    return 0;
  }

  // F_{rung+1} from F_rung and the likelihood of the key on the rung.
  __device__ void raise(BlockTeam team, int rung, const Real* like) {
    const int from = place_of(rung);
    const bool overwrites = !make_room(rung);
    const int room = capacity_ - lattice_.count(rung + 1);
    if (overwrites) {
      begin_ = place(from + room);
      lowest_ = rung + 1;
    }
    const int to = place_of(rung + 1);
    const int *old_start = lattice_.starts(rung), *start = lattice_.starts(rung + 1);
    int unread = lattice_.high_parts();  // the numbers of high parts from here on
    for (int top = unread * lattice_.tiles; top > 0; top -= warps_) {
      if (overwrites && room + start[lattice_.high_part(top - warps_)] < old_start[unread]) {
        team.sync();
        unread = lattice_.high_part(top - 1) + 1;
      }
      const int tile = top - 1 - warp_;
      if (tile < 0) continue;
      const int high = lattice_.high_part(tile), low_size = rung + 1 - __popc(high);
      Real* target = level_ + place(to + start[high]);
      each_chunk(low_size, tile - high * lattice_.tiles,
                 [&](auto slots) { raise_slots(slots, low_size, rung, high, from, target, like); });
    }
    team.sync();
  }

  // U(v) = sum over the subsets of a level that lack v.
  __device__ void unused(BlockTeam team, int level, Real* sums) {
    Real low_sums[kMaxLow], high_sum = zero();  // of high symbol `lane`
    for (Real& sum : low_sums) sum = zero();
    const int from = place_of(level);
    const int* start = lattice_.starts(level);
    each_run(level, [&](auto slots, int low_size, int begin, int end) {
      Real sum[slots.kCount];
      for (Real& x : sum) x = zero();
      for (int i = begin; i < end; ++i) {
        const int high = lattice_.by_size()[i];
        const Real* run = level_ + place(from + start[high]);
        Real total = zero();
        slots.each([&](int slot, int low) {
          const Real x = slots.holds(slot) ? run[low] : zero();
          sum[slot] += x;
          total += x;
        });
        if (lattice_.high() == 0) continue;
        total = warp_sum(total);
        if (!(high >> lane_ & 1)) high_sum += total;
      }
      const uint16_t* above = lattice_.above(low_size);
      each_low_symbol([&](int v) {
        slots.each([&](int slot, int low) {
          if (above[low] != Lattice::kNone) low_sums[v] += sum[slot];
        });
        above += slots.count;
      });
    });
    add_up(team, low_sums, high_sum, sums);
  }

  // An adjoint that is zero is not stored.
  __device__ void clear_adjoint(BlockTeam, int level) { has_adjoint_ &= ~(1u << level); }

  __device__ void unused_adjoint(BlockTeam team, int level, const Real* d_sums) {
    const int* start = lattice_.starts(level);
    Real* adjoint = adjoint_ + lattice_.begin()[level];
    const bool adds = has_adjoint_ >> level & 1;
    each_run(level, [&](auto slots, int low_size, int begin, int end) {
      Real low_sum[slots.kCount];
      for (Real& sum : low_sum) sum = zero();
      const uint16_t* above = lattice_.above(low_size);
      each_low_symbol([&](int v) {
        slots.each([&](int slot, int low) {
          if (above[low] != Lattice::kNone) low_sum[slot] += d_sums[v];
        });
        above += slots.count;
      });
      for (int i = begin; i < end; ++i) {
        const int high = lattice_.by_size()[i];
        Real high_sum = zero();
        for (int bit = 0; bit < lattice_.high(); ++bit) {
          if (!(high >> bit & 1)) high_sum += d_sums[lattice_.low + bit];
        }
        Real* run = adjoint + start[high];
        slots.each([&](int slot, int low) {
          if (!slots.holds(slot)) return;
          const Real sum = high_sum + low_sum[slot];
          run[low] = adds ? run[low] + sum : sum;
        });
      }
    });
    has_adjoint_ |= 1u << level;
    team.sync();
  }

  // The adjoint of raise: hands the adjoint of level rung + 1 down, and writes that of like.
  __device__ void lower(BlockTeam team, int rung, const Real* like, Real* d_like) {
    Real low_flows[kMaxLow], high_flow = zero();  // to high symbol `lane`
    for (Real& flow : low_flows) flow = zero();
    if (has_adjoint_ >> (rung + 1) & 1) {
      for (int tile = warp_; tile < lattice_.high_parts() * lattice_.tiles; tile += warps_) {
        const int high = lattice_.high_part(tile), low_size = rung - __popc(high);
        each_chunk(low_size, tile - high * lattice_.tiles, [&](auto slots) {
          lower_slots(slots, low_size, rung, high, like, low_flows, high_flow);
        });
      }
      has_adjoint_ |= 1u << rung;
    }
    add_up(team, low_flows, high_flow, d_like);
  }

 private:
  static constexpr int kMaxLow = Lattice::kMaxLow;
  // Subsets that a thread works on at once. The arithmetic of Wide is long enough for one.
  static constexpr int kMostSlots = Number<Real>::kWide ? 1 : 4;

  // Low parts of one size, 32 apart. Where there are no more, the last one stands in; what is
  // computed for it again is not kept.
  template <int kSlots>
  struct Slots {
    static constexpr int kCount = kSlots;
    int count, first;
    int low[kSlots];

    __device__ Slots(int first, int count) : count(count), first(first) {
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) low[slot] = min(first + slot * kWarp, count - 1);
    }

    __device__ bool holds(int slot) const { return first + slot * kWarp < count; }

    template <class Body>
    __device__ void each(Body body) const {
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) body(slot, low[slot]);
    }
  };

  __device__ static Real zero() { return Number<Real>::from(0.0); }

  // Where in the ring: an offset is less than twice its size.
  __device__ int place(int offset) const {
    return offset < capacity_ ? offset : offset - capacity_;
  }

  // Of its first number; the others are found from the place of their high part.
  __device__ int place_of(int level) const {
    return place(begin_ + lattice_.begin()[level] - lattice_.begin()[lowest_]);
  }

  // Gives up the lowest levels until level rung + 1 fits above level rung, which stays. Returns
  // whether it does.
  __device__ bool make_room(int rung) {
    const int end = lattice_.begin()[rung + 2];
    while (end - lattice_.begin()[lowest_] > capacity_ && lowest_ < rung) {
      begin_ = place(begin_ + lattice_.count(lowest_++));
    }
    return end - lattice_.begin()[lowest_] <= capacity_;
  }

  // Calls body(slots) for the low parts of a size that are in one tile.
  template <class Body>
  __device__ void each_chunk(int low_size, int tile, Body body) const {
    if (low_size < 0 || low_size > lattice_.low) return;
    const int count = lattice_.low_count(low_size);
    const int chunk = min(kMostSlots, 8 / lattice_.tiles) * kWarp;
    for (int first = tile * chunk; first < count; first += lattice_.tiles * chunk) {
      const int left = min(chunk, count - first);
      if (kMostSlots == 1 || left <= kWarp) {
        body(Slots<1>(first + lane_, count));
      } else if (left <= kMostSlots / 2 * kWarp) {
        body(Slots<(kMostSlots + 1) / 2>(first + lane_, count));
      } else {
        body(Slots<kMostSlots>(first + lane_, count));
      }
    }
  }

  // Calls body(slots, size of the low parts, begin, end) for this warp's share of the high parts
  // sorted by size, those of one size at a time.
  template <class Body>
  __device__ void each_run(int level, Body body) const {
    const int parts = lattice_.high_parts(), tiles = parts * lattice_.tiles;
    const int last = tiles * (warp_ + 1) / warps_;
    for (int tile = tiles * warp_ / warps_; tile < last;) {
      const int offset = tile & ~(parts - 1), begin = tile - offset;
      const int size = __popc(lattice_.by_size()[begin]);
      const int end = min(last - offset, lattice_.high_begin()[size + 1]);
      each_chunk(level - size, offset >> lattice_.high(),
                 [&](auto slots) { body(slots, level - size, begin, end); });
      tile = offset + end;
    }
  }

  // Unrolled, so that what belongs to a symbol can stay in registers.
  template <class Body>
  __device__ void each_low_symbol(Body body) const {
#pragma unroll
    for (int v = 0; v < kMaxLow; ++v) {
      if (v < lattice_.low) body(v);
    }
  }

  template <class SlotsT>
  __device__ void raise_slots(SlotsT slots, int low_size, int rung, int high, int from,
                              Real* target, const Real* like) {
    const int* start = lattice_.starts(rung);
    Real sum[SlotsT::kCount];
    for (Real& x : sum) x = zero();
    for (uint32_t rest = high; rest != 0; rest &= rest - 1) {
      const int bit = __ffs(rest) - 1;
      const Real* run = level_ + place(from + start[high & ~(1 << bit)]);
      const Real factor = like[lattice_.low + bit];
      slots.each([&](int slot, int low) { sum[slot] += run[low] * factor; });
    }
    const Real* run = level_ + place(from + start[high]);
    const uint16_t* below = lattice_.below(low_size);
    for (int i = 0; i < low_size; ++i, below += slots.count) {
      slots.each([&](int slot, int low) {
        const unsigned step = below[low];
        sum[slot] += run[step / 16] * like[step % 16];
      });
    }
    slots.each([&](int slot, int low) {
      if (slots.holds(slot)) target[low] = sum[slot];
    });
  }

  template <class SlotsT>
  __device__ void lower_slots(SlotsT slots, int low_size, int rung, int high, const Real* like,
                              Real (&low_flows)[kMaxLow], Real& high_flow) {
    const int* start = lattice_.starts(rung + 1);
    const int here = lattice_.begin()[rung] + lattice_.starts(rung)[high];
    const Real* d_above = adjoint_ + lattice_.begin()[rung + 1];
    const bool adds = has_adjoint_ >> rung & 1;
    Real x[SlotsT::kCount], sum[SlotsT::kCount];
    slots.each([&](int slot, int low) {
      x[slot] = slots.holds(slot) ? level_[here + low] : zero();
      sum[slot] = adds ? adjoint_[here + low] : zero();
    });
    for (uint32_t rest = ~high & (lattice_.high_parts() - 1); rest != 0; rest &= rest - 1) {
      const int bit = __ffs(rest) - 1;
      const Real* run = d_above + start[high | 1 << bit];
      const Real factor = like[lattice_.low + bit];
      Real flow = zero();
      slots.each([&](int slot, int low) {
        const Real d = run[low];
        sum[slot] += d * factor;
        flow += d * x[slot];
      });
      flow = warp_sum(flow);
      if (lane_ == bit) high_flow += flow;
    }
    const Real* run = d_above + start[high];
    const uint16_t* above = lattice_.above(low_size);
    each_low_symbol([&](int v) {
      const Real factor = like[v];
      slots.each([&](int slot, int low) {
        const unsigned more = above[low];
        if (more == Lattice::kNone) return;
        const Real d = run[more];
        sum[slot] += d * factor;
        low_flows[v] += d * x[slot];
      });
      above += slots.count;
    });
    slots.each([&](int slot, int low) {
      if (slots.holds(slot)) adjoint_[here + low] = sum[slot];
    });
  }

  // Adds what the lanes have for low symbols and what the warps have for all, in a fixed order.
  __device__ void add_up(BlockTeam team, const Real (&low)[kMaxLow], Real high, Real* sums) const {
    Real* partial = partial_ + warp_ * lattice_.symbols;
    each_low_symbol([&](int v) {
      const Real sum = warp_sum(low[v]);
      if (lane_ == v) partial[v] = sum;
    });
    if (lane_ < lattice_.high()) partial[lattice_.low + lane_] = high;
    team.sync();
    team.each(lattice_.symbols, [&](int v) {
      Real sum = zero();
      for (int i = 0; i < warps_; ++i) sum += partial_[i * lattice_.symbols + v];
      sums[v] = sum;
    });
  }

  Lattice lattice_;
  int capacity_;
  Real *level_, *adjoint_, *partial_;
  int lane_, warp_, warps_;
  int begin_ = 0;             // place of the lowest level
  int lowest_ = 0;            // that is there
  uint32_t has_adjoint_ = 0;  // by level
};

}  // namespace bwt
