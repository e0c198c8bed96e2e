// Hands out pieces of one scratch buffer.
#pragma once

#include <cstdint>

namespace bwt {

constexpr int64_t kLineBytes = 64;  // of a cache line

// Pieces begin at cache lines. Without memory it only counts the bytes.
class Arena {
 public:
  explicit Arena(void* memory) : begin_(reinterpret_cast<uintptr_t>(memory)), next_(begin_) {}

  template <class T>
  T* take(int64_t count) {
    next_ = (next_ + kLineBytes - 1) / kLineBytes * kLineBytes;
    T* piece = reinterpret_cast<T*>(next_);
    next_ += count * sizeof(T);
    return piece;
  }
  int64_t bytes() const { return next_ - begin_ + kLineBytes; }

 private:
  uintptr_t begin_;
  uintptr_t next_;
};

}  // namespace bwt
