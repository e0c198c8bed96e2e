// What the kernels rely on, checked once more where torch.ops.bwt is called directly: a wrong shape
// must not become a crash. bwt.ops says what is wrong in more words.
#pragma once

#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "cpu/tensors.h"

namespace bwt {

inline bool is_float(ScalarType type) {
  return type == ScalarType::Float || type == ScalarType::Double;
}

inline bool has_sizes(const Tensor& x, std::initializer_list<int64_t> sizes) {
  const auto actual = x.sizes();
  return std::equal(actual.begin(), actual.end(), sizes.begin(), sizes.end());
}

inline void check_that(bool right, const char* op, const char* name) {
  STD_TORCH_CHECK(right, op, ": ", name, " is not what the kernel takes; call bwt.ops.", op,
                  ", which says why");
}

// The arguments of one call of an op, all in one number type.
struct ArgumentCheck {
  const char* op;
  ScalarType type;

  ArgumentCheck(const char* op, ScalarType type, const char* name) : op(op), type(type) {
    check_that(is_float(type), op, name);
  }

  void sizes(const char* name, const Tensor& x, std::initializer_list<int64_t> wanted) const {
    check_that(x.scalar_type() == type && has_sizes(x, wanted), op, name);
  }

  void sizes(const char* name, const std::optional<Tensor>& x,
             std::initializer_list<int64_t> wanted) const {
    if (x) sizes(name, *x, wanted);
  }

  // For the whole batch, or for each of its sequences.
  void shared_or_own(const char* name, const Tensor& x, int64_t batch,
                     std::initializer_list<int64_t> wanted) const {
    std::vector<int64_t> own{batch};
    own.insert(own.end(), wanted);
    const auto actual = x.sizes();
    const bool fits =
        has_sizes(x, wanted) || std::equal(actual.begin(), actual.end(), own.begin(), own.end());
    check_that(x.scalar_type() == type && fits, op, name);
  }

  // As x in all sizes.
  void like(const char* name, const Tensor& y, const Tensor& x) const {
    const auto sizes = y.sizes(), wanted = x.sizes();
    const bool same = std::equal(sizes.begin(), sizes.end(), wanted.begin(), wanted.end());
    check_that(y.scalar_type() == type && same, op, name);
  }

  // A parameter [C] of the rows of x [.., C], or [M, C] if they belong to M models in turn.
  void of_rows(const char* name, const Tensor& parameter, const Tensor& x) const {
    const int64_t last = parameter.dim() - 1;
    const bool fits = x.dim() >= 1 && (last == 0 || last == 1) &&
                      parameter.size(last) == x.size(x.dim() - 1) && parameter.numel() >= 1 &&
                      x.numel() % parameter.numel() == 0;
    check_that(parameter.scalar_type() == type && fits, op, name);
  }

  void that(bool right, const char* name) const { check_that(right, op, name); }
};

inline bool is_id_matrix(const Tensor& ids) {
  return ids.dim() == 2 &&
         (ids.scalar_type() == ScalarType::Int || ids.scalar_type() == ScalarType::Long);
}

}  // namespace bwt
