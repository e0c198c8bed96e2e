// Rows that share parameters: all of them, or those of each of several models.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/pieces.h"
#include "cpu/tensors.h"

namespace bwt {

// Rows of several models, one model's after another's, each with parameters of its own. Gradients
// of parameters are summed in pieces. Those of a model are cut as if it were alone, so that its
// sums do not depend on the others.
struct ModelRows {
  int64_t models, rows;  // of each model
  int64_t size;          // of a row
  int64_t each = std::min(rows, kGradientPieces);

  int64_t all() const { return models * rows; }
  int64_t grain() const { return 1 + kGrain / size; }
  int64_t model(int64_t row) const { return row / rows; }

  int64_t pieces() const { return models * each; }
  int64_t piece_grain() const { return 1 + pieces() * kGrain / (1 + all() * size); }
  int64_t piece_model(int64_t piece) const { return piece / each; }
  int64_t piece_begin(int64_t piece) const {
    return piece / each * rows + rows * (piece % each) / each;
  }
  int64_t piece_end(int64_t piece) const {
    return piece / each * rows + rows * (piece % each + 1) / each;
  }

  // totals [models, size] from the sums of the pieces, each of them `stride` after the last.
  template <class T>
  void add_up(const T* sums, int64_t stride, T* totals) const {
    for (int64_t i = 0; i < models * size; ++i) {
      const T* first = sums + i / size * each * stride + i % size;
      double sum = 0;
      for (int64_t piece = 0; piece < each; ++piece) sum += first[piece * stride];
      totals[i] = static_cast<T>(sum);
    }
  }
};

// For a parameter [C] or [M, C] of the rows of x [.., C].
inline ModelRows model_rows(const Tensor& parameter, const Tensor& x) {
  const int64_t models = parameter.dim() == 2 ? parameter.size(0) : 1;
  return {models, x.numel() / parameter.numel(), parameter.size(parameter.dim() - 1)};
}

}  // namespace bwt
