// The arguments of the CPU kernels of bijection_posterior. The algorithm for noisy observations is
// in host_device/bijection_posterior.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

namespace bwt {

// A team of one, for the loops of host_device/bijection_posterior.
struct SerialTeam {
  template <class Body>
  void each(int count, Body body) const {
    for (int i = 0; i < count; ++i) body(i);
  }
  template <class Body>
  void one(Body body) const {
    body();
  }
  void sync() const {}
};

// The ids of a batch as they lie in a tensor: int32 or int64, any strides.
struct IdView {
  const char* data;
  bool wide;  // int64
  int64_t row_bytes, column_bytes;

  // Ids that int32 cannot hold stay out of range.
  int at(int64_t offset) const {
    const char* address = data + offset;
    if (!wide) return *reinterpret_cast<const int32_t*>(address);
    const int64_t id = *reinterpret_cast<const int64_t*>(address);
    return id == static_cast<int32_t>(id) ? static_cast<int32_t>(id) : -1;
  }
};

// The steps of one sequence.
struct StepView {
  IdView keys, values;
  int64_t length;

  int key(int64_t t) const { return keys.at(t * keys.column_bytes); }
  int value(int64_t t) const { return values.at(t * values.column_bytes); }

  StepView row(int64_t b) const {
    StepView view = *this;
    view.keys.data += b * keys.row_bytes;
    view.values.data += b * values.row_bytes;
    return view;
  }
};

// What a noiseless row is made of: a known value, or equal shares of the values not used before.
template <class Out>
struct NoiselessStep {
  Out known;  // the value of a known key, else -1
  Out share;  // of each unused value; 0 for a known key
};

// Sets of this many symbols are words.
constexpr int kWordBits = 64;

// What a sequence of distinct keys consists of beside its values.
template <class Out>
struct DistinctTables {
  std::vector<Out> share;                  // [K]
  std::vector<Out> shares;                 // [K * V], of each entry of its rows
  std::vector<int32_t> columns;            // [K * V]
  std::vector<Out> entropy, log_evidence;  // [K]
};

template <class Out>
struct CountTables {
  // What a count n of unused values implies, for n = 0..V.
  std::vector<Out> share, log2_count, log_evidence;
  std::optional<DistinctTables<Out>> distinct;  // if keys can be distinct and words spare a bit

  CountTables(int symbols, int64_t length)
      : share(symbols + 1),
        log2_count(symbols + 1),
        log_evidence(symbols + 1) {
    double log_falling = 0.0;  // log(n! / V!)
    for (int n = symbols; n > 0; --n) {
      share[n] = static_cast<Out>(1.0 / n);
      log2_count[n] = static_cast<Out>(std::log2(n));
      log_evidence[n] = static_cast<Out>(log_falling);
      log_falling -= std::log(n);
    }
    log_evidence[0] = static_cast<Out>(log_falling);
    if (symbols < kWordBits && length <= symbols) tabulate_distinct(symbols, length);
  }

 private:
  void tabulate_distinct(int symbols, int64_t length) {
    const int64_t entries = length * symbols;
    distinct = DistinctTables<Out>{std::vector<Out>(length), std::vector<Out>(entries),
                                   std::vector<int32_t>(entries), std::vector<Out>(length),
                                   std::vector<Out>(length)};
    for (int64_t t = 0, i = 0; t < length; ++t) {
      const int64_t unused = symbols - t;
      distinct->share[t] = share[unused];
      distinct->entropy[t] = log2_count[unused];
      distinct->log_evidence[t] = log_evidence[unused - 1];
      for (int v = 0; v < symbols; ++v, ++i) {
        distinct->shares[i] = share[unused];
        distinct->columns[i] = v;
      }
    }
  }
};

}  // namespace bwt
