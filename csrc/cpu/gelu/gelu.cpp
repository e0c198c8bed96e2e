// CPU implementation of bwt::gelu: threads over elements, SIMD inside.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "cpu/checks.h"
#include "cpu/gelu/arguments.h"
#include "cpu/pieces.h"
#include "cpu/tensors.h"

#define BWT_SIMD_FILE "cpu/gelu/kernels_simd.h"
#include "cpu/simd/foreach_level.h"

namespace bwt {
namespace {

template <class T>
void compute(const Tensor& x, const Tensor& y, const Tensor& slope) {
  const bool wanted = slope.numel() > 0;
  const Gelu<T> a{data<T>(x), mutable_data<T>(y), wanted ? mutable_data<T>(slope) : nullptr};
  torch::stable::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    BWT_SIMD_CALL(gelu_elements, a, begin, end);
  });
}

std::tuple<Tensor, Tensor> gelu_forward(const Tensor& x, bool with_slope) {
  check_that(is_float(x.scalar_type()), "gelu", "x");
  const Tensor dense = packed(x);
  const Tensor y = allocate(dense, dense.sizes());
  const Tensor slope = with_slope ? allocate(dense, dense.sizes()) : allocate(dense, {0});
  if (x.numel() > 0) {
    auto run = x.scalar_type() == ScalarType::Float ? compute<float> : compute<double>;
    run(dense, y, slope);
  }
  return {y, slope};
}

}  // namespace
}  // namespace bwt

STABLE_TORCH_LIBRARY_IMPL(bwt, CPU, m) { m.impl("gelu", TORCH_BOX(&bwt::gelu_forward)); }
