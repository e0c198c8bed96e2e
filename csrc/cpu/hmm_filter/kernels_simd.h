// Hidden Markov models (arguments.h) for one instruction-set level. Included once per level by
// simd/foreach_level.h, as is everything that it includes.
//
// Up to kLaneStates states, a block is as many sequences as a vector has lanes and every number of
// a sequence lies in its lane (few_states/); beyond, vectors hold states (many_states/).
// clang-format off: each file uses those above it
#include "cpu/simd/vector.h"
#include "cpu/hmm_filter/common_simd.h"
#include "cpu/hmm_filter/few_states/block_simd.h"
#include "cpu/hmm_filter/few_states/forward_simd.h"
#include "cpu/hmm_filter/few_states/backward_simd.h"
#include "cpu/hmm_filter/many_states/products_simd.h"
#include "cpu/hmm_filter/many_states/backward_simd.h"
// clang-format on

namespace bwt {
namespace BWT_SIMD {
namespace {

// Calls run.template operator()<S>() for the S of the model, 1 to kLaneStates.
template <int kStates = 1, class Run>
void with_states(int64_t states, Run run) {
  if constexpr (kStates < kLaneStates) {
    if (states > kStates) return with_states<kStates + 1>(states, run);
  }
  run.template operator()<kStates>();
}

template <class T>
int64_t block_size(const HmmModel<T>& model) {
  return model.states <= kLaneStates ? kLanes<T> : group_size(model);
}

template <class T>
int64_t forward_scratch(const HmmForward<T>& a) {
  Arena arena(nullptr);
  if (a.model.states <= kLaneStates) {
    LaneForwardScratch<T>(a.model, arena);
  } else {
    GroupForwardScratch<T>(a.model, arena);
  }
  return arena.bytes();
}

template <class T>
void forward(const HmmForward<T>& a, int64_t begin, int64_t end, void* memory) {
  if (a.model.states > kLaneStates) return forward_groups(a, begin, end, memory);
  with_states(a.model.states,
              [&]<int kStates>() { forward_blocks<T, kStates>(a, begin, end, memory); });
}

template <class T>
int64_t backward_scratch(const HmmBackward<T>& a) {
  Arena arena(nullptr);
  const bool smooth = a.smoothed != nullptr;
  if (a.model.states <= kLaneStates) {
    LaneBackwardScratch<T>(a.model, smooth, arena);
  } else {
    GroupBackwardScratch<T>(a.model, smooth, arena);
  }
  return arena.bytes();
}

// Where piece number `piece` of `pieces` begins.
inline int64_t piece_begin(int64_t blocks, int64_t piece, int64_t pieces) {
  return blocks * piece / pieces;
}

template <class T, int kStates>
void backward_lanes(const HmmBackward<T>& a, int64_t begin, int64_t end, int64_t pieces,
                    const HmmSharedGradients* shared, void* memory) {
  const HmmModel<T>& m = a.model;
  Arena arena(memory);
  LaneBackwardScratch<T> scratch(m, a.smoothed != nullptr, arena);
  scratch.parameters.load_shared(m);
  if (!a.smoothed && !m.own_emission) clear(scratch.grad_table, table_size(m));
  const int64_t blocks = (m.batch + kLanes<T> - 1) / kLanes<T>;
  for (int64_t piece = begin; piece < end; ++piece) {
    const int64_t first = piece_begin(blocks, piece, pieces);
    const int64_t last = piece_begin(blocks, piece + 1, pieces);
    if (a.smoothed) {
      backward_piece<T, kStates, true>(a, first, last, {}, scratch);
    } else {
      backward_piece<T, kStates, false>(a, first, last, shared[piece], scratch);
    }
  }
}

template <class T>
void backward_groups(const HmmBackward<T>& a, int64_t begin, int64_t end, int64_t pieces,
                     const HmmSharedGradients* shared, void* memory) {
  const HmmModel<T>& m = a.model;
  Arena arena(memory);
  GroupBackwardScratch<T> scratch(m, a.smoothed != nullptr, arena);
  scratch.transition.load_shared(m);
  scratch.tables.load_shared(m);
  scratch.care = shared_care(m);
  if (!a.smoothed && !m.own_emission) clear(scratch.grad_tables, table_size(m));
  if (!a.smoothed && !m.own_transition) clear(scratch.grad_transition, m.states * scratch.stride);
  const int64_t groups = (m.batch + scratch.group - 1) / scratch.group;
  for (int64_t piece = begin; piece < end; ++piece) {
    const int64_t first = piece_begin(groups, piece, pieces);
    const int64_t last = piece_begin(groups, piece + 1, pieces);
    if (a.smoothed) {
      backward_piece<T, true>(a, first, last, {}, scratch);
    } else {
      backward_piece<T, false>(a, first, last, shared[piece], scratch);
    }
  }
}

template <class T>
void backward(const HmmBackward<T>& a, int64_t begin, int64_t end, int64_t pieces,
              const HmmSharedGradients* shared, void* memory) {
  if (a.model.states > kLaneStates) return backward_groups(a, begin, end, pieces, shared, memory);
  with_states(a.model.states, [&]<int kStates>() {
    backward_lanes<T, kStates>(a, begin, end, pieces, shared, memory);
  });
}

}  // namespace

int64_t hmm_block_f32(const HmmModel<float>& model) { return block_size(model); }
int64_t hmm_block_f64(const HmmModel<double>& model) { return block_size(model); }

int64_t hmm_forward_scratch_f32(const HmmForward<float>& a) { return forward_scratch(a); }
int64_t hmm_forward_scratch_f64(const HmmForward<double>& a) { return forward_scratch(a); }

void hmm_forward_f32(const HmmForward<float>& a, int64_t begin, int64_t end, void* scratch) {
  forward(a, begin, end, scratch);
}
void hmm_forward_f64(const HmmForward<double>& a, int64_t begin, int64_t end, void* scratch) {
  forward(a, begin, end, scratch);
}

int64_t hmm_backward_scratch_f32(const HmmBackward<float>& a) { return backward_scratch(a); }
int64_t hmm_backward_scratch_f64(const HmmBackward<double>& a) { return backward_scratch(a); }

void hmm_backward_f32(const HmmBackward<float>& a, int64_t begin, int64_t end, int64_t pieces,
                      const HmmSharedGradients* shared, void* scratch) {
  backward(a, begin, end, pieces, shared, scratch);
}
void hmm_backward_f64(const HmmBackward<double>& a, int64_t begin, int64_t end, int64_t pieces,
                      const HmmSharedGradients* shared, void* scratch) {
  backward(a, begin, end, pieces, shared, scratch);
}

}  // namespace BWT_SIMD
}  // namespace bwt
