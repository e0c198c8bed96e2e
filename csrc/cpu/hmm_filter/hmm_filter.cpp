// CPU implementation of bwt::hmm_filter: threads over sequences, SIMD over sequences or states.
#include <torch/csrc/stable/library.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <vector>

#include "cpu/arena.h"
#include "cpu/checks.h"
#include "cpu/hmm_filter/arguments.h"
#include "cpu/hmm_filter/exact.h"
#include "cpu/pieces.h"
#include "cpu/tensors.h"

#define BWT_SIMD_FILE "cpu/hmm_filter/kernels_simd.h"
#include "cpu/simd/foreach_level.h"

namespace bwt {
namespace {

ArgumentCheck check_inputs(const char* op, const Tensor& observations, const Tensor& initial,
                           const Tensor& transition, const Tensor& emission,
                           const std::optional<Tensor>& lengths) {
  const ArgumentCheck check(op, initial.scalar_type(), "initial");
  check.that(is_id_matrix(observations), "observations");
  check.that(initial.dim() >= 1, "initial");
  check.that(emission.dim() >= 1, "emission");
  const int64_t batch = observations.size(0), states = initial.size(initial.dim() - 1),
                symbols = emission.size(emission.dim() - 1);
  check.that(1 <= states && states <= kMaxHmmStates, "initial");
  check.that(symbols >= 1, "emission");
  check.shared_or_own("initial", initial, batch, {states});
  check.shared_or_own("transition", transition, batch, {states, states});
  check.shared_or_own("emission", emission, batch, {states, symbols});
  check.that(
      !lengths || (lengths->scalar_type() == ScalarType::Long && has_sizes(*lengths, {batch})),
      "lengths");
  return check;
}

// What every entry point begins with: checked tensors in the layout that the kernels take.
struct Inputs {
  Inputs(const char* op, const Tensor& observations, const Tensor& initial,
         const Tensor& transition, const Tensor& emission, const std::optional<Tensor>& lengths,
         double row_sum_tolerance = kHmmRowSumTolerance)
      : check(check_inputs(op, observations, initial, transition, emission, lengths)),
        observations(observations),
        initial(packed(initial)),
        transition(packed(transition)),
        emission(packed(emission)),
        lengths(packed(lengths)),
        row_sum_tolerance(row_sum_tolerance) {}

  int64_t batch() const { return observations.size(0); }
  int64_t steps() const { return observations.size(1); }
  int64_t states() const { return initial.size(initial.dim() - 1); }
  bool in_floats() const { return check.type == ScalarType::Float; }

  template <class T>
  HmmModel<T> model() const {
    return {batch(),
            steps(),
            states(),
            emission.size(emission.dim() - 1),
            {observations.data_ptr(), observations.scalar_type() == ScalarType::Long,
             observations.stride(0), observations.stride(1)},
            lengths ? data<int64_t>(*lengths) : nullptr,
            data<T>(initial),
            data<T>(transition),
            data<T>(emission),
            initial.dim() == 2,
            transition.dim() == 3,
            emission.dim() == 3,
            T(row_sum_tolerance)};
  }

