// Rows of a table by index, and the gradient back into the table. Element types as in half.h.
#pragma once

#include <cstdint>

#include "cuda/kernels/half.h"

namespace metroplex::cuda::kernels {

// Indices outside [0, rows) stand for a row of zeros that takes no gradient.
struct TableShape {
  int64_t rows = 0, width = 0, count = 0;  // count: how many indices
};

// out[i] = table[indices[i]], or out[i] += with `add`.
template <class T>
void gather_rows(const T* table, const int64_t* indices, T* out, bool add, const TableShape& shape);
// table[indices[i]] += dout[i], in the order of i. Dout is as Table, or half where Table is float.
template <class Table, class Dout>
void scatter_add_rows(Table* table, const int64_t* indices, const Dout* dout, const TableShape& shape);

}  // namespace metroplex::cuda::kernels
