// The selective scan (arguments.h) for one instruction-set level. Included once per level by
// simd/foreach_level.h, as is everything that it includes.
// clang-format off: each file uses those above it
#include "cpu/simd/vector.h"
#include "cpu/selective_scan/common_simd.h"
#include "cpu/selective_scan/forward_simd.h"
#include "cpu/selective_scan/backward_simd.h"
// clang-format on