  ArgumentCheck check;
  Tensor observations, initial, transition, emission;
  std::optional<Tensor> lengths;
  double row_sum_tolerance;
};

template <class T>
int64_t block_count(const HmmModel<T>& model) {
  const int64_t size = BWT_SIMD_CALL(block_size, model);
  return (model.batch + size - 1) / size;
}

// Outputs of few states that leave the cache are written with vectors of half the width. With as
// many lanes as the widest have, twice as many rows are written at a time, which took 10 to 30%
// more time for 8 MB (B=4096 T=50 S=5 in float32 and float64, an Ice Lake with 1.25 MB of L2
// cache), as much for 2 MB and 10% less for 0.5 MB. Lanes do not meet, so results are the same.
constexpr int64_t kNarrowBytes = 4 << 20;

template <class T>
Simd forward_level(const HmmModel<T>& model) {
  const int64_t bytes = 2 * model.batch * model.steps * model.states * int64_t(sizeof(T));
  const bool narrow = model.states <= baseline::kFewStates && bytes > kNarrowBytes;
  return narrow ? std::min(simd_level(), Simd::kAvx2) : simd_level();
}

template <class T>
void forward(const Inputs& inputs, const Tensor& filtered, const Tensor& predicted,
             const Tensor& log_likelihood) {
  std::vector<uint8_t> delicate(filtered.size(0));
  const HmmForward<T> arguments{inputs.model<T>(),
                                mutable_data<T>(filtered),
                                mutable_data<T>(predicted),
                                mutable_data<T>(log_likelihood),
                                delicate.data(),
                                2 * filtered.numel() * int64_t(sizeof(T)) > kStreamedBytes};
  const HmmModel<T>& m = arguments.model;
  const Simd level = forward_level(m);
  const int64_t size = BWT_SIMD_CALL_AT(level, block_size, m);
  const int64_t work = (m.steps * (m.states + 4) + m.symbols) * m.states * size;
  const int64_t grain = 1 + 32768 / (1 + work), blocks = (m.batch + size - 1) / size;
  torch::stable::parallel_for(0, blocks, grain, [&](int64_t begin, int64_t end) {
    std::vector<char> scratch(BWT_SIMD_CALL_AT(level, scratch_bytes, arguments));
    BWT_SIMD_CALL_AT(level, forward_blocks, arguments, begin, end, scratch.data());
    for (int64_t b = begin * size; b < std::min(end * size, m.batch); ++b) {
      if (delicate[b]) exact_forward(arguments, b);
    }
  });
  STD_TORCH_CHECK(std::none_of(arguments.log_likelihood, arguments.log_likelihood + m.batch,
                               [](T x) { return std::isnan(x); }),
                  "hmm_filter: lengths, observations or parameters are out of range");
}

std::tuple<Tensor, Tensor, Tensor> hmm_filter_forward(
    const Tensor& observations, const Tensor& initial, const Tensor& transition,
    const Tensor& emission, const std::optional<Tensor>& lengths, double row_sum_tolerance) {
  const Inputs inputs("hmm_filter", observations, initial, transition, emission, lengths,
                      row_sum_tolerance);
  const int64_t B = inputs.batch(), T = inputs.steps(), S = inputs.states();
  const Tensor filtered = allocate(initial, {B, T, S});
  const Tensor predicted = allocate(initial, {B, T, S});
  const Tensor log_likelihood = allocate(initial, {B});
  if (B > 0) {
    auto run = inputs.in_floats() ? forward<float> : forward<double>;
    run(inputs, filtered, predicted, log_likelihood);
  }
  return {filtered, predicted, log_likelihood};
}

// The outputs of the forward pass, and their gradients where those are known.
struct Saved {
  Saved(const Inputs& inputs, const Tensor& filtered, const Tensor& predicted,
        const Tensor& log_likelihood, const std::optional<Tensor>& grad_filtered = {},
        const std::optional<Tensor>& grad_predicted = {},
        const std::optional<Tensor>& grad_log_likelihood = {})
      : filtered(packed(filtered)),
        predicted(packed(predicted)),
        log_likelihood(packed(log_likelihood)),
        grad_filtered(packed(grad_filtered)),
        grad_predicted(packed(grad_predicted)),
        grad_log_likelihood(packed(grad_log_likelihood)) {
    const int64_t B = inputs.batch(), T = inputs.steps(), S = inputs.states();
    const ArgumentCheck& check = inputs.check;
    check.sizes("filtered", filtered, {B, T, S});
    check.sizes("predicted", predicted, {B, T, S});
    check.sizes("log_likelihood", log_likelihood, {B});
    check.sizes("grad_filtered", grad_filtered, {B, T, S});
    check.sizes("grad_predicted", grad_predicted, {B, T, S});
    check.sizes("grad_log_likelihood", grad_log_likelihood, {B});
  }

  template <class T>
  HmmBackward<T> arguments(const Inputs& inputs) const {
    HmmBackward<T> a{};
    a.model = inputs.model<T>();
    a.filtered = data<T>(filtered);
    a.predicted = data<T>(predicted);
    a.log_likelihood = data<T>(log_likelihood);
    a.grad_filtered = grad_filtered ? data<T>(*grad_filtered) : nullptr;
    a.grad_predicted = grad_predicted ? data<T>(*grad_predicted) : nullptr;
    a.grad_log_likelihood = grad_log_likelihood ? data<T>(*grad_log_likelihood) : nullptr;
    return a;
  }

  Tensor filtered, predicted, log_likelihood;
  std::optional<Tensor> grad_filtered, grad_predicted, grad_log_likelihood;
};

template <class T>
void clear_sums(const HmmModel<T>& m, const HmmSharedGradients& sums) {
  if (sums.initial) std::fill_n(sums.initial, m.states, 0.0);
  if (sums.transition) std::fill_n(sums.transition, m.states * m.states, 0.0);
  if (sums.emission) std::fill_n(sums.emission, m.states * m.symbols, 0.0);
}

// A piece in which sequences turned out to be delicate is done again without them.
template <class T>
void run_pieces(HmmBackward<T> arguments, const std::vector<HmmSharedGradients>& shared) {
  const HmmModel<T>& m = arguments.model;
  const int64_t pieces = shared.size(), size = BWT_SIMD_CALL(block_size, m);
  std::vector<uint8_t> delicate(m.batch);
  arguments.delicate = delicate.data();
  torch::stable::parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
    std::vector<char> scratch(BWT_SIMD_CALL(scratch_bytes, arguments));
    BWT_SIMD_CALL(backward_pieces, arguments, begin, end, pieces, shared.data(), scratch.data());
    for (int64_t piece = begin; piece < end; ++piece) {
      const HmmPiece blocks(m.batch, size, piece, pieces);
      const int64_t first = blocks.begin * size, last = std::min(blocks.end * size, m.batch);
      const auto marks = delicate.begin();
      if (std::find(marks + first, marks + last, 1) == marks + last) continue;
      if (!arguments.smoothed) {
        clear_sums(m, shared[piece]);
        BWT_SIMD_CALL(backward_pieces, arguments, piece, piece + 1, pieces, shared.data(),
                      scratch.data());
      }
      for (int64_t b = first; b < last; ++b) {
        if (delicate[b]) exact_backward(arguments, b, shared[piece]);
      }
    }
  });
}

