// Noisy sequences: the table of subset levels, blocked for vectors, and the walk over sequences.

namespace bwt {
namespace BWT_SIMD {
namespace {

constexpr int kLowBits = 6;

// The lattice of the subsets of the six lowest symbols, sorted by size. Each size class is padded
// to whole vectors, so that adding a high symbol is a vector operation without a tail.
template <int kLanes>
struct LowLattice {
  int slots = 0;                      // of a block: all classes with their padding
  int offset[kLowBits + 2] = {};      // of class l in a block
  int count[kLowBits + 1] = {};       // subsets of size l
  int mask[128] = {};                 // subset in a slot
  int below[kLowBits + 1][60] = {};   // slot, in class l - 1, of each subset less one symbol
  int symbol[kLowBits + 1][60] = {};  // that symbol

  constexpr LowLattice() {
    int slot_of[1 << kLowBits] = {};
    for (int size = 0; size <= kLowBits; ++size) {
      offset[size] = slots;
      for (int subset = 0; subset < 1 << kLowBits; ++subset) {
        if (__builtin_popcount(subset) != size) continue;
        slot_of[subset] = count[size];
        mask[slots + count[size]] = subset;
        int step = count[size]++ * size;
        for (int v = 0; v < kLowBits; ++v) {
          if (!(subset >> v & 1)) continue;
          below[size][step] = slot_of[subset & ~(1 << v)];
          symbol[size][step++] = v;
        }
      }
      slots += (count[size] + kLanes - 1) / kLanes * kLanes;
    }
    offset[kLowBits + 1] = slots;
  }
};

// All levels at once: one block of low subsets per subset of the high symbols. Level i owns, in the
// block of high subset h, the class of size i - |h|. Fewer symbols than six are filled up with
// symbols of likelihood zero.
template <class Real>
class BlockedTable {
  using Vector = typename Lanes<Real>::Vector;
  static constexpr int kLanes = Lanes<Real>::kCount;
  static constexpr LowLattice<kLanes> kLow{};

 public:
  // Numbers that the caller hands over, zeroed: the levels, their adjoints, one number per block.
  static size_t size(int symbols, bool adjoints) {
    return (size_t{1} << std::max(symbols - kLowBits, 0)) * (kLow.slots * (adjoints ? 2 : 1) + 1);
  }

  BlockedTable(int symbols, Real* numbers, bool adjoints)
      : symbols_(symbols),
        low_symbols_(std::min(symbols, kLowBits)),
        blocks_(1u << std::max(symbols - kLowBits, 0)),
        level_(numbers),
        adjoint_(adjoints ? numbers + size_t{blocks_} * kLow.slots : nullptr),
        per_block_(numbers + size_t{blocks_} * kLow.slots * (adjoints ? 2 : 1)) {}

  template <class Team>
  void reset(Team) {
    level_[0] = Number<Real>::from(1.0);
    if (adjoint_ != nullptr) adjoint_[0] = Number<Real>::from(0.0);
  }

  // Levels above this one are no longer needed. Returns the highest of the others: all are there.
  template <class Team>
  int cut(Team, int level) {
    return level;
  }

  // F_{rung+1} from F_rung and the likelihood of the key on the rung.
  template <class Team>
  void raise(Team, int rung, const Real* like) {
    Real low_like[kLowBits];
    pad(like, low_like);
    each_block(rung + 1, [&]<int kSize>(Size<kSize>, uint32_t high) {
      raise_through_high<kSize>(high, like + kLowBits);
      if constexpr (kSize > 0) raise_through_low<kSize>(high, low_like);
    });
  }

  // U(v) = sum over the subsets of a level that lack v.
  template <class Team>
  void unused(Team, int level, Real* sums) {
    const Real zero = Number<Real>::from(0.0);
    Vector low_sums[kLow.slots / kLanes];
    std::fill(low_sums, low_sums + kLow.slots / kLanes, broadcast(zero));
    std::fill(sums, sums + symbols_, zero);
    std::fill(per_block_, per_block_ + blocks_, zero);
    each_block(level, [&]<int kSize>(Size<kSize>, uint32_t high) {
      const Vector* block = reinterpret_cast<const Vector*>(at<kSize>(level_, high));
      Vector* low_sum = low_sums + kLow.offset[kSize] / kLanes;
      Vector total = broadcast(zero);
      for (int i = 0; i < vectors<kSize>(); ++i) {
        low_sum[i] += block[i];
        total += block[i];
      }
      per_block_[high] = lane_sum(total);
    });
    const Real* low_sum = reinterpret_cast<const Real*>(low_sums);
    each_low_subset([&](int slot, int v) { sums[v] += low_sum[slot]; });
    // Folding the upper half onto the lower removes a symbol: all sums for one pass over the
    // blocks.
    for (int v = symbols_ - 1; v >= kLowBits; --v) {
      const uint32_t half = 1u << (v - kLowBits);
      for (uint32_t i = 0; i < half; ++i) sums[v] += per_block_[i];
      for (uint32_t i = 0; i < half; ++i) per_block_[i] += per_block_[i + half];
    }
  }

