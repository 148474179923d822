// For CPU kernels: a row of parameters in the type of arithmetic, made once a call and not at every row that it
// meets.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/kernels/half.h"

namespace metroplex::cuda::kernels {

template <class T>
class WideRow {
 public:
  // Of row [width], or of null: null. `one_plus`: of its numbers plus 1. What is wide already is not copied.
  WideRow(const T* row, int64_t width, bool one_plus = false) {
    if (row == nullptr) return;
    if constexpr (!kIsHalf<T>) data_ = row;
    if (!kIsHalf<T> && !one_plus) return;
    values_.resize(static_cast<size_t>(width));
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = one_plus ? load(row[i]) + 1 : load(row[i]);
    data_ = values_.data();
  }
  WideRow(const WideRow&) = delete;
  WideRow& operator=(const WideRow&) = delete;

  const Wide<T>* data() const { return data_; }

 private:
  std::vector<Wide<T>> values_;
  const Wide<T>* data_ = nullptr;
};

}  // namespace metroplex::cuda::kernels
