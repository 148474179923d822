// Rows of a table by index, and the gradient back into the table. T is float or double.
#pragma once

#include <cstdint>

namespace metroplex::cuda::kernels {

// Indices outside [0, rows) stand for a row of zeros that takes no gradient.
struct TableShape {
  int64_t rows = 0, width = 0, count = 0;  // count: how many indices
};

// out[i] = table[indices[i]], or out[i] += with `add`.
template <class T>
void gather_rows(const T* table, const int64_t* indices, T* out, bool add, const TableShape& shape);
// table[indices[i]] += dout[i], in the order of i.
template <class T>
void scatter_add_rows(T* table, const int64_t* indices, const T* dout, const TableShape& shape);

}  // namespace metroplex::cuda::kernels