  template <class Team>
  void unused_adjoint(Team, int level, const Real* d_sums) {
    const Real zero = Number<Real>::from(0.0);
    Real d_low[kLow.slots];
    std::fill(d_low, d_low + kLow.slots, zero);
    each_low_subset([&](int slot, int v) { d_low[slot] += d_sums[v]; });
    per_block_[0] = zero;
    for (int v = kLowBits; v < symbols_; ++v) {
      const uint32_t half = 1u << (v - kLowBits);
      for (uint32_t i = 0; i < half; ++i) per_block_[i + half] = per_block_[i];
      for (uint32_t i = 0; i < half; ++i) per_block_[i] += d_sums[v];
    }
    each_block(level, [&]<int kSize>(Size<kSize>, uint32_t high) {
      const Real d_high = per_block_[high];
      Real* adjoint = at<kSize>(adjoint_, high);
      for (int i = 0; i < kLow.count[kSize]; ++i) {
        adjoint[i] += d_high + d_low[kLow.offset[kSize] + i];
      }
    });
  }

  template <class Team>
  void clear_adjoint(Team, int level) {
    each_block(level, [&]<int kSize>(Size<kSize>, uint32_t high) {
      Real* adjoint = at<kSize>(adjoint_, high);
      std::fill(adjoint, adjoint + kLow.count[kSize], Number<Real>::from(0.0));
    });
  }

  // The adjoint of raise: hands the adjoint of level rung + 1 down, and writes that of like.
  template <class Team>
  void lower(Team, int rung, const Real* like, Real* d_like) {
    const Real zero = Number<Real>::from(0.0);
    Real low_like[kLowBits], d_low_like[kLowBits];
    pad(like, low_like);
    std::fill(d_low_like, d_low_like + kLowBits, zero);
    std::fill(d_like, d_like + symbols_, zero);
    each_block(rung + 1, [&]<int kSize>(Size<kSize>, uint32_t high) {
      lower_through_high<kSize>(high, like + kLowBits, d_like + kLowBits);
      if constexpr (kSize > 0) lower_through_low<kSize>(high, low_like, d_low_like);
    });
    std::copy(d_low_like, d_low_like + low_symbols_, d_like);
  }

 private:
  template <int kSize>
  struct Size {};

  template <int kSize>
  static constexpr int vectors() {
    return (kLow.offset[kSize + 1] - kLow.offset[kSize]) / kLanes;
  }

  static Vector broadcast(Real x) {
    if constexpr (kLanes == 1) {
      return x;
    } else {
      return Vector{} + x;
    }
  }

  static Real lane_sum(const Vector& vector) {
    const Real* lanes = reinterpret_cast<const Real*>(&vector);
    Real sum = lanes[0];
    for (int i = 1; i < kLanes; ++i) sum += lanes[i];
    return sum;
  }

  template <int kSize>
  static Real* at(Real* table, uint32_t high) {
    return table + size_t{high} * kLow.slots + kLow.offset[kSize];
  }

  // The size of a block's class is a constant in the loops over it: they unroll and stay in
  // registers.
  template <class Visit>
  void each_block(int level, Visit visit) const {
    for (uint32_t high = 0; high < blocks_; ++high) {
      switch (level - __builtin_popcount(high)) {
        case 0: visit(Size<0>{}, high); break;
        case 1: visit(Size<1>{}, high); break;
        case 2: visit(Size<2>{}, high); break;
        case 3: visit(Size<3>{}, high); break;
        case 4: visit(Size<4>{}, high); break;
        case 5: visit(Size<5>{}, high); break;
        case 6: visit(Size<6>{}, high); break;
        default: break;
      }
    }
  }

  // Every low subset with every low symbol that it lacks.
  template <class Visit>
  void each_low_subset(Visit visit) const {
    for (int size = 0; size <= kLowBits; ++size) {
      for (int slot = kLow.offset[size]; slot < kLow.offset[size] + kLow.count[size]; ++slot) {
        for (int v = 0; v < low_symbols_; ++v) {
          if (!(kLow.mask[slot] >> v & 1)) visit(slot, v);
        }
      }
    }
  }

