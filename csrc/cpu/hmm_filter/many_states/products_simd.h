// The products of the layout for many states, as register tiles.

namespace bwt {
namespace BWT_SIMD {
namespace {
namespace many_states {

// 12 sums hide the latency of two multiply-adds per cycle and leave registers for the operands.
constexpr int kTileRows = 6;
constexpr int kTileVectors = 2;
constexpr int kMostSums = 8;  // where each row has its own matrix, and nothing is used twice

// C = A B with one B for all rows, or (kOwn) one for each, own_stride apart. B[k, column] is
// right[k * right_stride + column]; A[row, k] is left[row * left_stride + k], or transposed
// left[k * left_stride + row].
template <class T>
struct Product {
  const T* left;
  int64_t left_stride;
  const T* right;
  int64_t right_stride;
  int64_t own_stride;
  int64_t inner;
  T* result;
  int64_t result_stride;
};

enum class Left { kPlain, kTransposed };

template <class T, Left kLeft, bool kOwn, bool kAccumulate, int kRows, int kVectors>
void multiply_tile(const Product<T>& product) {
  constexpr int n = kLanes<T>;
  constexpr int kSums = kRows * kVectors;
  const Product<T> p = product;  // a copy, which stores to the result cannot change
  const int64_t row_stride = kLeft == Left::kPlain ? p.left_stride : 1;
  const int64_t inner_stride = kLeft == Left::kPlain ? 1 : p.left_stride;
  Vec<T> sum[kSums];
#pragma GCC unroll 12
  for (int i = 0; i < kSums; ++i) sum[i] = Vec<T>{};
  const T* left = p.left;
  const T* right = p.right;
  for (int64_t step = 0; step < p.inner; ++step, left += inner_stride, right += p.right_stride) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) {
      const T* row = kOwn ? right + i / kVectors * p.own_stride : right;
      sum[i] = left[i / kVectors * row_stride] * load(row + i % kVectors * n) + sum[i];
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < kSums; ++i) {
    T* to = p.result + i / kVectors * p.result_stride + i % kVectors * n;
    store(to, kAccumulate ? load(to) + sum[i] : sum[i]);
  }
}

// The same for a number of rows that is known only at run time, at most kRows.
template <class T, Left kLeft, bool kOwn, bool kAccumulate, int kRows, int kVectors>
void multiply_rows(int64_t rows, const Product<T>& p) {
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      return multiply_rows<T, kLeft, kOwn, kAccumulate, kRows - 1, kVectors>(rows, p);
    }
  }
  multiply_tile<T, kLeft, kOwn, kAccumulate, kRows, kVectors>(p);
}

// A matrix [S, S], or its transpose, as panels [S / panel][S][panel] of one or two vectors.
template <class T>
struct Panels {
  static constexpr int64_t kPanel = kTileVectors * kLanes<T>;

  static int64_t size(int64_t states) { return round_up(states, kPanel) * states; }

  static void pack(const T* matrix, int64_t states, bool transposed, T* panels) {
    for (int64_t first = 0; first < states; first += kPanel) {
      for (int64_t k = 0; k < states; ++k) {
        for (int64_t i = 0; i < kPanel; ++i, ++panels) {
          const int64_t column = first + i;
          *panels = column >= states ? T(0)
                    : transposed     ? matrix[column * states + k]
                                     : matrix[k * states + column];
        }
      }
    }
  }
};

// result [rows, S] = left [rows, S] * shared panels
template <class T>
void multiply_shared(int64_t rows, int64_t states, const T* left, int64_t left_stride,
                     const T* panels, T* result, int64_t result_stride) {
  constexpr int64_t kPanel = Panels<T>::kPanel;
  for (int64_t column = 0; column < states; column += kPanel) {
    const Product<T> p{left, left_stride, panels + column * states, kPanel,
                       0,    states,      result + column,          result_stride};
    if (states - column > kLanes<T>) {
      multiply_rows<T, Left::kPlain, false, false, kTileRows, kTileVectors>(rows, p);
    } else {
      multiply_rows<T, Left::kPlain, false, false, kTileRows, 1>(rows, p);
    }
  }
}

// The same with a matrix [S, padded S] for each row.
template <class T, int kVectors = kMostSums>
void multiply_own(int64_t rows, int64_t vectors, const Product<T>& p) {
  if constexpr (kVectors > 1) {
    if (vectors < kVectors) return multiply_own<T, kVectors - 1>(rows, vectors, p);
  }
  constexpr int kRows = kVectors >= 5 ? 1 : kVectors >= 3 ? 2 : kVectors == 2 ? 4 : kTileRows;
  for (int64_t row = 0; row < rows; row += kRows) {
    Product<T> part = p;
    part.left += row * p.left_stride;
    part.right += row * p.own_stride;
    part.result += row * p.result_stride;
    multiply_rows<T, Left::kPlain, true, false, kRows, kVectors>(smaller(rows - row, kRows), part);
  }
}

}  // namespace many_states
}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt
