// Attention (arguments.h) for one instruction-set level. Included once per level by
// simd/foreach_level.h, as is everything that it includes.
// clang-format off: each file uses those above it
#include "cpu/simd/vector.h"
#include "cpu/attention/products_simd.h"
#include "cpu/attention/forward_simd.h"
#include "cpu/attention/backward_simd.h"
// clang-format on
