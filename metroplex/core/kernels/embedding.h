// Gathers rows of a table by index, and adds gradients back into the table. Element types as in half.h.
#pragma once

#include <cstdint>

#include "kernels/half.h"

struct CUstream_st;

namespace metroplex::kernels {

// Indices outside [0, rows) give a row of zeros and get no gradient.
struct TableShape {
  int64_t rows = 0, width = 0, count = 0;  // count: number of indices
};

// out[i] = table[indices[i]]; with `add`, out[i] += table[indices[i]].
template <class T>
void gather_rows(const T* table, const int64_t* indices, T* out, bool add, const TableShape& shape);
// table[indices[i]] += dout[i], in the order of i. Dout equals Table, or is half if Table is float.
template <class Table, class Dout>
void scatter_add_rows(Table* table, const int64_t* indices, const Dout* dout, const TableShape& shape);

// GPU versions, enqueued on `stream`; all pointers are device pointers. They throw base::Error("cuda", ...) if the
// launch fails. scatter_add_rows_cuda requires sorted indices; `order` has their positions before the sort. With a
// stable sort it gives the bits of the CPU version if no index occurs more than 32 times. Otherwise it sums the
// rows in the wide type, in a different fixed order, and rounds the table once.
template <class T>
void gather_rows_cuda(const T* table, const int64_t* indices, T* out, bool add, const TableShape& shape,
                      CUstream_st* stream);
struct SortedIndices {
  const int64_t *indices = nullptr, *order = nullptr;  // [count]
};
template <class Table, class Dout>
void scatter_add_rows_cuda(Table* table, const SortedIndices& sorted, const Dout* dout, const TableShape& shape,
                           CUstream_st* stream);

}  // namespace metroplex::kernels
