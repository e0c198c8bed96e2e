// How work is shared out among threads.
#pragma once

#include <cstdint>

namespace bwt {

constexpr int64_t kGrain = 16384;  // elements of a pointwise op that are worth a thread

// Outputs larger than this leave little of themselves in the last cache of most machines: writing
// past it saves reading their lines first.
constexpr int64_t kStreamedBytes = 16 << 20;

// Where gradients are summed over a batch: in at most this many pieces, whatever the number of
// threads, so that the sums do not depend on it; in fewer if their sums would take too much memory.
constexpr int64_t kGradientPieces = 64;
constexpr int64_t kGradientBytes = 32 << 20;

}  // namespace bwt