  void pad(const Real* like, Real* low_like) const {
    for (int v = 0; v < kLowBits; ++v) {
      low_like[v] = v < low_symbols_ ? like[v] : Number<Real>::from(0.0);
    }
  }

  template <int kSize>
  void raise_through_high(uint32_t high, const Real* like) {
    constexpr int kVectors = vectors<kSize>();
    Vector sum[kVectors] = {};
    for (uint32_t rest = high; rest != 0; rest &= rest - 1) {
      const int bit = __builtin_ctz(rest);
      const Vector* from = reinterpret_cast<const Vector*>(at<kSize>(level_, high & ~(1u << bit)));
      for (int i = 0; i < kVectors; ++i) sum[i] += from[i] * like[bit];
    }
    Vector* to = reinterpret_cast<Vector*>(at<kSize>(level_, high));
    for (int i = 0; i < kVectors; ++i) to[i] = sum[i];
  }

  template <int kSize>
  void raise_through_low(uint32_t high, const Real* low_like) {
    const Real* from = at<kSize - 1>(level_, high);
    Real* to = at<kSize>(level_, high);
#pragma GCC unroll 20
    for (int i = 0; i < kLow.count[kSize]; ++i) {
      Real sum = to[i];
#pragma GCC unroll 6
      for (int k = i * kSize; k < (i + 1) * kSize; ++k) {
        sum += from[kLow.below[kSize][k]] * low_like[kLow.symbol[kSize][k]];
      }
      to[i] = sum;
    }
  }

  template <int kSize>
  void lower_through_high(uint32_t high, const Real* like, Real* d_like) {
    constexpr int kVectors = vectors<kSize>();
    const Vector* adjoint = reinterpret_cast<const Vector*>(at<kSize>(adjoint_, high));
    for (uint32_t rest = high; rest != 0; rest &= rest - 1) {
      const int bit = __builtin_ctz(rest);
      const uint32_t smaller = high & ~(1u << bit);
      const Vector* from = reinterpret_cast<const Vector*>(at<kSize>(level_, smaller));
      Vector* d_from = reinterpret_cast<Vector*>(at<kSize>(adjoint_, smaller));
      Vector sum = {};
      for (int i = 0; i < kVectors; ++i) {
        sum += adjoint[i] * from[i];
        d_from[i] += adjoint[i] * like[bit];
      }
      d_like[bit] += lane_sum(sum);
    }
  }

  template <int kSize>
  void lower_through_low(uint32_t high, const Real* low_like, Real* d_low_like) {
    const Real* adjoint = at<kSize>(adjoint_, high);
    const Real* from = at<kSize - 1>(level_, high);
    Real* d_from = at<kSize - 1>(adjoint_, high);
#pragma GCC unroll 20
    for (int i = 0; i < kLow.count[kSize]; ++i) {
#pragma GCC unroll 6
      for (int k = i * kSize; k < (i + 1) * kSize; ++k) {
        const int slot = kLow.below[kSize][k], v = kLow.symbol[kSize][k];
        d_low_like[v] += adjoint[i] * from[slot];
        d_from[slot] += adjoint[i] * low_like[v];
      }
    }
  }

  int symbols_;
  int low_symbols_;
  uint32_t blocks_;
  Real* level_;
  Real* adjoint_;
  Real* per_block_;
};

// Walks sequences begin..end. table holds the zeros that BlockedTable asks for;
// make_sink(b) gives the sink of a sequence; report(b, fault, sink) is told of faults.
template <class Real, class MakeSink, class Report>
void noisy_sequences(int64_t begin, int64_t end, const StepView& steps, int symbols,
                     const double* channel, Real* table, bool adjoints, MakeSink make_sink,
                     Report report) {
  const BlockedTable<Real> levels(symbols, table, adjoints);
  std::vector<char> memory(LadderScratch<Real>::bytes(symbols));
  const LadderScratch<Real> scratch(memory.data(), symbols);
  for (int64_t b = begin; b < end; ++b) {
    const StepView view = steps.row(b);
    Ladder<Real, SerialTeam, BlockedTable<Real>, StepView> ladder(SerialTeam{}, levels, scratch,
                                                                  view, channel, symbols);
    auto sink = make_sink(b);
    const int64_t fault = ladder.walk(view.length, sink);
    if (fault != kNoFault) report(b, fault, sink);
  }
}

}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt
