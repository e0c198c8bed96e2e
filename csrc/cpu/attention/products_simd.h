// The tiling of attention, and the products that both passes consist of.
//
// All products are register tiles C = A B of up to kTileRows rows and kTileVectors vectors, as sums
// of broadcast elements of A times vectors of B. Unless B is small, it is packed once per head into
// panels [columns / kPanel][inner][kPanel]: a tile reads it in sequence, without tails. Query
// rows are processed in blocks, which bounds the scratch to a few matrices [keys, dim] and [block,
// keys]. Tiles right of the diagonal are skipped. Within a tile that the diagonal crosses, products
// take what is seen, step by step: a weight of zero would not do, because 0 * NaN is NaN.

namespace bwt {
namespace BWT_SIMD {
namespace {

// 12 sums hide the latency of two multiply-adds per cycle and leave registers for the operands.
constexpr int kTileRows = 6;
constexpr int kTileVectors = 2;
template <class T>
constexpr int kPanel = kTileVectors * kLanes<T>;

// Query rows per block: at most kMaxBlockRows, and no more than have their scores in kBlockBytes, a
// share of the L2 cache.
constexpr int64_t kMaxBlockRows = 16 * kTileRows;
constexpr int64_t kBlockBytes = 160 * 1024;
// How much of a matrix B all tiles of rows are multiplied by before its next part: a share of the
// L1 cache.
constexpr int64_t kNearBytes = 16 * 1024;

// The row stride of a block of scores: an odd number of cache lines, because the rows of a column
// would share a few sets of the cache if they were a power of two apart.
template <class T>
int64_t scores_stride(const AttentionShape& shape) {
  constexpr int64_t line = kLineBytes / sizeof(T);
  return (round_up(shape.keys, line) / line | 1) * line;
}

template <class T>
int64_t block_rows(const AttentionShape& shape) {
  const int64_t fitting = kBlockBytes / int64_t(sizeof(T)) / scores_stride<T>(shape);
  const int64_t rows = round_down(fitting < kMaxBlockRows ? fitting : kMaxBlockRows, kTileRows);
  return rows > 0 ? rows : kTileRows;
}

// Cuts rows into tiles of at most kTileRows rows and nearly equal sizes: a small last tile would
// have too few sums.
struct Tiles {
  explicit Tiles(int64_t rows_)
      : rows(rows_),
        count((rows + kTileRows - 1) / kTileRows),
        least(rows / count),
        larger_until(rows % count * (least + 1)) {}

  // The end of the tile that begins at this row.
  int64_t end(int64_t row) const { return row + least + (row < larger_until); }

  int64_t rows;
  int64_t count;
  int64_t least;
  int64_t larger_until;
};

// Query rows of a head, from `first` on; rows are counted from there. Each tile of rows computes
// whole vectors of scores, as many as its last row needs.
struct Block {
  Block(const AttentionShape& shape_, int64_t first_, int64_t most_rows)
      : shape(shape_),
        first(first_),
        rows(shape.queries - first < most_rows ? shape.queries - first : most_rows),
        tiles(rows) {}

  int64_t visible_keys(int64_t row) const { return shape.visible_keys(first + row); }

  // The keys that the last row of a tile sees; the tile begins at this row.
  int64_t tile_keys(int64_t row) const { return visible_keys(tiles.end(row) - 1); }
  template <class T>
  int64_t tile_columns(int64_t row) const {
    return round_up(tile_keys(row), kLanes<T>);
  }

  // The visible keys of this row and the zeros behind them, as far as tiles read: a tile of rows
  // goes as far as its last row, and a tile of keys that begins with a visible one to its end.
  template <class T>
  int64_t padded_columns(int64_t row) const {
    const int64_t keys = visible_keys(row) + kTileRows - 1;
    return round_up(keys < shape.keys ? keys : shape.keys, kLanes<T>);
  }

