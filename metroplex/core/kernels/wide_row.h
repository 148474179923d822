// For CPU kernels: a row of parameters in the arithmetic type, converted once per call instead of once per row of
// data.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/half.h"

namespace metroplex::kernels {

template <class T>
class WideRow {
 public:
  // Converts row [width], plus 1 with `one_plus`; null stays null. A row that is already wide is not copied.
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

}  // namespace metroplex::kernels
