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

#include "macros.h"
#include "wide.h"

namespace bwt {

// Table of 2^V numbers per sequence in flight: 128 MB for V = 24.
constexpr int kMaxNoisySymbols = 24;

enum class Fault : int64_t { kKeyRange = 0, kValueRange = 1, kContradiction = 2 };

// Faults are reduced by minimum over the batch, so that the first one is the one reported.
// A repeated byte, so that a device can set it with memset.
constexpr int64_t kNoFault = 0x7f7f7f7f7f7f7f7f;

BWT_HD inline int64_t encode_fault(int64_t row, Fault fault) {
  return row * 4 + static_cast<int64_t>(fault);
}

// Working memory of one sequence (shared memory on a GPU). V entries each unless noted.
template <class Real>
struct LadderScratch {
  Real* like;         // [V, V] likelihood of key x by value, largest entry 1
  Real* unused;       // U(v)
  Real* d_unused;     // adjoint of U; only for gradients
  Real* d_like;       // adjoint of a likelihood; only for gradients
  double* log_like;   // [V, V]
  double* log_scale;  // log of what like was divided by
  double* posterior;
  double* terms;
  int32_t* order;    // key on each rung
  int32_t* rung_of;  // rung of each key, -1 for unseen keys
  int32_t* next_use;

  static constexpr int kRealRows = 3;    // of V, beside like
  static constexpr int kDoubleRows = 3;  // of V, beside log_like
  static constexpr int kIntRows = 3;

  BWT_HD static size_t bytes(int symbols) {
    const size_t v = symbols;
    return v * ((v + kRealRows) * sizeof(Real) + (v + kDoubleRows) * sizeof(double) +
                kIntRows * sizeof(int32_t));
  }