  const AttentionShape& shape;
  int64_t first;
  int64_t rows;
  Tiles tiles;
};

// After every kFetchSteps steps of a tile, up to kFetchLines lines of the next pair are fetched.
constexpr int kFetchLines = 4;
constexpr int64_t kFetchSteps = 8;

// Fetches the rows of the next pair, to be read or written, into the cache while this pair is
// computed: in a fused projection they are too far apart for the processor to foresee. A few lines
// at a time, because it stalls when more are under way than it can keep track of.
class Fetch {
 public:
  // No more rows than will still be in the cache when they are used.
  template <class T>
  void add(T* data, int64_t stride, int64_t rows, int64_t columns) {
    const int64_t size = sizeof(T);
    const int64_t most_rows = 1 + kNearBytes / (columns * size);
    streams_[count_++] = {reinterpret_cast<const char*>(data), stride * size, columns * size,
                          rows < most_rows ? rows : most_rows};
  }

  // Returns whether there are more. Always inline: GCC may drop the call of a function that only
  // prefetches, as one without effect.
  [[gnu::always_inline]] bool some_lines() {
    for (int line = 0; line < kFetchLines && next_ < count_; ++line) {
      Stream& stream = streams_[next_];
      __builtin_prefetch(stream.row + at_);
      at_ += kLineBytes;
      if (at_ < stream.bytes) continue;
      at_ = 0;
      stream.row += stream.stride;
      if (--stream.rows == 0) ++next_;
    }
    return next_ < count_;
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
  int64_t at_ = 0;  // in the first row of the next stream
  int count_ = 0;
  int next_ = 0;
};

template <class T>
int64_t panels_size(int64_t columns, int64_t inner) {
  return round_up(columns, kPanel<T>) * inner;
}

// The right side B of a product. The panel of the columns from c on begins at data + c * spread,
// and its rows are `stride` apart.
template <class T>
struct Panels {
  const T* data;
  int64_t spread;
  int64_t stride;

