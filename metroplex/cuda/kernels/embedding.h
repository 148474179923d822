// Rows of a table by index, and the gradient back into the table. Element types as in half.h.
#pragma once

#include <cstdint>

#include "cuda/kernels/half.h"

struct CUstream_st;  // what cudaStream_t points to

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

// The same on a GPU, enqueued on `stream`; all pointers are of the device. base::Error("cuda", ...) when nothing was
// launched. scatter_add_rows_cuda wants the indices sorted, and `order`, where each of them stood before: a sort that
// keeps equal ones in their order gives the bits of the CPU twin where an index occurs 32 times at most. Of others it
// adds the rows up in the wide type, in an order of its own that is always the same, and rounds the table once.
template <class T>
void gather_rows_cuda(const T* table, const int64_t* indices, T* out, bool add, const TableShape& shape,
                      CUstream_st* stream);
struct SortedIndices {
  const int64_t *indices = nullptr, *order = nullptr;  // [count]
};
template <class Table, class Dout>
void scatter_add_rows_cuda(Table* table, const SortedIndices& sorted, const Dout* dout, const TableShape& shape,
                           CUstream_st* stream);

}  // namespace metroplex::cuda::kernels
