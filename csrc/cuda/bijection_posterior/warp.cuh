// What both kernel files share. No torch in any of them, so that the tests can compile them to PTX.
#pragma once

#include <cstdint>

namespace bwt {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ inline void report_fault(int64_t* first_fault, int64_t sequence, int64_t length,
                                    int64_t fault) {
  atomicMin(reinterpret_cast<long long*>(first_fault),
            static_cast<long long>(sequence * length * 4 + fault));
}

}  // namespace bwt
