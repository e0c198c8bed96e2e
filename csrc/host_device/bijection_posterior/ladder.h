// Exact posterior over bijections, given noisy observations of some of their values.
//
// A bijection pi of V symbols is drawn uniformly; step t shows a key x_t and a value y_t drawn from
// channel[pi(x_t), .]. Let d keys have been seen, key x with likelihood L_x(v) = product over its
// observations y of channel[v, y]. Unseen keys are exchangeable and integrate out, so all that is
// needed is, for every set S of d values, the total weight of giving the seen keys exactly S:
//
//   F_0[{}] = 1,   F_i[S] = sum_{v in S} F_{i-1}[S - v] * L_{key i}(v),   |S| = i.
//
// With the asked key left out of the d keys, its posterior row is
//
//   p(pi(x) = v) ~ L_x(v) * U(v),   U(v) = sum over S without v of F_d[S].
//
// The levels F_0..F_d form a ladder, one rung per seen key. The order of the keys on it is free, so
// a key that comes again is taken out, the rungs above it are built again without it, and it goes
// back on top with its new likelihood: one forward pass yields a whole row and nothing is ever
// divided or subtracted. Keys that are never repeated cost one rung each, sum_i i * C(V, i)
// multiply-adds for the whole sequence (V * 2^(V-1) at most).
//
// Gradients come from the same walk. Each rung carries the adjoint of its level; a row adds to the
// top rung's, and a rung that leaves the ladder hands its adjoint to the rung below and to the
// likelihood of its key, so no tape is kept.
#pragma once

#include <cmath>
#include <cstdint>

#include "host_device/bijection_posterior/faults.h"
#include "host_device/macros.h"
#include "host_device/wide.h"

namespace bwt {

// All levels of a sequence in flight are 2^V numbers, 128 MB for V = 24: so many on a CPU, and
// twice that for gradients. Forward, a GPU makes do with little more than C(V, V / 2), 22 MB.
constexpr int kMaxNoisySymbols = 24;
constexpr int kMaxSymbols = 4096;

// Working memory of one sequence (shared memory on a GPU). V entries each unless noted.
template <class Real>
struct LadderScratch {
  Real* like;      // [V, V] likelihood of key x by value, moved so that the largest is about 1
  Real* unused;    // U(v)
  Real* d_unused;  // adjoint of U; only for gradients
  Real* d_like;    // adjoint of a likelihood; only for gradients
  int64_t* moved;  // by how much like was moved
  double* posterior;
  double* terms;
  int32_t* count;    // [V, V] how often key x showed a value; only for gradients
  int32_t* order;    // key on each rung
  int32_t* rung_of;  // rung of each key, -1 for unseen keys
  int32_t* next_use;

  static constexpr int kRealRows = 3;  // of V, beside like
  static constexpr int kDoubleRows = 3;
  static constexpr int kIntRows = 3;  // beside count

  BWT_HD static size_t bytes(int symbols) {
    const size_t v = symbols;
    return v * ((v + kRealRows) * sizeof(Real) + kDoubleRows * sizeof(double) +
                (v + kIntRows) * sizeof(int32_t));
  }

  BWT_HD LadderScratch(void* memory, int symbols) {
    like = static_cast<Real*>(memory);
    unused = like + symbols * symbols;
    d_unused = unused + symbols;
    d_like = d_unused + symbols;
    moved = reinterpret_cast<int64_t*>(d_like + symbols);
    posterior = reinterpret_cast<double*>(moved + symbols);
    terms = posterior + symbols;
    count = reinterpret_cast<int32_t*>(terms + symbols);
    order = count + symbols * symbols;
    rung_of = order + symbols;
    next_use = rung_of + symbols;
  }
};

// A product of likelihoods is at worst (smallest / largest positive entry)^observations, and a sum
// has at most V! < 2^80 terms. Within 2^-900 plain doubles hold everything; beyond, Wide does.
struct ChannelRange {
  double smallest = INFINITY, largest = 0.0;  // of the positive entries

  BWT_HD void include(double probability) {
    if (probability > 0.0) smallest = fmin(smallest, probability);
    largest = fmax(largest, probability);
  }

  BWT_HD bool needs_wide(int64_t observations) const {
    if (largest == 0.0) return false;
    return (log2(largest) - log2(smallest)) * static_cast<double>(observations) > 900.0;
  }
};

inline bool needs_wide(const double* channel, size_t count, int64_t observations) {
  ChannelRange range;
  for (size_t i = 0; i < count; ++i) range.include(channel[i]);
  return range.needs_wide(observations);
}

// One row as it is known just before its observation is taken in.
struct Row {
  int64_t step;
  int key;
  int value;
  double entropy;       // bits
  double log_evidence;  // including this observation; -inf if it is impossible
};

// Walks one sequence. Team runs loops (serially, or by the threads of a block); Table holds the
// levels; Sequence gives key(t) and value(t); Sink receives rows and, for gradients, leaving rungs.
template <class Real, class Team, class Table, class Sequence>
class Ladder {
 public:
  BWT_HD Ladder(Team team, Table table, LadderScratch<Real> scratch, Sequence sequence,
                const double* channel, int symbols)
      : team(team),
        table(table),
        scratch(scratch),
        sequence(sequence),
        channel(channel),
        symbols(symbols) {}

