// CPU implementation of bwt::selective_scan: threads over the batch, SIMD over channels.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "cpu/arena.h"
#include "cpu/checks.h"
#include "cpu/pieces.h"
#include "cpu/selective_scan/arguments.h"
#include "cpu/tensors.h"

#define BWT_SIMD_FILE "cpu/selective_scan/kernels_simd.h"
#include "cpu/simd/foreach_level.h"

namespace bwt {
namespace {

template <class T>
ScanRows<const T> rows_of(const Tensor& x) {
  return {data<T>(x), x.stride(0), x.stride(1)};
}

// A is [E,N], and D is [E], of all sequences, or both have one more dimension for the models.
int64_t models_of(const Tensor& A) { return A.dim() == 3 ? A.size(0) : 1; }

ArgumentCheck check_arguments(const Tensor& u, const Tensor& delta, const Tensor& A,
                              const Tensor& B, const Tensor& C, const std::optional<Tensor>& D,
                              const std::optional<Tensor>& initial, int64_t every) {
  const ArgumentCheck check("selective_scan", u.scalar_type(), "u");
  check.that(u.dim() == 3, "u");
  check.that(A.dim() == 2 || A.dim() == 3, "A");
  const int64_t batch = u.size(0), steps = u.size(1), channels = u.size(2);
  const int64_t states = A.size(-1), models = models_of(A);
  check.that(1 <= states && states <= kMaxScanStates, "A");
  check.sizes("delta", delta, {batch, steps, channels});
  check.shared_or_own("A", A, models, {channels, states});
  check.that(models > 0 && batch % models == 0, "A");
  check.sizes("B", B, {batch, steps, states});
  check.sizes("C", C, {batch, steps, states});
  if (D) check.shared_or_own("D", *D, models, {channels});
  if (D) check.that(D->dim() == A.dim() - 1, "D");
  check.sizes("initial", initial, {batch, states, channels});
  STD_TORCH_CHECK(0 <= every && every <= kScanChunk, "selective_scan: every must be 0 to ",
                  kScanChunk);
  return check;
}

// Tensors in the layout that the kernels take.
struct Inputs {
  Inputs(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B, const Tensor& C,
         const std::optional<Tensor>& D, const std::optional<Tensor>& initial, bool softplus,
         int64_t every)
      : u(packed_rows(u)),
        delta(packed_rows(delta)),
        A(packed(A)),
        B(packed_rows(B)),
        C(packed_rows(C)),
        D(packed(D)),
        initial(packed(initial)),
        softplus(softplus),
        every(every) {}

  template <class T>
  ScanInputs<T> arguments() const {
    return {{u.size(0), u.size(1), u.size(2), A.size(-1), models_of(A)},
            softplus,
            every,
            rows_of<T>(u),
            rows_of<T>(delta),
            rows_of<T>(B),
            rows_of<T>(C),
            data<T>(A),
            D ? data<T>(*D) : nullptr,
            initial ? data<T>(*initial) : nullptr};
  }

