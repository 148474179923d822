#include "kernels/embedding.h"
#include "kernels/launch.h"
#include "kernels/wide_access.h"

namespace metroplex::kernels {
namespace {

template <int64_t count, class T>
__device__ void copy(const T* from, T* to) {
  if constexpr (count == 1) {
    *to = from == nullptr ? T{} : *from;
  } else {
    store_pack(to, from == nullptr ? Pack<T>{} : load_pack(from));
  }
}

template <int64_t count, class T>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const T* table, const int64_t* indices, T* out, bool add, TableShape shape) {
  const int64_t of_row = shape.width / count, items = shape.count * of_row, stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; item < items; item += stride) {
    const auto [row, pack] = divided(item, of_row);
    const int64_t index = indices[row];
    const bool here = index >= 0 && index < shape.rows;
    const T* const from = here ? table + index * shape.width + pack * count : nullptr;
    T* const to = out + item * count;
    if (!add) {
      copy<count>(from, to);
    } else if (here) {
      Elements<T, count> sum, more;
      sum.read(to);
      more.read(from);
      for (int64_t i = 0; i < count; ++i) sum.values[i] += more.values[i];
      sum.write(to);
    }
  }
}

// A block processes kLanes adjacent positions of the sorted indices and kColumns elements or packs of their rows. It
// sums the runs of equal indices that start there. Each table element is summed by this one block, in an order that
// depends only on the run's length.
constexpr int64_t kColumns = 8, kLanes = kThreads / kColumns;
constexpr int64_t kAhead = 4;  // loads in flight per thread

template <class Table, class Dout>
struct Scatter {
  Table* table;
  SortedIndices sorted;
  const Dout* dout;
  TableShape shape;
};

// Returns the first position of [begin, end) whose index is >= `index`, else end.
__device__ int64_t first_from(const int64_t* indices, int64_t index, int64_t begin, int64_t end) {
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (indices[middle] < index) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// A run is long if it has more than kLanes positions.
__device__ bool is_long(const SortedIndices& sorted, const TableShape& shape, int64_t begin) {
  return begin + kLanes < shape.count && sorted.indices[begin + kLanes] == sorted.indices[begin];
}
__device__ bool begins(const SortedIndices& sorted, int64_t at) {
  return at == 0 || sorted.indices[at - 1] != sorted.indices[at];
}

// Adds the short run that starts at `begin`, if any, row by row, like the CPU version.
template <int64_t count, class Table, class Dout>
__device__ void add_short_run(const Scatter<Table, Dout>& scatter, int64_t begin, int64_t column) {
  const int64_t index = scatter.sorted.indices[begin], width = scatter.shape.width;
  if (index < 0 || index >= scatter.shape.rows || !begins(scatter.sorted, begin) ||
      is_long(scatter.sorted, scatter.shape, begin))
    return;
  Table* const place = scatter.table + index * width + column;
  Elements<Table, count> sum;
  sum.read(place);
  for (int64_t at = begin; at < scatter.shape.count && scatter.sorted.indices[at] == index; ++at) {
    Elements<Dout, count> row;
    row.read(scatter.dout + scatter.sorted.order[at] * width + column);
    for (int64_t i = 0; i < count; ++i) sum.values[i] = load(store<Table>(sum.values[i] + row.values[i]));
  }
  sum.write(place);
}

struct Run {
  int64_t begin = 0, end = 0;
};
// Returns the long run that starts in [begin, begin + kLanes), the same in all threads. There is at most one, because
// it extends beyond that range.
__device__ Run long_run(const SortedIndices& sorted, const TableShape& shape, int64_t begin) {
  const int64_t next = begin + kLanes;
  if (next >= shape.count || sorted.indices[next] != sorted.indices[next - 1]) return {};
  const int64_t index = sorted.indices[next], first = first_from(sorted.indices, index, begin, next);
  if (index < 0 || index >= shape.rows || !begins(sorted, first) || !is_long(sorted, shape, first)) return {};
  return {first, first_from(sorted.indices, index + 1, first + kLanes, shape.count)};
}

// Lane l sums rows l, l + kLanes, l + 2 kLanes ... of the run in the wide type, and a tree sums the lanes. The table
// is rounded once. All threads of the block must call it.
template <int64_t count, class Table, class Dout>
__device__ void add_long_run(const Scatter<Table, Dout>& scatter, const Run& run, int64_t column) {
  using W = Wide<Table>;
  __shared__ W sums[count][kThreads];
  const unsigned t = threadIdx.x;
  const int64_t width = scatter.shape.width;
  const int64_t end = column < width ? run.end : run.begin;
  Elements<Dout, count> sum{};
  for (int64_t at = run.begin + t / kColumns; at < end; at += kAhead * kLanes) {
    Elements<Dout, count> rows[kAhead] = {};
    for (int64_t a = 0; a < kAhead; ++a) {
      const int64_t from = at + a * kLanes;
      if (from < end) rows[a].read(scatter.dout + scatter.sorted.order[from] * width + column);
    }
    for (int64_t a = 0; a < kAhead; ++a) {
      for (int64_t i = 0; i < count; ++i) sum.values[i] += rows[a].values[i];
    }
  }
  __syncthreads();  // waits until the sums of the previous run have been read
  for (int64_t i = 0; i < count; ++i) sums[i][t] = sum.values[i];
  for (unsigned half = kThreads / 2; half >= kColumns; half /= 2) {
    __syncthreads();
    for (int64_t i = 0; t < half && i < count; ++i) sums[i][t] += sums[i][t + half];
  }
  if (t >= kColumns || column >= width) return;
  Table* const place = scatter.table + scatter.sorted.indices[run.begin] * width + column;
  Elements<Table, count> total;
  total.read(place);
  for (int64_t i = 0; i < count; ++i) total.values[i] += sums[i][t];
  total.write(place);
}

constexpr int64_t count_tiles(int64_t size, int64_t tile) { return (size + tile - 1) / tile; }

template <int64_t count, class Table, class Dout>
__global__ void __launch_bounds__(kThreads) scatter_kernel(Scatter<Table, Dout> scatter) {
  const int64_t of_row = count_tiles(scatter.shape.width, kColumns * count),
                items = count_tiles(scatter.shape.count, kLanes) * of_row;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const auto [group, tile] = divided(item, of_row);
    const int64_t column = (tile * kColumns + threadIdx.x % kColumns) * count;
    const int64_t first = group * kLanes, mine = first + threadIdx.x / kColumns;
    if (column < scatter.shape.width && mine < scatter.shape.count) add_short_run<count>(scatter, mine, column);
    const Run run = long_run(scatter.sorted, scatter.shape, first);
    if (run.begin < run.end) add_long_run<count>(scatter, run, column);
  }
}

