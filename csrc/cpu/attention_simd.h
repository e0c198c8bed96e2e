// Attention (attention.h) for one instruction-set level. Included once per level by foreach_simd.h;
// what it includes is per level, too. This file: the tiling and the products; then the passes.
//
// All products are register tiles C = A B of up to kTileRows rows and kTileVectors vectors, as sums
// of broadcast elements of A times vectors of B. B is packed once per head into panels [columns /
// kPanel][inner][kPanel], so that a tile reads it in sequence and inner loops have no tails. Query
// rows are processed in blocks, which bounds the scratch to a few matrices [keys, dim] and [block,
// keys]. Tiles right of the diagonal are skipped; what lies there within a tile has weight zero.
#include "cpu/vector.h"

namespace bwt {
namespace BWT_SIMD {
namespace {  // names of one kernel file must not meet those of another

// 12 sums hide the latency of two multiply-adds per cycle and leave registers for the operands.
constexpr int kTileRows = 6;
constexpr int kTileVectors = 2;
template <class T>
constexpr int kPanel = kTileVectors * kLanes<T>;

// Query rows per block: at most so many, and as fit into a share of the L2 cache with their scores.
constexpr int64_t kMaxBlockRows = 16 * kTileRows;
constexpr int64_t kBlockBytes = 160 * 1024;
constexpr int64_t kLine = 64;  // bytes of a cache line

// The row stride of a block of scores: an odd number of cache lines, because the rows of a column
// would share a few sets of the cache if they were a power of two apart.
template <class T>
int64_t scores_stride(const AttentionShape& shape) {
  constexpr int64_t line = kLine / sizeof(T);
  return (round_up(shape.keys, line) / line | 1) * line;
}

template <class T>
int64_t block_rows(const AttentionShape& shape) {
  const int64_t fitting = kBlockBytes / int64_t(sizeof(T)) / scores_stride<T>(shape);
  const int64_t rows = round_down(fitting < kMaxBlockRows ? fitting : kMaxBlockRows, kTileRows);
  return rows > 0 ? rows : kTileRows;
}

// Query rows of a head, from `first` on; rows are counted from there. Each tile of rows computes
// whole vectors of scores, as many as its last row needs.
struct Block {
  Block(const AttentionShape& shape_, int64_t first_, int64_t most_rows)
      : shape(shape_),
        first(first_),
        rows(shape.queries - first < most_rows ? shape.queries - first : most_rows) {}

  int64_t visible_keys(int64_t row) const { return shape.visible_keys(first + row); }

  // The end of the tile that has this row.
  int64_t tile_end(int64_t row) const {
    const int64_t end = round_down(row, kTileRows) + kTileRows;
    return end < rows ? end : rows;
  }
  int64_t tile_keys(int64_t row) const { return visible_keys(tile_end(row) - 1); }

  template <class T>
  int64_t columns(int64_t row) const {
    return round_up(tile_keys(row), kLanes<T>);
  }

  // With the zeros that a tile of keys reads of this row if it begins at a visible key.
  template <class T>
  int64_t padded_columns(int64_t row) const {
    const int64_t padded = round_up(tile_keys(row) + kTileRows - 1, kLanes<T>);
    const int64_t all = round_up(shape.keys, kLanes<T>);
    return padded < all ? padded : all;
  }

  const AttentionShape& shape;
  int64_t first;
  int64_t rows;
};

// Products fetch up to so many lines of the next pair after so many steps of a tile.
constexpr int kFetchLines = 4;
constexpr int64_t kFetchSteps = 8;

// Rows of the next pair, to be read or written, on their way into the cache while this pair is
// computed: the rows of a fused projection are too far apart for the processor to foresee. A few
// lines at a time, because it stalls on more than it can await at once.
class Fetch {
 public:
  template <class T>
  void add(T* data, int64_t stride, int64_t rows, int64_t columns) {
    const int64_t size = sizeof(T);
    streams_[count_++] = {reinterpret_cast<const char*>(data), stride * size, columns * size,
                          rows < kMaxBlockRows ? rows : kMaxBlockRows};
  }