  Tensor u, delta, A, B, C;
  std::optional<Tensor> D, initial;
  bool softplus;
  int64_t every;
};

template <class T>
void forward(const Inputs& inputs, const Tensor& y, const Tensor& states, const Tensor& last) {
  const ScanForward<T> a{inputs.arguments<T>(), mutable_data<T>(y), mutable_data<T>(states),
                         last.numel() > 0 ? mutable_data<T>(last) : nullptr};
  const ScanShape& shape = a.inputs.shape;
  const int64_t grain = 1 + 32768 / (1 + shape.steps * shape.channels * shape.states);
  torch::stable::parallel_for(0, shape.batch, grain, [&](int64_t begin, int64_t end) {
    std::vector<char> scratch(BWT_SIMD_CALL(scratch_bytes, a));
    BWT_SIMD_CALL(forward_entries, a, begin, end, scratch.data());
  });
}

std::tuple<Tensor, Tensor, Tensor> selective_scan_forward(const Tensor& u, const Tensor& delta,
                                                          const Tensor& A, const Tensor& B,
                                                          const Tensor& C,
                                                          const std::optional<Tensor>& D,
                                                          const std::optional<Tensor>& initial,
                                                          bool softplus, int64_t every, bool last) {
  check_arguments(u, delta, A, B, C, D, initial, every);
  const Inputs inputs(u, delta, A, B, C, D, initial, softplus, every);
  const int64_t saved = every > 0 ? u.size(1) / every : 0;
  const Tensor y = allocate(u, u.sizes());
  const Tensor states = allocate(u, {u.size(0), saved, A.size(-1), u.size(2)});
  Tensor end_state = allocate(u, {u.size(0), A.size(-1), last ? u.size(2) : 0});
  if (u.numel() > 0) {
    auto run = u.scalar_type() == ScalarType::Float ? forward<float> : forward<double>;
    run(inputs, y, states, end_state);
  } else if (initial) {
    if (last) torch::stable::copy_(end_state, *initial);
  } else {
    torch::stable::zero_(end_state);
  }
  return {y, states, end_state};
}

struct Gradients {
  Tensor u, delta, A, B, C, D, initial;
};

template <class T>
std::vector<double> add_pieces(const T* sums, int64_t pieces, int64_t size) {
  std::vector<double> total(size);
  for (int64_t piece = 0; piece < pieces; ++piece, sums += size) {
    for (int64_t i = 0; i < size; ++i) total[i] += sums[i];
  }
  return total;
}

// From the sums of each piece, [pieces,N,E] and [pieces,E], to the gradients [E,N] and [E] of one
// model.
template <class T>
void write_sums(const ScanShape& shape, int64_t pieces, const T* rate_sums, const T* skip_sums,
                T* grad_A, T* grad_D) {
  const int64_t E = shape.channels, N = shape.states;
  const std::vector<double> rates = add_pieces(rate_sums, pieces, E * N);
  const std::vector<double> skips = add_pieces(skip_sums, pieces, E);
  for (int64_t i = 0; i < E * N; ++i) grad_A[i] = static_cast<T>(rates[i % N * E + i / N]);
  std::copy(skips.begin(), skips.end(), grad_D);
}

template <class T>
void backward(const Inputs& inputs, const Tensor& states, const Tensor& grad_y,
              const std::optional<Tensor>& grad_last, const Gradients& gradients) {
  const ScanInputs<T> arguments = inputs.arguments<T>();
  const ScanShape& shape = arguments.shape;
  const int64_t E = shape.channels, N = shape.states, models = shape.models;
  // Of each model, as many as if it were alone.
  const int64_t fitting = kGradientBytes / int64_t(E * (N + 1) * sizeof(T));
  const int64_t pieces =
      std::min(shape.entries_of_model(), std::clamp<int64_t>(fitting, 1, kGradientPieces));
  std::vector<T> sums(models * pieces * E * (N + 1));
  T* skip_sums = sums.data() + models * pieces * E * N;
  const ScanBackward<T> a{arguments,
                          data<T>(states),
                          rows_of<T>(grad_y),
                          grad_last ? data<T>(*grad_last) : nullptr,
                          mutable_data<T>(gradients.u),
                          mutable_data<T>(gradients.delta),
                          mutable_data<T>(gradients.B),
                          mutable_data<T>(gradients.C),
                          sums.data(),
                          skip_sums,
                          inputs.initial ? mutable_data<T>(gradients.initial) : nullptr};
  torch::stable::parallel_for(0, models * pieces, 1, [&](int64_t begin, int64_t end) {
    std::vector<char> scratch(BWT_SIMD_CALL(scratch_bytes, a));
    BWT_SIMD_CALL(backward_pieces, a, begin, end, pieces, scratch.data());
  });
  for (int64_t model = 0; model < models; ++model) {
    write_sums(shape, pieces, sums.data() + model * pieces * E * N, skip_sums + model * pieces * E,
               mutable_data<T>(gradients.A) + model * E * N,
               mutable_data<T>(gradients.D) + model * E);
  }
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> selective_scan_backward(
    const Tensor& grad_y, const std::optional<Tensor>& grad_last, const Tensor& u,
    const Tensor& delta, const Tensor& A, const Tensor& B, const Tensor& C,
    const std::optional<Tensor>& D, const std::optional<Tensor>& initial, const Tensor& states,
    bool softplus, int64_t every) {
  const ArgumentCheck same = check_arguments(u, delta, A, B, C, D, initial, every);
  same.that(every > 0, "every");
  const int64_t batch = u.size(0), N = A.size(-1), E = u.size(2);
  same.sizes("grad_y", grad_y, {batch, u.size(1), E});
  same.sizes("grad_last", grad_last, {batch, N, E});
  same.sizes("states", states, {batch, u.size(1) / every, N, E});
  // All of them are written, if anything is computed.
  const bool some = u.numel() > 0;
  auto like = [some](const Tensor& x, torch::headeronly::IntHeaderOnlyArrayRef sizes) {
    return some ? allocate(x, sizes) : torch::stable::new_zeros(x, sizes);
  };
  const auto sizes = A.sizes();
  const Gradients gradients{like(u, u.sizes()),
                            like(u, u.sizes()),
                            like(A, sizes),
                            like(B, B.sizes()),
                            like(C, C.sizes()),
                            like(A, sizes.slice(0, sizes.size() - 1)),
                            initial ? like(A, initial->sizes()) : allocate(A, {0})};
  if (some) {
    auto run = u.scalar_type() == ScalarType::Float ? backward<float> : backward<double>;
    run(Inputs(u, delta, A, B, C, D, initial, softplus, every), packed(states), packed_rows(grad_y),
        packed(grad_last), gradients);
  } else if (initial && grad_last) {
    Tensor grad_initial = gradients.initial;
    torch::stable::copy_(grad_initial, *grad_last);
  }
  return {gradients.u, gradients.delta, gradients.A,      gradients.B,
          gradients.C, gradients.D,     gradients.initial};
}

}  // namespace
}  // namespace bwt

STABLE_TORCH_LIBRARY_IMPL(bwt, CPU, m) {
  m.impl("selective_scan", TORCH_BOX(&bwt::selective_scan_forward));
  m.impl("selective_scan_backward", TORCH_BOX(&bwt::selective_scan_backward));
}
