#include <ATen/Parallel.h>

#include <algorithm>

#include "kernels/embedding.h"

#pragma GCC optimize("O3")

namespace metroplex::kernels {

template <class T>
void gather_rows(const T* table, const int64_t* indices, T* out, bool add, const TableShape& shape) {
  at::parallel_for(0, shape.count, std::max<int64_t>(1, 32768 / std::max<int64_t>(1, shape.width)),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i) {
                       const bool here = indices[i] >= 0 && indices[i] < shape.rows;
                       const T* __restrict row = table + (here ? indices[i] * shape.width : 0);
                       T* __restrict target = out + i * shape.width;
                       if (here && add) {
                         for (int64_t c = 0; c < shape.width; ++c)
                           target[c] = store<T>(load(target[c]) + load(row[c]));
                       } else if (here) {
                         std::copy(row, row + shape.width, target);
                       } else if (!add) {
                         std::fill(target, target + shape.width, T{});
                       }
                     }
                   });
}

// Threads split the columns, so that equal indices are added in a fixed order.
template <class Table, class Dout>
void scatter_add_rows(Table* table, const int64_t* indices, const Dout* dout, const TableShape& shape) {
  at::parallel_for(0, shape.width, std::max<int64_t>(64, 65536 / std::max<int64_t>(1, shape.count)),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = 0; i < shape.count; ++i) {
                       if (indices[i] < 0 || indices[i] >= shape.rows) continue;
                       Table* __restrict target = table + indices[i] * shape.width;
                       const Dout* __restrict row = dout + i * shape.width;
                       for (int64_t c = begin; c < end; ++c) target[c] = store<Table>(load(target[c]) + load(row[c]));
                     }
                   });
}

#define MPX_GATHER(T) template void gather_rows<T>(const T*, const int64_t*, T*, bool, const TableShape&)
#define MPX_SCATTER(Dout, Table) \
  template void scatter_add_rows<Table, Dout>(Table*, const int64_t*, const Dout*, const TableShape&)
MPX_FOR_ELEMENTS(MPX_GATHER);
MPX_FOR_ELEMENT_PAIRS(MPX_SCATTER);

}  // namespace metroplex::kernels
