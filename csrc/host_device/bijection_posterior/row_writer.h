// What a forward pass does with the rows that it is given.
#pragma once

#include <cmath>
#include <cstdint>

#include "host_device/bijection_posterior/faults.h"
#include "host_device/bijection_posterior/ladder.h"
#include "host_device/macros.h"

namespace bwt {

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
  BWT_HD void rung_leaves(LadderT&, int) {}

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

}  // namespace bwt