  // Always inline: GCC may take a function that only prefetches for one without effect.
  [[gnu::always_inline]] void some_lines() {
    for (int lines = 0; lines < kFetchLines && next_ < count_;) {
      Stream& stream = streams_[next_];
      for (int64_t at = 0; at < stream.bytes; at += kLine, ++lines) {
        __builtin_prefetch(stream.row + at);
      }
      stream.row += stream.stride;
      if (--stream.rows == 0) ++next_;
    }
  }

 private:
  struct Stream {
    const char* row;
    int64_t stride;
    int64_t bytes;
    int64_t rows;
  };
  static constexpr int kMaxStreams = 8;
  Stream streams_[kMaxStreams];
  int count_ = 0;
  int next_ = 0;
};

template <class T>
int64_t panels_size(int64_t columns, int64_t inner) {
  return round_up(columns, kPanel<T>) * inner;
}

// panels[dim / kPanel][rows][kPanel] = matrix [rows, dim]
template <class T>
void pack(const T* matrix, int64_t stride, int64_t rows, int64_t dim, T* panels) {
  for (int64_t d = 0; d < dim; d += kPanel<T>) {
    for (int64_t row = 0; row < rows; ++row, panels += kPanel<T>) {
      for (int64_t i = 0; i < kPanel<T> && d + i < dim; i += kLanes<T>) {
        store(panels + i, load_at_most(matrix + row * stride + d + i, dim - d - i));
      }
    }
  }
}

// panels[rows / kPanel][dim][kPanel] = factor * matrix [rows, dim] transposed
template <class T>
void pack_transposed(const T* matrix, int64_t stride, int64_t rows, int64_t dim, T factor,
                     T* panels) {
  constexpr int n = kLanes<T>;
  for (int64_t row = 0; row < rows; row += n) {
    T* panel = panels + round_down(row, kPanel<T>) * dim + row % kPanel<T>;
    for (int64_t d = 0; d < dim; d += n) {
      const T* from = matrix + row * stride + d;
      Vec<T> square[n];
      if (rows - row >= n && dim - d >= n) {
#pragma GCC unroll 16
        for (int i = 0; i < n; ++i) square[i] = load(from + i * stride);
      } else {
#pragma GCC unroll 16
        for (int i = 0; i < n; ++i) {
          square[i] = row + i < rows ? load_at_most(from + i * stride, dim - d) : Vec<T>{};
        }
      }
      transpose<T>(square);
#pragma GCC unroll 16
      for (int i = 0; i < n; ++i) {
        if (d + i < dim) store(panel + (d + i) * kPanel<T>, square[i] * factor);
      }
    }
  }
}

enum class Left { kPlain, kTransposed };

template <class T>
struct Product {
  const T* left;  // A[row, i] is left[row * left_stride + i], or left[i * left_stride + row]
  int64_t left_stride;
  const T* panel;  // B[i, column] is panel[i * kPanel + column]
  int64_t inner;
  T* result;  // C
  int64_t result_stride;
  bool accumulate;  // C += A B
  Fetch* fetch;     // goes on meanwhile
};

// The loops over the sums must be unrolled, or else the sums are not registers.
template <class T, Left kLeft, int kRows, int kVectors>
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
  const T* panel = p.panel;
  for (int64_t step = 0; step < p.inner;) {
    p.fetch->some_lines();
    const int64_t next = step + kFetchSteps < p.inner ? step + kFetchSteps : p.inner;
    for (; step < next; ++step, left += inner_stride, panel += kPanel<T>) {
#pragma GCC unroll 12
      for (int i = 0; i < kSums; ++i) {
        sum[i] = left[i / kVectors * row_stride] * load(panel + i % kVectors * n) + sum[i];
      }
    }
  }
  if (p.accumulate) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) {
      sum[i] += load(p.result + i / kVectors * p.result_stride + i % kVectors * n);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < kSums; ++i) {
    store(p.result + i / kVectors * p.result_stride + i % kVectors * n, sum[i]);
  }
}

template <class T, Left kLeft, int kRows = kTileRows>
void multiply_whole_vectors(int64_t rows, int64_t vectors, const Product<T>& p) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return multiply_whole_vectors<T, kLeft, kRows - 1>(rows, vectors, p);
  }
  if (vectors > 1) {
    multiply_tile<T, kLeft, kRows, 2>(p);
  } else {
    multiply_tile<T, kLeft, kRows, 1>(p);
  }
}