  BWT_HD LadderScratch(void* memory, int symbols) {
    like = static_cast<Real*>(memory);
    unused = like + symbols * symbols;
    d_unused = unused + symbols;
    d_like = d_unused + symbols;
    log_like = reinterpret_cast<double*>(d_like + symbols);
    log_scale = log_like + symbols * symbols;
    posterior = log_scale + symbols;
    terms = posterior + symbols;
    order = reinterpret_cast<int32_t*>(terms + symbols);
    rung_of = order + symbols;
    next_use = rung_of + symbols;
  }
};

struct Channel {
  const double* probability;  // [V, V] p(observed | true)
  const double* log;          // [V, V]
};

// A product of likelihoods is at worst (smallest / largest positive entry)^observations, and a sum
// has at most V! < 2^80 terms. Within 2^-900 plain doubles hold everything; beyond, Wide does.
inline bool needs_wide(const double* probability, size_t count, int64_t observations) {
  double smallest = INFINITY, largest = 0.0;
  for (size_t i = 0; i < count; ++i) {
    if (probability[i] > 0.0) smallest = fmin(smallest, probability[i]);
    largest = fmax(largest, probability[i]);
  }
  if (largest == 0.0) return false;
  return (log2(largest) - log2(smallest)) * static_cast<double>(observations) > 900.0;
}

// One row as it is known just before its observation is taken in.
struct Row {
  int64_t step;
  int key;
  int value;
  double entropy;       // bits
  double predictive;    // p(value | everything before)
  double log_evidence;  // including this observation
};

// Walks one sequence. Team runs loops (serially, or by the threads of a block); Table holds the
// levels; Sequence gives key(t) and value(t); Sink receives rows and, for gradients, leaving rungs.
template <class Real, class Team, class Table, class Sequence>
class Ladder {
 public:
  BWT_HD Ladder(Team team, Table table, LadderScratch<Real> scratch, Sequence sequence,
                Channel channel, int symbols)
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
      withdraw(key, t, sink);
      build(t, length, sink);
      Row row = ask(t, key, value);
      if (value >= 0 && value < symbols) log_evidence += log(row.predictive);
      row.log_evidence = value >= 0 && value < symbols ? log_evidence : -INFINITY;
      sink.row(*this, row);
      if (value < 0 || value >= symbols) return encode_fault(t, Fault::kValueRange);
      if (!(row.predictive > 0.0)) return encode_fault(t, Fault::kContradiction);
      observe(key, value);
    }
    descend(0, length, sink);
    return kNoFault;
  }

  // What the row of the asked key sums to before it is normalised.
  BWT_HD Real row_total(int key) const {
    Real total = Number<Real>::from(0.0);
    for (int v = 0; v < symbols; ++v) {
      total += scratch.like[key * symbols + v] * scratch.unused[v];
    }
    return total;
  }

  Team team;
  Table table;
  LadderScratch<Real> scratch;
  Sequence sequence;
  Channel channel;
  int symbols;
  int depth = 0;  // keys in the order
  int built = 0;  // of which the lowest so many have their level in the table

 private:
  BWT_HD void reset() {
    depth = built = 0;
    team.each(symbols * symbols, [&](int i) {
      scratch.like[i] = Number<Real>::from(1.0);
      scratch.log_like[i] = 0.0;
    });
    team.each(symbols, [&](int v) {
      scratch.rung_of[v] = -1;
      scratch.log_scale[v] = 0.0;
    });
    table.reset(team);
  }

  template <class Sink>
  BWT_HD void descend(int lowest, int64_t t, Sink& sink) {
    for (; built > lowest; --built) sink.rung_leaves(*this, built - 1, t);
  }

  // Takes a key out of the order; the levels above it are no longer built.
  template <class Sink>
  BWT_HD void withdraw(int key, int64_t t, Sink& sink) {
    const int rung = scratch.rung_of[key];
    if (rung < 0) return;
    descend(rung, t, sink);
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

  BWT_HD Row ask(int64_t t, int key, int value) {
    table.unused(team, depth, scratch.unused);
    const Real* like = scratch.like + key * symbols;
    const Real total = row_total(key);
    team.each(symbols, [&](int v) {
      const double p = Number<Real>::ratio(like[v] * scratch.unused[v], total);
      scratch.posterior[v] = p;
      scratch.terms[v] = p > 0.0 ? -p * log2(p) : 0.0;
    });
    Row row{t, key, value, 0.0, 0.0, 0.0};
    const bool known = value >= 0 && value < symbols;
    for (int v = 0; v < symbols; ++v) {
      row.entropy += scratch.terms[v];
      if (known) {
        row.predictive += scratch.posterior[v] * channel.probability[v * symbols + value];
      }
    }
    return row;
  }

  BWT_HD void observe(int key, int value) {
    double* log_like = scratch.log_like + key * symbols;
    team.each(symbols, [&](int v) { log_like[v] += channel.log[v * symbols + value]; });
    double largest = -INFINITY;
    for (int v = 0; v < symbols; ++v) largest = fmax(largest, log_like[v]);
    team.each(symbols, [&](int v) {
      scratch.like[key * symbols + v] = Number<Real>::exp(log_like[v] - largest);
    });
    team.one([&] {
      scratch.log_scale[key] = largest;
      scratch.order[depth] = key;
      scratch.rung_of[key] = depth;
    });
    ++depth;
  }
};

// Receives the rows of a forward pass. Out is the type of the result.
template <class Out>
struct RowWriter {
  Out* posterior;     // [K, V]
  Out* entropy;       // [K]
  Out* log_evidence;  // [K]

  // The writer of a sequence, from that of the batch.
  BWT_HD RowWriter at(int64_t sequence, int64_t length, int symbols) const {
    const int64_t first = sequence * length;
    return {posterior + first * symbols, entropy + first, log_evidence + first};
  }

  template <class LadderT>
  BWT_HD void row(LadderT& ladder, const Row& row) {
    const int symbols = ladder.symbols;
    Out* out = posterior + row.step * symbols;
    ladder.team.each(symbols,
                     [&](int v) { out[v] = static_cast<Out>(ladder.scratch.posterior[v]); });
    ladder.team.one([&] {
      entropy[row.step] = static_cast<Out>(row.entropy);
      log_evidence[row.step] = static_cast<Out>(row.log_evidence);
    });
  }

  template <class LadderT>
  BWT_HD void rung_joins(LadderT&, int) {}

  template <class LadderT>
  BWT_HD void rung_leaves(LadderT&, int, int64_t) {}

  // A row needs its own key and the pairs before, not its own value.
  BWT_HD static int64_t rows_before(int64_t fault) {
    return (fault >> 2) + ((fault & 3) != static_cast<int64_t>(Fault::kKeyRange));
  }