template <int64_t count, class Table, class Dout>
void launch_scatter(const Scatter<Table, Dout>& scatter, CUstream_st* stream) {
  const int64_t items = count_tiles(scatter.shape.width, kColumns * count) * count_tiles(scatter.shape.count, kLanes);
  launch_kernel("scatter_add_rows", scatter_kernel<count, Table, Dout>,
                Grid{blocks_for(items * kThreads), kThreads, 0, stream}, scatter);
}

}  // namespace

template <class T>
void gather_rows_cuda(const T* table, const int64_t* indices, T* out, bool add, const TableShape& shape,
                      CUstream_st* stream) {
  constexpr int64_t kPack = Pack<T>::kCount;
  const int64_t items = shape.count * shape.width;
  if (items == 0) return;
  if (shape.width % kPack == 0 && aligned_for_packs(table, out)) {
    launch_kernel("gather_rows", gather_kernel<kPack, T>, Grid{blocks_for(items / kPack), kThreads, 0, stream}, table,
                  indices, out, add, shape);
  } else {
    launch_kernel("gather_rows", gather_kernel<1, T>, Grid{blocks_for(items), kThreads, 0, stream}, table, indices,
                  out, add, shape);
  }
}

template <class Table, class Dout>
void scatter_add_rows_cuda(Table* table, const SortedIndices& sorted, const Dout* dout, const TableShape& shape,
                           CUstream_st* stream) {
  constexpr int64_t kPack = Pack<Dout>::kCount;  // a pack of Table has as many elements or fewer
  if (shape.count == 0 || shape.width == 0) return;
  const Scatter<Table, Dout> scatter{table, sorted, dout, shape};
  if (shape.width % kPack == 0 && aligned_for_packs(table, dout)) {
    launch_scatter<kPack>(scatter, stream);
  } else {
    launch_scatter<1>(scatter, stream);
  }
}

#define MPX_GATHER(T) \
  template void gather_rows_cuda<T>(const T*, const int64_t*, T*, bool, const TableShape&, CUstream_st*)
#define MPX_SCATTER(Dout, Table)                                                                                 \
  template void scatter_add_rows_cuda<Table, Dout>(Table*, const SortedIndices&, const Dout*, const TableShape&, \
                                                   CUstream_st*)
MPX_FOR_ELEMENTS(MPX_GATHER);
MPX_FOR_ELEMENT_PAIRS(MPX_SCATTER);

}  // namespace metroplex::kernels
