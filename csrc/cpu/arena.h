// Hands out pieces of one scratch buffer.
#pragma once

#include <cstdint>

namespace bwt {

// Pieces begin at cache lines. Without memory it only counts the bytes.
class Arena {
 public:
  explicit Arena(void* memory) : begin_(reinterpret_cast<uintptr_t>(memory)), next_(begin_) {}

  template <class T>
  T* take(int64_t count) {
    next_ = (next_ + kLine - 1) / kLine * kLine;
    T* piece = reinterpret_cast<T*>(next_);
    next_ += count * sizeof(T);
    return piece;
  }
  int64_t bytes() const { return next_ - begin_ + kLine; }

 private:
  static constexpr uintptr_t kLine = 64;
  uintptr_t begin_;
  uintptr_t next_;
};

}  // namespace bwt