  // From a fault on nothing is known: rows of zeros, evidence zero.
  template <class Team>
  BWT_HD void clear(Team team, int64_t fault, int64_t length, int symbols) {
    const int64_t step = fault >> 2;
    for (int64_t t = rows_before(fault); t < length; ++t) {
      team.each(symbols, [&](int v) { posterior[t * symbols + v] = Out(0); });
      team.one([&] { entropy[t] = Out(0); });
    }
    team.one([&] {
      for (int64_t t = step; t < length; ++t) log_evidence[t] = static_cast<Out>(-INFINITY);
    });
  }
};

// Collects the gradient of the channel during a walk over a table that holds adjoints too.
template <class Real, class In>
struct ChannelGradient {
  const In* d_posterior;           // [K, V]
  const In* d_entropy;             // [K]
  const double* d_later_evidence;  // [K] gradient of log_evidence summed over this step and later
  double* d_channel;               // [V, V]; thread v of a team owns row v

  template <class LadderT>
  BWT_HD void row(LadderT& ladder, const Row& row) {
    if (row.value < 0 || row.value >= ladder.symbols || !(row.predictive > 0.0)) return;
    const int symbols = ladder.symbols;
    auto& scratch = ladder.scratch;
    const double evidence = d_later_evidence[row.step] / row.predictive;
    ladder.team.each(symbols, [&](int v) {
      const double p = scratch.posterior[v];
      double d_p = static_cast<double>(d_posterior[row.step * symbols + v]);
      // d(-p log2 p)/dp; an impossible value stays impossible, so it carries no gradient.
      if (p > 0.0) d_p -= static_cast<double>(d_entropy[row.step]) * (log2(p) + 1.4426950408889634);
      d_p += evidence * ladder.channel.probability[v * symbols + row.value];
      d_channel[v * symbols + row.value] += evidence * p;
      scratch.terms[v] = d_p;
    });
    double mean = 0.0;
    for (int v = 0; v < symbols; ++v) mean += scratch.terms[v] * scratch.posterior[v];
    const Real* like = scratch.like + row.key * symbols;
    const Real total = ladder.row_total(row.key);
    ladder.team.each(symbols, [&](int v) {
      const Real d_weight = Number<Real>::divide(scratch.terms[v] - mean, total);
      scratch.d_unused[v] = d_weight * like[v];
      scratch.d_like[v] = d_weight * scratch.unused[v];
    });
    ladder.table.unused_adjoint(ladder.team, ladder.depth, scratch.d_unused);
    charge(ladder, row.key, row.step);
  }

  template <class LadderT>
  BWT_HD void rung_joins(LadderT& ladder, int rung) {
    ladder.table.clear_adjoint(ladder.team, rung + 1);
  }

  template <class LadderT>
  BWT_HD void rung_leaves(LadderT& ladder, int rung, int64_t t) {
    const int key = ladder.scratch.order[rung];
    ladder.table.lower(ladder.team, rung, ladder.scratch.like + key * ladder.symbols,
                       ladder.scratch.d_like);
    charge(ladder, key, t);
  }

 private:
  // Passes the adjoint of a key's likelihood on to the channel, one observation before t at a time.
  template <class LadderT>
  BWT_HD void charge(LadderT& ladder, int key, int64_t t) {
    const int symbols = ladder.symbols;
    ladder.team.each(symbols, [&](int v) {
      const Real d_like = ladder.scratch.d_like[v];
      const Real like = ladder.scratch.like[key * symbols + v];
      const double flow = Number<Real>::to_double(d_like * like);
      for (int64_t s = 0; s < t; ++s) {
        if (ladder.sequence.key(s) != key) continue;
        const int value = ladder.sequence.value(s);
        const double p = ladder.channel.probability[v * symbols + value];
        d_channel[v * symbols + value] +=
            p > 0.0 ? flow / p : Number<Real>::to_double(d_like * without(ladder, key, v, s, t));
      }
    });
  }

  // The likelihood of a key's observations before t, leaving out the one at step s.
  template <class LadderT>
  BWT_HD static Real without(LadderT& ladder, int key, int v, int64_t s, int64_t t) {
    double log_like = -ladder.scratch.log_scale[key];
    for (int64_t r = 0; r < t; ++r) {
      if (r == s || ladder.sequence.key(r) != key) continue;
      log_like += ladder.channel.log[v * ladder.symbols + ladder.sequence.value(r)];
    }
    return Number<Real>::exp(log_like);
  }
};

}  // namespace bwt
