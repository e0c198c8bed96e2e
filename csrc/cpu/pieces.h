// How a batch is shared out where gradients are summed over it.
#pragma once

#include <cstdint>

namespace bwt {

// In at most this many pieces, whatever the number of threads, so that the sums do not depend on
// it; in fewer if their sums would take too much memory.
constexpr int64_t kGradientPieces = 64;
constexpr int64_t kGradientBytes = 32 << 20;

}  // namespace bwt
