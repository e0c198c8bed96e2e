// Attention (arguments.h) for one instruction-set level. Included once per level by
// simd/foreach_level.h, as is everything that it includes.
//
// Both passes have
//   int64_t scratch_bytes(arguments);
//   void compute_pairs(arguments, int64_t begin, int64_t end, void* scratch);
// for the pairs (batch, head) numbered batch * heads + head from begin to end. Every thread needs
// scratch memory of its own, of that many bytes and of any alignment and content. A pair is always
// computed in the same way, so results do not depend on how pairs are shared by threads.
// clang-format off: each file uses those above it
#include "cpu/simd/vector.h"
#include "cpu/attention/products_simd.h"
#include "cpu/attention/captures_simd.h"
#include "cpu/attention/forward_simd.h"
#include "cpu/attention/backward_simd.h"
// clang-format on