  // Returns kNoFault or the fault with its step; rows from a contradiction on are not delivered.
  template <class Sink>
  BWT_HD int64_t walk(int64_t length, Sink& sink) {
    reset();
    double log_evidence = 0.0;
    for (int64_t t = 0; t < length; ++t) {
      const int key = sequence.key(t), value = sequence.value(t);
      if (key < 0 || key >= symbols) return encode_fault(t, Fault::kKeyRange);
      withdraw(key, sink);
      build(t, length, sink);
      Row row = ask(t, key, value);
      row.log_evidence = log_evidence += row.log_evidence;
      sink.row(*this, row);
      if (value < 0 || value >= symbols) return encode_fault(t, Fault::kValueRange);
      if (row.log_evidence == -INFINITY) return encode_fault(t, Fault::kContradiction);
      observe(key, value);
    }
    descend(0, sink);
    return kNoFault;
  }

  // An entry of the asked key's row before it is normalised, and what they sum to.
  BWT_HD Real weight(int key, int v) const {
    return scratch.like[key * symbols + v] * scratch.unused[v];
  }

  BWT_HD Real row_total(int key) const {
    Real total = Number<Real>::from(0.0);
    for (int v = 0; v < symbols; ++v) total += weight(key, v);
    return total;
  }

  // What they sum to once the value has been observed.
  BWT_HD Real observed_total(int key, int value) const {
    Real total = Number<Real>::from(0.0);
    for (int v = 0; v < symbols; ++v) total += weight(key, v) * probability(v, value);
    return total;
  }

  BWT_HD Real probability(int v, int value) const {
    return Number<Real>::from(channel[v * symbols + value]);
  }

  Team team;
  Table table;
  LadderScratch<Real> scratch;
  Sequence sequence;
  const double* channel;  // [V, V] p(observed | true)
  int symbols;
  int depth = 0;  // keys in the order
  int built = 0;  // how many of them, from the lowest on, have their level in the table

 private:
  BWT_HD void reset() {
    depth = built = 0;
    team.each(symbols * symbols, [&](int i) {
      scratch.like[i] = Number<Real>::from(1.0);
      scratch.count[i] = 0;
    });
    team.each(symbols, [&](int v) {
      scratch.rung_of[v] = -1;
      scratch.moved[v] = 0;
    });
    table.reset(team);
  }

  template <class Sink>
  BWT_HD void descend(int lowest, Sink& sink) {
    for (; built > lowest; --built) sink.rung_leaves(*this, built - 1);
  }

  // Takes a key out of the order; the levels above it are no longer built.
  template <class Sink>
  BWT_HD void withdraw(int key, Sink& sink) {
    const int rung = scratch.rung_of[key];
    if (rung < 0) return;
    descend(rung, sink);
    built = table.cut(team, built);
    team.sync();
    team.one([&] {
      for (int i = rung; i + 1 < depth; ++i) scratch.order[i] = scratch.order[i + 1];
    });
    --depth;
  }

  // Builds the missing levels. Their keys are put in the order of their next use, soonest on top,
  // because taking out a high rung costs least.
  template <class Sink>
  BWT_HD void build(int64_t t, int64_t length, Sink& sink) {
    if (depth - built > 1) sort_unbuilt(t, length);
    for (; built < depth; ++built) {
      const int key = scratch.order[built];
      table.raise(team, built, scratch.like + key * symbols);
      sink.rung_joins(*this, built);
      team.one([&] { scratch.rung_of[key] = built; });
    }
  }

  BWT_HD void sort_unbuilt(int64_t t, int64_t length) {
    team.each(depth - built, [&](int i) {
      const int key = scratch.order[built + i];
      int64_t next = t + 1;
      while (next < length && sequence.key(next) != key) ++next;
      scratch.next_use[key] = static_cast<int32_t>(next);
    });
    team.one([&] {
      for (int i = built + 1; i < depth; ++i) {
        const int key = scratch.order[i];
        int j = i;
        for (; j > built && scratch.next_use[scratch.order[j - 1]] < scratch.next_use[key]; --j) {
          scratch.order[j] = scratch.order[j - 1];
        }
        scratch.order[j] = key;
      }
    });
  }

  // The row, with the logarithm of p(value | everything before) for its evidence.
  BWT_HD Row ask(int64_t t, int key, int value) {
    table.unused(team, depth, scratch.unused);
    const Real total = row_total(key);
    team.each(symbols, [&](int v) {
      const double p = Number<Real>::to_double(weight(key, v) / total);
      scratch.posterior[v] = p;
      scratch.terms[v] = p > 0.0 ? -p * log2(p) : 0.0;
    });
    Row row{t, key, value, 0.0, -INFINITY};
    for (int v = 0; v < symbols; ++v) row.entropy += scratch.terms[v];
    if (value < 0 || value >= symbols) return row;
    // Not from the posterior: the only value that can show this one may be too unlikely for a
    // double.
    const Real observed = observed_total(key, value);
    if (!Number<Real>::is_zero(observed)) row.log_evidence = Number<Real>::log(observed / total);
    return row;
  }

  // Products, not sums of logarithms: the error of a logarithm grows with its size.
  BWT_HD void observe(int key, int value) {
    Real* like = scratch.like + key * symbols;
    team.each(symbols, [&](int v) { like[v] = like[v] * probability(v, value); });
    int64_t largest = INT64_MIN;
    for (int v = 0; v < symbols; ++v) {
      if (Number<Real>::is_zero(like[v])) continue;
      const int64_t magnitude = Number<Real>::magnitude(like[v]);
      largest = magnitude > largest ? magnitude : largest;
    }
    team.sync();  // all have read what is now moved
    team.each(symbols, [&](int v) { like[v] = Number<Real>::shifted(like[v], -largest); });
    team.one([&] {
      scratch.moved[key] -= largest;
      ++scratch.count[key * symbols + value];
      scratch.order[depth] = key;
      scratch.rung_of[key] = depth;
    });
    ++depth;
  }
};

}  // namespace bwt
