// Hidden Markov models (arguments.h) for one instruction-set level. Included once per level by
// simd/foreach_level.h, as is everything that it includes.
//
// Sequences are computed in blocks. Up to kFewStates states, a block is as many sequences as a
// vector has lanes, and every number of a sequence lies in its lane (few_states/). Beyond, vectors
// hold states, and a block is as many sequences as share a register tile (many_states/). A block is
// always computed in the same way, so results do not depend on how threads share the work.
// clang-format off: each file uses those above it
#include "cpu/simd/vector.h"
#include "cpu/hmm_filter/common_simd.h"
#include "cpu/hmm_filter/few_states/block_simd.h"
#include "cpu/hmm_filter/few_states/forward_simd.h"
#include "cpu/hmm_filter/few_states/backward_simd.h"
#include "cpu/hmm_filter/many_states/products_simd.h"
#include "cpu/hmm_filter/many_states/block_simd.h"
#include "cpu/hmm_filter/many_states/forward_simd.h"
#include "cpu/hmm_filter/many_states/backward_simd.h"
// clang-format on

namespace bwt {
namespace BWT_SIMD {
namespace {

constexpr int kFewStates = 8;

// Calls run.template operator()<S>() for the S of the model, 1 to kFewStates.
template <int kStates = 1, class Run>
void with_states(int64_t states, Run run) {
  if constexpr (kStates < kFewStates) {
    if (states > kStates) return with_states<kStates + 1>(states, run);
  }
  run.template operator()<kStates>();
}

// Sequences that are computed together.
template <class T>
int64_t block_size(const HmmModel<T>& model) {
  return model.states <= kFewStates ? kLanes<T> : many_states::block_size(model);
}

// Every thread needs scratch memory of its own for a pass: of this size, and of any alignment and
// content.
template <class T>
int64_t scratch_bytes(const HmmForward<T>& a) {
  Arena arena(nullptr);
  if (a.model.states <= kFewStates) {
    few_states::ForwardScratch<T>(a.model, arena);
  } else {
    many_states::ForwardScratch<T>(a.model, arena);
  }
  return arena.bytes();
}

template <class T>
int64_t scratch_bytes(const HmmBackward<T>& a) {
  Arena arena(nullptr);
  const bool smooth = a.smoothed != nullptr;
  if (a.model.states <= kFewStates) {
    few_states::BackwardScratch<T>(a.model, smooth, arena);
  } else {
    many_states::BackwardScratch<T>(a.model, smooth, arena);
  }
  return arena.bytes();
}

template <class T>
void forward_blocks(const HmmForward<T>& a, int64_t begin, int64_t end, void* memory) {
  if (a.model.states > kFewStates) return many_states::forward_blocks(a, begin, end, memory);
  with_states(a.model.states, [&]<int kStates>() {
    few_states::forward_blocks<T, kStates>(a, begin, end, memory);
  });
}

// The batch is cut into `pieces`; this computes those from begin to end. Each piece has its own
// sums of shared gradients.
template <class T>
void backward_pieces(const HmmBackward<T>& a, int64_t begin, int64_t end, int64_t pieces,
                     const HmmSharedGradients* shared, void* memory) {
  if (a.model.states > kFewStates) {
    return many_states::backward_pieces(a, begin, end, pieces, shared, memory);
  }
  with_states(a.model.states, [&]<int kStates>() {
    few_states::backward_pieces<T, kStates>(a, begin, end, pieces, shared, memory);
  });
}

}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt
