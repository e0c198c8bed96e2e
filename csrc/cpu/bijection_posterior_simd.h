// Included once per instruction set by foreach_simd.h; see bijection_posterior.cpp for the types.

namespace bwt {
namespace BWT_SIMD {
namespace {  // names of one kernel file must not meet those of another

template <class Number>
struct Lanes {
  static constexpr int kCount = BWT_SIMD_BYTES / sizeof(Number);
  typedef Number Vector __attribute__((vector_size(BWT_SIMD_BYTES), aligned(sizeof(Number))));
};

template <>
struct Lanes<Wide> {
  static constexpr int kCount = 1;
  using Vector = Wide;
};

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
                     const Channel& channel, Real* table, bool adjoints, MakeSink make_sink,
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

// Which keys and values the current sequence has shown. Entries bear the number of their sequence,
// so that forgetting costs nothing.
class Seen {
 public:
  explicit Seen(int symbols) : key_seen_(symbols), value_seen_(symbols), value_of_(symbols) {}
  void forget() { ++sequence_; }
  int value_of(int64_t key) const { return key_seen_[key] == sequence_ ? value_of_[key] : -1; }
  bool has_value(int64_t value) const { return value_seen_[value] == sequence_; }
  void learn(int64_t key, int64_t value) {
    key_seen_[key] = value_seen_[value] = sequence_;
    value_of_[key] = static_cast<int32_t>(value);
  }

 private:
  int64_t sequence_ = 0;
  std::vector<int64_t> key_seen_, value_seen_;
  std::vector<int32_t> value_of_;
};

// Loops of vectors: for a short row a call of memset or memcpy costs more than the row.
template <class Out>
void fill(Out* row, int count, Out value) {
  constexpr int kLanes = Lanes<Out>::kCount;
  using Vector = typename Lanes<Out>::Vector;
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) *reinterpret_cast<Vector*>(row + i) = Vector{} + value;
  for (; i < count; ++i) row[i] = value;
}

template <class Out>
void copy(const Out* from, Out* to, int64_t count) {
  constexpr int kLanes = Lanes<Out>::kCount;
  using Vector = typename Lanes<Out>::Vector;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    *reinterpret_cast<Vector*>(to + i) = *reinterpret_cast<const Vector*>(from + i);
  }
  for (; i < count; ++i) to[i] = from[i];
}

// Ids of type Id in the rows of a tensor.
template <class Id>
struct IdRow {
  const Id* data;
  int64_t stride;