struct Gradients {
  Tensor initial, transition, emission;
};

// Sums of the pieces of one shared parameter.
template <class T>
void add_pieces(const std::vector<double>& sums, int64_t stride, const Tensor& total) {
  T* to = mutable_data<T>(total);
  for (int64_t i = 0; i < stride; ++i) {
    double sum = 0;
    for (size_t at = i; at < sums.size(); at += stride) sum += sums[at];
    to[i] = saturated<T>(sum);
  }
}

template <class T>
void backward(const Inputs& inputs, const Saved& saved, const Gradients& gradients) {
  HmmBackward<T> a = saved.arguments<T>(inputs);
  const HmmModel<T>& m = a.model;
  if (m.own_initial) a.grad_initial = mutable_data<T>(gradients.initial);
  if (m.own_transition) a.grad_transition = mutable_data<T>(gradients.transition);
  if (m.own_emission) a.grad_emission = mutable_data<T>(gradients.emission);
  const int64_t sizes[] = {m.own_initial ? 0 : m.states, m.own_transition ? 0 : m.states * m.states,
                           m.own_emission ? 0 : m.states * m.symbols};
  const int64_t bytes = (sizes[0] + sizes[1] + sizes[2]) * sizeof(double);
  const int64_t fitting = std::clamp<int64_t>(kGradientBytes / (bytes + 1), 1, kGradientPieces);
  const int64_t pieces = std::min(block_count(m), fitting);
  std::vector<double> sums[3];
  for (int i = 0; i < 3; ++i) sums[i].resize(pieces * sizes[i]);
  std::vector<HmmSharedGradients> shared(pieces);
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const auto at = [&](int i) { return sizes[i] ? sums[i].data() + piece * sizes[i] : nullptr; };
    shared[piece] = {at(0), at(1), at(2)};
  }
  run_pieces(a, shared);
  if (!m.own_initial) add_pieces<T>(sums[0], sizes[0], gradients.initial);
  if (!m.own_transition) add_pieces<T>(sums[1], sizes[1], gradients.transition);
  if (!m.own_emission) add_pieces<T>(sums[2], sizes[2], gradients.emission);
}

std::tuple<Tensor, Tensor, Tensor> hmm_filter_backward(
    const std::optional<Tensor>& grad_filtered, const std::optional<Tensor>& grad_predicted,
    const std::optional<Tensor>& grad_log_likelihood, const Tensor& observations,
    const Tensor& initial, const Tensor& transition, const Tensor& emission,
    const std::optional<Tensor>& lengths, const Tensor& filtered, const Tensor& predicted,
    const Tensor& log_likelihood) {
  const Inputs inputs("hmm_filter", observations, initial, transition, emission, lengths);
  const Saved saved(inputs, filtered, predicted, log_likelihood, grad_filtered, grad_predicted,
                    grad_log_likelihood);
  const Gradients gradients{torch::stable::new_zeros(initial, initial.sizes()),
                            torch::stable::new_zeros(transition, transition.sizes()),
                            torch::stable::new_zeros(emission, emission.sizes())};
  if (observations.numel() > 0) {
    auto run = inputs.in_floats() ? backward<float> : backward<double>;
    run(inputs, saved, gradients);
  }
  return {gradients.initial, gradients.transition, gradients.emission};
}

template <class T>
void smooth(const Inputs& inputs, const Saved& saved, const Tensor& smoothed) {
  HmmBackward<T> a = saved.arguments<T>(inputs);
  a.smoothed = mutable_data<T>(smoothed);
  run_pieces(a, std::vector<HmmSharedGradients>(std::min(block_count(a.model), kGradientPieces)));
}

Tensor hmm_smooth(const Tensor& observations, const Tensor& initial, const Tensor& transition,
                  const Tensor& emission, const std::optional<Tensor>& lengths,
                  const Tensor& filtered, const Tensor& predicted, const Tensor& log_likelihood) {
  const Inputs inputs("hmm_smooth", observations, initial, transition, emission, lengths);
  const Saved saved(inputs, filtered, predicted, log_likelihood);
  const Tensor smoothed = allocate(filtered, filtered.sizes());
  if (observations.numel() > 0) {
    auto run = inputs.in_floats() ? smooth<float> : smooth<double>;
    run(inputs, saved, smoothed);
  }
  return smoothed;
}

}  // namespace
}  // namespace bwt

STABLE_TORCH_LIBRARY_IMPL(bwt, CPU, m) {
  m.impl("hmm_filter", TORCH_BOX(&bwt::hmm_filter_forward));
  m.impl("hmm_filter_backward", TORCH_BOX(&bwt::hmm_filter_backward));
  m.impl("hmm_smooth", TORCH_BOX(&bwt::hmm_smooth));
}