  Panels from_row(int64_t row) const { return {data + row * stride, spread, stride}; }
};

// The matrix [rows, dim] packed into memory[dim / kPanel][rows][kPanel].
template <class T>
Panels<T> pack_always(const T* matrix, int64_t stride, int64_t rows, int64_t dim, T* memory) {
  T* to = memory;
  for (int64_t d = 0; d < dim; d += kPanel<T>) {
    for (int64_t row = 0; row < rows; ++row, to += kPanel<T>) {
      for (int64_t i = 0; i < kPanel<T> && d + i < dim; i += kLanes<T>) {
        store(to + i, load_at_most(matrix + row * stride + d + i, dim - d - i));
      }
    }
  }
  return {memory, rows, kPanel<T>};
}

// The same, but a matrix of whole vectors that is small enough to stay in the cache is not moved.
template <class T>
Panels<T> pack(const T* matrix, int64_t stride, int64_t rows, int64_t dim, T* memory) {
  const int64_t bytes = rows * dim * int64_t(sizeof(T));
  if (dim % kLanes<T> == 0 && bytes <= kNearBytes) return {matrix, 1, stride};
  return pack_always(matrix, stride, rows, dim, memory);
}

// factor * matrix [rows, dim] transposed, packed into memory[rows / kPanel][dim][kPanel].
template <class T>
Panels<T> pack_transposed(const T* matrix, int64_t stride, int64_t rows, int64_t dim, T factor,
                          T* memory) {
  constexpr int n = kLanes<T>;
  for (int64_t row = 0; row < rows; row += n) {
    T* panel = memory + round_down(row, kPanel<T>) * dim + row % kPanel<T>;
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
  return {memory, dim, kPanel<T>};
}

enum class Left { kPlain, kTransposed };

// C = A B for a tile of rows.
template <class T>
struct Product {
  const T* left;  // A[row, i] is left[row * left_stride + i], or left[i * left_stride + row]
  int64_t left_stride;
  Panels<T> panels;  // B
  int64_t inner;
  T* result;  // C
  int64_t result_stride;
  int64_t columns;
  bool accumulate;  // C += A B
  Fetch* fetch;     // goes on meanwhile
  // Steps that cross the diagonal: the last ones of a plain A, the first ones of a transposed A.
  int64_t stairs = 0;
};

// Adds one step of a product to the rows from kFirst to kEnd of a tile.
template <class T, int kVectors, int kFirst, int kEnd>
[[gnu::always_inline]] inline void add_step(const T* left, int64_t row_stride, const T* panel,
                                            Vec<T>* sum) {
#pragma GCC unroll 12
  for (int i = kFirst * kVectors; i < kEnd * kVectors; ++i) {
    sum[i] = left[i / kVectors * row_stride] * load(panel + i % kVectors * kLanes<T>) + sum[i];
  }
}

// The last steps of a plain product: row r of the tile sees r of them.
template <class T, int kVectors, int kRows, int kFirst = 1>
[[gnu::always_inline]] inline void add_last_steps(const T* left, int64_t row_stride, const T* panel,
                                                  int64_t panel_stride, Vec<T>* sum) {
  if constexpr (kFirst < kRows) {
    add_step<T, kVectors, kFirst, kRows>(left, row_stride, panel, sum);
    add_last_steps<T, kVectors, kRows, kFirst + 1>(left + 1, row_stride, panel + panel_stride,
                                                   panel_stride, sum);
  }
}

// The first `stairs` steps of a transposed product: the last of them lacks the last row, the one
// before it two rows, and so on.
template <class T, int kVectors, int kRows, int kEnd = 1>
[[gnu::always_inline]] inline void add_first_steps(int64_t stairs, const T*& left,
                                                   int64_t left_stride, const T*& panel,
                                                   int64_t panel_stride, Vec<T>* sum) {
  if constexpr (kEnd < kRows) {
    if (kRows - kEnd <= stairs) {
      add_step<T, kVectors, 0, kEnd>(left, 1, panel, sum);
      left += left_stride;
      panel += panel_stride;
    }
    add_first_steps<T, kVectors, kRows, kEnd + 1>(stairs, left, left_stride, panel, panel_stride,
                                                  sum);
  }
}

// kRows rows and kVectors vectors of C, from a column where a panel begins. The loops over the sums
// must be unrolled, or else the sums are not kept in registers.
template <class T, Left kLeft, int kRows, int kVectors>
[[gnu::always_inline]] inline void multiply_tile(const Product<T>& p, int64_t column, T* result,
                                                 int64_t result_stride, bool accumulate) {
  constexpr int n = kLanes<T>;
  constexpr int kSums = kRows * kVectors;
  const int64_t row_stride = kLeft == Left::kPlain ? p.left_stride : 1;
  const int64_t inner_stride = kLeft == Left::kPlain ? 1 : p.left_stride;
  Vec<T> sum[kSums];
#pragma GCC unroll 12
  for (int i = 0; i < kSums; ++i) sum[i] = Vec<T>{};
  const T* left = p.left;
  const T* panel = p.panels.data + column * p.panels.spread;
  const int64_t panel_stride = p.panels.stride;
  const int64_t inner = p.inner - p.stairs;
  if constexpr (kLeft == Left::kTransposed) {
    add_first_steps<T, kVectors, kRows>(p.stairs, left, inner_stride, panel, panel_stride, sum);
  }
  for (int64_t step = 0; step < inner;) {
    const bool pause = p.fetch->some_lines() && step + kFetchSteps < inner;
    const int64_t next = pause ? step + kFetchSteps : inner;
    for (; step < next; ++step, left += inner_stride, panel += panel_stride) {
      add_step<T, kVectors, 0, kRows>(left, row_stride, panel, sum);
    }
  }
  if constexpr (kLeft == Left::kPlain) {
    if (p.stairs > 0) {
      add_last_steps<T, kVectors, kRows>(left, row_stride, panel, panel_stride, sum);
    }
  }
  if (accumulate) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) {
      sum[i] += load(result + i / kVectors * result_stride + i % kVectors * n);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < kSums; ++i) {
    store(result + i / kVectors * result_stride + i % kVectors * n, sum[i]);
  }
}

// The last columns, fewer than a panel.
template <class T, Left kLeft, int kRows>
[[gnu::noinline]] void multiply_edge(const Product<T>& p, int64_t column) {
  const int64_t columns = p.columns - column;
  if (columns == kLanes<T>) {
    return multiply_tile<T, kLeft, kRows, 1>(p, column, p.result + column, p.result_stride,
                                             p.accumulate);
  }
  T tile[kRows * kPanel<T>];
  multiply_tile<T, kLeft, kRows, kTileVectors>(p, column, tile, kPanel<T>, false);
  for (int64_t row = 0; row < kRows; ++row) {
    T* result = p.result + row * p.result_stride + column;
    for (int64_t i = 0; i < columns; ++i) {
      result[i] = (p.accumulate ? result[i] : 0) + tile[row * kPanel<T> + i];
    }
  }
}

// A tile of rows <= kTileRows.
template <class T, Left kLeft, int kRows = kTileRows>
void multiply(int64_t rows, const Product<T>& p) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return multiply<T, kLeft, kRows - 1>(rows, p);
  }
  int64_t column = 0;
  for (; column + kPanel<T> <= p.columns; column += kPanel<T>) {
    multiply_tile<T, kLeft, kRows, kTileVectors>(p, column, p.result + column, p.result_stride,
                                                 p.accumulate);
  }
  if (column < p.columns) multiply_edge<T, kLeft, kRows>(p, column);
}

// result [block rows, keys] (+)= matrix [block rows, dim] * panels [dim, keys]
template <class T>
void multiply_over_dim(const Block& block, const T* matrix, int64_t stride, const Panels<T>& panels,
                       T* result, int64_t result_stride, bool accumulate, Fetch& fetch) {
  const int64_t dim = block.shape.dim;
  const int64_t all_keys = block.visible_keys(block.rows - 1);
  const int64_t near_keys = round_up(kNearBytes / int64_t(sizeof(T)) / dim, kPanel<T>);
  for (int64_t key = 0; key < all_keys; key += near_keys) {
    for (int64_t row = 0, end; row < block.rows; row = end) {
      end = block.tiles.end(row);
      const int64_t columns = block.tile_columns<T>(row) - key;
      if (columns <= 0) continue;
      const Panels<T> near = {panels.data + key * panels.spread, panels.spread, panels.stride};
      multiply<T, Left::kPlain>(
          end - row,
          {matrix + row * stride, stride, near, dim, result + row * result_stride + key,
           result_stride, columns < near_keys ? columns : near_keys, accumulate, &fetch});
    }
  }
}

// result [block rows, dim] = weights [block rows, keys] * panels [keys, dim]
template <class T>
void multiply_over_keys(const Block& block, const T* weights, int64_t weights_stride,
                        const Panels<T>& panels, T* result, int64_t stride, Fetch& fetch) {
  for (int64_t row = 0, end; row < block.rows; row = end) {
    end = block.tiles.end(row);
    multiply<T, Left::kPlain>(
        end - row, {weights + row * weights_stride, weights_stride, panels, block.tile_keys(row),
                    result + row * stride, stride, block.shape.dim, false, &fetch,
                    block.shape.causal ? end - row - 1 : 0});
  }
}

// result [keys, dim] (+)= weights [block rows, keys] transposed * panels [block rows, dim]
template <class T>
void multiply_over_queries(const Block& block, const T* weights, int64_t weights_stride,
                           const Panels<T>& panels, T* result, int64_t stride, bool accumulate,
                           Fetch& fetch) {
  const AttentionShape& shape = block.shape;
  const Tiles tiles(block.visible_keys(block.rows - 1));
  for (int64_t key = 0, end; key < tiles.rows; key = end) {
    end = tiles.end(key);
    const int64_t seen_from = shape.causal ? key - (shape.keys - shape.queries) - block.first : 0;
    const int64_t row = seen_from > 0 ? seen_from : 0;
    // The keys of the tile that its first row does not see.
    const int64_t hidden = end - block.visible_keys(row);
    multiply<T, Left::kTransposed>(
        end - key, {weights + row * weights_stride + key, weights_stride, panels.from_row(row),
                    block.rows - row, result + key * stride, stride, shape.dim, accumulate, &fetch,
                    hidden > 0 ? hidden : 0});
  }
}

}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt
