// Small conveniences over torch's stable ABI, shared by the CPU glue of all ops.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

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

}  // namespace bwt