// A tile of rows <= kTileRows and of the columns that there are, at most a panel.
template <class T, Left kLeft>
void multiply(int64_t rows, int64_t columns, const Product<T>& p) {
  if (columns >= kPanel<T>) return multiply_whole_vectors<T, kLeft>(rows, 2, p);
  if (columns == kLanes<T>) return multiply_whole_vectors<T, kLeft>(rows, 1, p);
  T tile[kTileRows * kPanel<T>];
  multiply_whole_vectors<T, kLeft>(
      rows, 2, {p.left, p.left_stride, p.panel, p.inner, tile, kPanel<T>, false, p.fetch});
  for (int64_t row = 0; row < rows; ++row) {
    T* result = p.result + row * p.result_stride;
    for (int64_t i = 0; i < columns; ++i) {
      result[i] = (p.accumulate ? result[i] : 0) + tile[row * kPanel<T> + i];
    }
  }
}

// result [block rows, keys] (+)= matrix [block rows, dim] * panels [dim, keys]
template <class T>
void multiply_over_dim(Fetch& fetch, const Block& block, const T* matrix, int64_t stride, const T* panels,
                       T* result, int64_t result_stride, bool accumulate) {
  const int64_t dim = block.shape.dim;
  const int64_t all_keys = block.visible_keys(block.rows - 1);
  for (int64_t key = 0; key < all_keys; key += kPanel<T>) {
    for (int64_t row = 0; row < block.rows; row += kTileRows) {
      const int64_t columns = block.columns<T>(row);
      if (columns <= key) continue;
      multiply<T, Left::kPlain>(block.tile_end(row) - row, columns - key,
                                {matrix + row * stride, stride, panels + key * dim, dim,
                                 result + row * result_stride + key, result_stride, accumulate, &fetch});
    }
  }
}

// result [block rows, dim] = weights [block rows, keys] * panels [keys, dim]
template <class T>
void multiply_over_keys(Fetch& fetch, const Block& block, const T* weights, int64_t weights_stride,
                        const T* panels, T* result, int64_t stride) {
  const int64_t dim = block.shape.dim;
  for (int64_t row = 0; row < block.rows; row += kTileRows) {
    for (int64_t d = 0; d < dim; d += kPanel<T>) {
      multiply<T, Left::kPlain>(
          block.tile_end(row) - row, dim - d,
          {weights + row * weights_stride, weights_stride, panels + d * block.shape.keys,
           block.tile_keys(row), result + row * stride + d, stride, false, &fetch});
    }
  }
}

// result [keys, dim] (+)= weights [block rows, keys] transposed * panels [block rows, dim]
template <class T>
void multiply_over_queries(Fetch& fetch, const Block& block, const T* weights, int64_t weights_stride,
                           const T* panels, T* result, int64_t stride, bool accumulate) {
  const AttentionShape& shape = block.shape;
  const int64_t all_keys = block.visible_keys(block.rows - 1);
  for (int64_t key = 0; key < all_keys; key += kTileRows) {
    const int64_t tile_keys = all_keys - key < kTileRows ? all_keys - key : kTileRows;
    const int64_t seen_from = shape.causal ? key - (shape.keys - shape.queries) - block.first : 0;
    const int64_t row = seen_from > 0 ? seen_from : 0;
    for (int64_t d = 0; d < shape.dim; d += kPanel<T>) {
      multiply<T, Left::kTransposed>(tile_keys, shape.dim - d,
                                     {weights + row * weights_stride + key, weights_stride,
                                      panels + d * block.rows + row * kPanel<T>, block.rows - row,
                                      result + key * stride + d, stride, accumulate, &fetch});
    }
  }
}

}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt

#include "cpu/attention_forward_simd.h"
// The backward pass uses parts of the forward pass.
#include "cpu/attention_backward_simd.h"