  explicit IdRow(const IdView& view)
      : data(reinterpret_cast<const Id*>(view.data)),
        stride(view.column_bytes / static_cast<int64_t>(sizeof(Id))) {}
  Id operator[](int64_t t) const { return data[t * stride]; }
};

constexpr int kBits = 64;

// First pass over a sequence: its steps, the step at which each value was first used, entropies and
// evidence. Steps are numbers of type Out, so that rows are written by comparing vectors of one
// type.
template <class Id, class Out>
int64_t scan_noiseless(const StepView& view, int symbols, Seen& seen,
                       const CountTables<Out>& tables, NoiselessStep<Out>* steps, Out* used_at,
                       const RowWriter<Out>& out) {
  const IdRow<Id> keys(view.keys), values(view.values);
  const uint64_t limit = symbols;
  fill(used_at, symbols, std::numeric_limits<Out>::infinity());
  seen.forget();
  int unused = symbols;
  for (int64_t t = 0; t < view.length; ++t) {
    const Id key = keys[t], value = values[t];
    if (static_cast<uint64_t>(key) >= limit) return encode_fault(t, Fault::kKeyRange);
    const int known = seen.value_of(key);
    const bool fresh = known < 0;
    const int sharing = fresh ? unused : 0;
    steps[t] = {static_cast<Out>(known), tables.share[sharing]};
    out.entropy[t] = tables.log2_count[sharing];
    if (static_cast<uint64_t>(value) >= limit) return encode_fault(t, Fault::kValueRange);
    if (fresh ? seen.has_value(value) : known != static_cast<int>(value)) {
      return encode_fault(t, Fault::kContradiction);
    }
    seen.learn(key, value);
    if (fresh) used_at[value] = static_cast<Out>(t);
    unused -= fresh;
    out.log_evidence[t] = tables.log_evidence[unused];
  }
  return kNoFault;
}

// The same for the common case of all keys distinct, where only the values differ between
// sequences. Returns false, for the scan above to decide, if anything is repeated or wrong.
template <class Id, class Out>
bool scan_distinct(const StepView& view, int symbols, const CountTables<Out>& tables, Out* used_at,
                   const RowWriter<Out>& out) {
  if (symbols > kBits || view.length > symbols) return false;
  const IdRow<Id> keys(view.keys), values(view.values);
  const uint64_t limit = symbols;
  uint64_t seen_keys = 0, seen_values = 0;
  bool outside = false;
  fill(used_at, symbols, std::numeric_limits<Out>::infinity());
  for (int64_t t = 0; t < view.length; ++t) {
    const uint64_t key = keys[t], value = values[t];
    outside |= (key >= limit) | (value >= limit);
    seen_keys |= uint64_t{1} << (key % kBits);
    seen_values |= uint64_t{1} << (value % kBits);
    used_at[value % kBits] = static_cast<Out>(t);
  }
  if (outside || __builtin_popcountll(seen_keys) != view.length ||
      __builtin_popcountll(seen_values) != view.length) {
    return false;
  }
  copy(tables.fresh_entropy.data(), out.entropy, view.length);
  copy(tables.fresh_evidence.data(), out.log_evidence, view.length);
  return true;
}

// Writes rows of kVectors vectors, the last of which overlaps the one before: no tail. Nothing
// branches on the data, for whether a key is new cannot be predicted.
template <int kVectors, class Out>
void write_rows(int64_t rows, int symbols, const NoiselessStep<Out>* steps, const Out* used_at,
                Out* row) {
  constexpr int kLanes = Lanes<Out>::kCount;
  using Vector = typename Lanes<Out>::Vector;
  const Vector one = Vector{} + Out(1);
  Vector used[kVectors], value[kVectors];
  int first[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    first[i] = i + 1 < kVectors ? i * kLanes : symbols - kLanes;
    for (int lane = 0; lane < kLanes; ++lane) {
      used[i][lane] = used_at[first[i] + lane];
      value[i][lane] = static_cast<Out>(first[i] + lane);
    }
  }
  for (int64_t t = 0; t < rows; ++t, row += symbols) {
    const Vector share = Vector{} + steps[t].share;
    const Vector known = Vector{} + steps[t].known;
    const Vector step = Vector{} + static_cast<Out>(t);
    for (int i = 0; i < kVectors; ++i) {
      const Vector free = used[i] >= step ? share : Vector{};
      *reinterpret_cast<Vector*>(row + first[i]) = value[i] == known ? one : free;
    }
  }
}

// The same for rows that are shorter than a vector or too long for the registers.
template <class Out>
void write_rows_in_memory(int64_t rows, int symbols, const NoiselessStep<Out>* steps,
                          const Out* used_at, Out* row) {
  for (int64_t t = 0; t < rows; ++t, row += symbols) {
    const Out step = static_cast<Out>(t), share = steps[t].share;
    for (int v = 0; v < symbols; ++v) row[v] = used_at[v] >= step ? share : Out(0);
    if (steps[t].known >= 0) row[static_cast<int>(steps[t].known)] = Out(1);
  }
}

template <class Out>
auto row_writer_for(int symbols) {
  constexpr int kLanes = Lanes<Out>::kCount;
  if (symbols < kLanes) return write_rows_in_memory<Out>;
  switch ((symbols + kLanes - 1) / kLanes) {
    case 1: return write_rows<1, Out>;
    case 2: return write_rows<2, Out>;
    case 3: return write_rows<3, Out>;
    case 4: return write_rows<4, Out>;
    case 5: return write_rows<5, Out>;
    default: return write_rows_in_memory<Out>;
  }
}

template <class Id, class Out, class Report>
void noiseless_sequences(int64_t begin, int64_t end, const StepView& batch, int symbols,
                         const CountTables<Out>& tables, const RowWriter<Out>& writer,
                         Report report) {
  const auto write = row_writer_for<Out>(symbols);
  Seen seen(symbols);
  std::vector<Out> used_at(std::max(symbols, kBits));
  std::vector<NoiselessStep<Out>> steps(batch.length);
  for (int64_t b = begin; b < end; ++b) {
    const StepView view = batch.row(b);
    RowWriter<Out> out = writer.at(b, batch.length, symbols);
    if (scan_distinct<Id>(view, symbols, tables, used_at.data(), out)) {
      write(batch.length, symbols, tables.fresh.data(), used_at.data(), out.posterior);
      continue;
    }
    const int64_t fault =
        scan_noiseless<Id>(view, symbols, seen, tables, steps.data(), used_at.data(), out);
    const int64_t rows = fault == kNoFault ? batch.length : out.rows_before(fault);
    write(rows, symbols, steps.data(), used_at.data(), out.posterior);
    if (fault != kNoFault) report(b, fault, out);
  }
}

}  // namespace
}  // namespace BWT_SIMD
}  // namespace bwt
