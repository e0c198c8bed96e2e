// The selective scan (arguments.h) for one instruction-set level. Included once per level by
// simd/foreach_level.h, as is everything that it includes.
//
// Both passes have scratch_bytes(arguments): every thread needs scratch memory of its own, of that
// many bytes and of any alignment and content. Then
//   void forward_entries(arguments, int64_t begin, int64_t end, void* scratch);
//   void backward_pieces(arguments, int64_t begin, int64_t end, int64_t pieces, void* scratch);
// take entries of the batch, or pieces of it, of which every model has `pieces`. An entry is always
// computed in the same way, so results do not depend on the number of threads, nor those of a model
// on the others.
// clang-format off: each file uses those above it
#include "cpu/simd/vector.h"
#include "cpu/selective_scan/common_simd.h"
#include "cpu/selective_scan/forward_simd.h"
#include "cpu/selective_scan/backward_simd.h"
// clang-format on
