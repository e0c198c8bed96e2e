// What can be wrong with the observations of a sequence, as one number.
#pragma once

#include <cstdint>

#include "host_device/macros.h"

namespace bwt {

enum class Fault : int64_t { kKeyRange = 0, kValueRange = 1, kContradiction = 2 };

// More than any fault: the smallest fault of a batch, which is its first, is the one reported. One
// byte repeated, so that a device can set it with memset.
constexpr int64_t kNoFault = 0x7f7f7f7f7f7f7f7f;

BWT_HD inline int64_t encode_fault(int64_t row, Fault fault) {
  return row * 4 + static_cast<int64_t>(fault);
}

}  // namespace bwt
