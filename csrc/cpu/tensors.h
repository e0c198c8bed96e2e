// Small conveniences over torch's stable ABI, shared by the CPU glue of all ops.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/shim_utils.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace bwt {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <class T>
const T* data(const Tensor& tensor) {
  return static_cast<const T*>(tensor.data_ptr());
}

template <class T>
T* mutable_data(const Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

// As torch::stable::contiguous, which goes through the dispatcher even where nothing is to be done.
inline Tensor packed(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}

inline std::optional<Tensor> packed(const std::optional<Tensor>& tensor) {
  if (!tensor) return std::nullopt;
  return packed(*tensor);
}

// For kernels that take any strides but that of the last dimension, which has to be 1.
inline Tensor packed_rows(const Tensor& tensor) {
  const int64_t last = tensor.dim() - 1;
  const bool dense = tensor.size(last) == 1 || tensor.stride(last) == 1;
  return dense ? tensor : torch::stable::contiguous(tensor);
}

// As torch::stable::new_empty on the CPU, but not through the dispatcher, which takes longer than a
// small op.
inline Tensor allocate(const Tensor& like, torch::headeronly::IntHeaderOnlyArrayRef sizes,
                       std::optional<ScalarType> dtype = std::nullopt) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0; stride *= std::max<int64_t>(sizes[i], 1)) {
    strides[i] = stride;
  }
  namespace detail = torch::stable::detail;
  const auto type = detail::from(dtype.value_or(like.scalar_type()));
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(sizes.size(), sizes.data(), strides.data(),
                                                  detail::to<int32_t>(type),
                                                  aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}

}  // namespace bwt
