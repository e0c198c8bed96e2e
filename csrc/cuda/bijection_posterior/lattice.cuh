// The subsets of V symbols in the order that levels are stored in, and the steps between levels.
//
// A level holds one number for every subset of one size, sorted by the bit mask (colexicographic
// order), so that the place of a number is the rank of its subset. The V - L highest symbols of a
// subset are its high part, the rest its low part. All subsets of a size with one high part lie
// next to each other, sorted by their low part, and taking a high symbol away leaves the low part
// alone: neighbours go to neighbours.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace bwt {

struct Lattice {
  const int* numbers;     // [V + 2], [L + 2], [H + 2], [2^H], [V + 1, 2^H + 1] with H = V - L
  const uint16_t* steps;  // [2, L * 2^L]
  int symbols, low;
  int tiles;  // warps that share the subsets of one high part

  static constexpr int kMaxLow = 10;
  static constexpr uint16_t kNone = 0xffff;

  __host__ __device__ int high() const { return symbols - low; }
  __host__ __device__ int high_parts() const { return 1 << high(); }
  __host__ __device__ int high_part(int tile) const { return tile > 0 ? tile / tiles : 0; }

  // How many subsets are smaller than a size; the same among low parts and among high parts.
  __host__ __device__ const int* begin() const { return numbers; }
  __host__ __device__ const int* low_begin() const { return begin() + symbols + 2; }
  __host__ __device__ const int* high_begin() const { return low_begin() + low + 2; }

  // High parts sorted by size.
  __host__ __device__ const int* by_size() const { return high_begin() + high() + 2; }

  // By high part, the rank of the first subset of a size that has it, or a later one.
  __host__ __device__ const int* starts(int size) const {
    return by_size() + high_parts() + size * (high_parts() + 1);
  }

  // [l, C(L, l)] low parts of size l less one symbol: 16 times the rank, plus the symbol.
  __host__ __device__ const uint16_t* below(int size) const {
    return steps + low * low_begin()[size];
  }

  // [L, C(L, l)] low parts of size l with one symbol more: the rank, kNone if they have it.
  __host__ __device__ const uint16_t* above(int size) const { return below(size) + (low << low); }

  __host__ __device__ int count(int size) const { return begin()[size + 1] - begin()[size]; }
  __host__ __device__ int low_count(int size) const {
    return low_begin()[size + 1] - low_begin()[size];
  }
};

// The tables of a lattice, as the host makes them.
struct LatticeTables {
  std::vector<int> numbers;
  std::vector<uint16_t> steps;
  Lattice shape{};

  explicit LatticeTables(int symbols) {
    shape.symbols = symbols;
    shape.low = std::min(symbols, Lattice::kMaxLow);
    shape.tiles = symbols <= 13 ? 8 : symbols <= 16 ? 2 : 1;  // few high parts for many warps
    add_begins(symbols);
    add_begins(shape.low);
    add_begins(shape.high());
    add_high_parts();
    add_starts();
    add_steps();
  }

  Lattice at(const int* numbers_copy, const uint16_t* steps_copy) const {
    Lattice lattice = shape;
    lattice.numbers = numbers_copy;
    lattice.steps = steps_copy;
    return lattice;
  }

  // How many numbers a level and the next, which overwrites it, take at most. Tiles are worked on
  // from the last to the first, one by each warp, by which the old level falls out of use. The
  // numbers of one high part do not continue at the begin of the ring.
  int capacity(int warps) const {
    const Lattice lattice = at(numbers.data(), steps.data());
    int most = 1;
    for (int size = 0; size < shape.symbols; ++size) {
      const int *from = lattice.starts(size), *to = lattice.starts(size + 1);
      for (int top = shape.high_parts() * shape.tiles; top > 0; top -= warps) {
        const int written = lattice.count(size + 1) - to[lattice.high_part(top - warps)];
        most = std::max(most, from[lattice.high_part(top - 1) + 1] + written);
      }
    }
    return most;
  }

  // Numbers beyond the end of the ring, for a high part that begins before it.
  int margin() const { return static_cast<int>(choose(shape.low, shape.low / 2)); }

 private:
  static int64_t choose(int n, int k) {
    int64_t product = 1;
    for (int i = 1; i <= k; ++i) product = product * (n - k + i) / i;
    return k < 0 || k > n ? 0 : product;
  }

  void add_begins(int symbols) {
    int64_t begin = 0;
    for (int size = 0; size <= symbols + 1; ++size) {
      numbers.push_back(static_cast<int>(begin));
      begin += choose(symbols, size);
    }
  }

  void add_high_parts() {
    for (int size = 0; size <= shape.high(); ++size) {
      for (uint32_t high = 0; high < uint32_t(shape.high_parts()); ++high) {
        if (std::popcount(high) == size) numbers.push_back(static_cast<int>(high));
      }
    }
  }

  void add_starts() {
    for (int size = 0; size <= shape.symbols; ++size) {
      int64_t start = 0;
      for (uint32_t high = 0; high <= uint32_t(shape.high_parts()); ++high) {
        numbers.push_back(static_cast<int>(start));
        start += choose(shape.low, size - std::popcount(high));
      }
    }
  }

  void add_steps() {
    const uint32_t subsets = 1u << shape.low;
    const size_t each = size_t{subsets} * shape.low;
    std::vector<int> rank(subsets), members(shape.low + 1);
    for (uint32_t set = 0; set < subsets; ++set) rank[set] = members[std::popcount(set)]++;
    steps.assign(2 * each, Lattice::kNone);
    const int* low_begin = numbers.data() + shape.symbols + 2;
    for (uint32_t set = 0; set < subsets; ++set) {
      const int size = std::popcount(set), count = members[size];
      uint16_t* below = steps.data() + shape.low * low_begin[size] + rank[set];
      uint16_t* above = below + each;
      // The highest symbol first: neighbours share it, and go to neighbours.
      for (int v = shape.low - 1; v >= 0; --v) {
        if (set >> v & 1) {
          *below = static_cast<uint16_t>(16 * rank[set & ~(1u << v)] + v);
          below += count;
        } else {
          above[v * count] = static_cast<uint16_t>(rank[set | 1u << v]);
        }
      }
    }
  }
};

}  // namespace bwt
