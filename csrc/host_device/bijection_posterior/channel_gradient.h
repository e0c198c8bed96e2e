// What a backward pass does with the rows that it is given, and with the rungs that leave.
#pragma once

#include <cmath>
#include <cstdint>

#include "host_device/bijection_posterior/ladder.h"
#include "host_device/macros.h"
#include "host_device/wide.h"

namespace bwt {

// Collects the gradient of the channel during a walk over a table that holds adjoints too.
template <class Real, class In>
struct ChannelGradient {
  const In* d_posterior;           // [K, V]
  const In* d_entropy;             // [K]
  const double* d_later_evidence;  // [K] gradient of log_evidence summed over this step and later
  double* d_channel;               // [V, V]; thread v of a team owns row v

  template <class LadderT>
  BWT_HD void row(LadderT& ladder, const Row& row) {
    if (row.log_evidence == -INFINITY) return;
    const int symbols = ladder.symbols;
    auto& scratch = ladder.scratch;
    const Real total = ladder.row_total(row.key);
    const Real observed = ladder.observed_total(row.key, row.value);
    const double evidence = d_later_evidence[row.step];
    ladder.team.sync();  // all have read the terms of the entropy, which are now overwritten
    ladder.team.each(symbols, [&](int v) {
      const Real weight = ladder.weight(row.key, v);
      double d_p = static_cast<double>(d_posterior[row.step * symbols + v]);
      // d(-p log2 p)/dp; an impossible value stays impossible, so it carries no gradient.
      if (!Number<Real>::is_zero(weight)) {
        const double log_p = Number<Real>::log(weight / total);
        d_p -= static_cast<double>(d_entropy[row.step]) * 1.4426950408889634 * (log_p + 1.0);
      }
      d_channel[v * symbols + row.value] += evidence * Number<Real>::to_double(weight / observed);
      scratch.terms[v] = d_p;
    });
    double mean = evidence;
    for (int v = 0; v < symbols; ++v) mean += scratch.terms[v] * scratch.posterior[v];
    const Real* like = scratch.like + row.key * symbols;
    const Real d_observed = Number<Real>::from(evidence) / observed;
    ladder.team.each(symbols, [&](int v) {
      Real d_weight = Number<Real>::from(scratch.terms[v] - mean) / total;
      d_weight += d_observed * ladder.probability(v, row.value);
      scratch.d_unused[v] = d_weight * like[v];
      scratch.d_like[v] = d_weight * scratch.unused[v];
    });
    ladder.table.unused_adjoint(ladder.team, ladder.depth, scratch.d_unused);
    charge(ladder, row.key);
  }

  template <class LadderT>
  BWT_HD void rung_joins(LadderT& ladder, int rung) {
    ladder.table.clear_adjoint(ladder.team, rung + 1);
  }

  template <class LadderT>
  BWT_HD void rung_leaves(LadderT& ladder, int rung) {
    const int key = ladder.scratch.order[rung];
    ladder.table.lower(ladder.team, rung, ladder.scratch.like + key * ladder.symbols,
                       ladder.scratch.d_like);
    charge(ladder, key);
  }

 private:
  // Passes the adjoint of a key's likelihood on to the channel. While a key is on the ladder it is
  // not observed, so that the counts are those its likelihood was made of.
  template <class LadderT>
  BWT_HD void charge(LadderT& ladder, int key) {
    const int symbols = ladder.symbols;
    const int32_t* count = ladder.scratch.count + key * symbols;
    ladder.team.each(symbols, [&](int v) {
      const Real d_like = ladder.scratch.d_like[v];
      const Real flow = d_like * ladder.scratch.like[key * symbols + v];
      for (int value = 0; value < symbols; ++value) {
        if (count[value] == 0) continue;
        const Real p = ladder.probability(v, value);
        const Real slope =
            Number<Real>::is_zero(p) ? d_like * without(ladder, key, v, value) : flow / p;
        d_channel[v * symbols + value] += count[value] * Number<Real>::to_double(slope);
      }
    });
  }

  // The likelihood of a key's observations, leaving out one of a value that v cannot show.
  template <class LadderT>
  BWT_HD static Real without(LadderT& ladder, int key, int v, int left_out) {
    Wide product{1.0, 0};
    for (int value = 0; value < ladder.symbols; ++value) {
      const Wide p = Number<Wide>::from(ladder.channel[v * ladder.symbols + value]);
      const int32_t count = ladder.scratch.count[key * ladder.symbols + value];
      product = product * power(p, value == left_out ? count - 1 : count);
    }
    return Number<Real>::shifted_from(product, ladder.scratch.moved[key]);
  }
};

}  // namespace bwt
