// For .cu files: the rows of a norm, for kernels that process a row further while it is in registers or in the cache.
#pragma once

#include "kernels/column_sums.h"
#include "kernels/launch.h"
#include "kernels/norm.h"
#include "kernels/wide_access.h"

namespace metroplex::kernels {

// Elements per thread and access if rows and arrays permit it: whole packs of both types.
template <class In, class Out>
constexpr int64_t kNormPack = Pack<In>::kCount < Pack<Out>::kCount ? Pack<Out>::kCount : Pack<In>::kCount;

// How threads share a row: a team of kLanes threads, a warp or a whole block, with kCount adjacent elements per
// thread and access. At most kPacks accesses per thread cover the row, and their elements stay in registers. If
// kPacks is 0, a thread makes any number of accesses and reads elements again at each use.
template <int64_t count, int packs, unsigned lanes>
struct RowPlan {
  static constexpr int64_t kCount = count;
  static constexpr int kPacks = packs;
  static constexpr unsigned kLanes = lanes, kTeams = kThreads / lanes;

  static __device__ unsigned lane() { return threadIdx.x % kLanes; }
  static __device__ unsigned team() { return threadIdx.x / kLanes; }
};

// Thread blocks per SM in backward: enough loads in flight to saturate memory, with few column sums spilled from
// registers.
template <class Plan, class In, class Out>
constexpr unsigned kNormBlocks = Plan::kPacks > 2    ? 2
                                 : Plan::kPacks == 2 ? 3
                                                     : 4;

template <class In, class Out>
bool in_packs(const NormForward<In, Out>& forward, const NormShape& shape) {
  return shape.width % kNormPack<In, Out> == 0 &&
         aligned_for_packs(forward.x, forward.weight, forward.bias, forward.out);
}
template <class In, class Out>
bool in_packs(const NormBackward<In, Out>& backward, const NormShape& shape) {
  return shape.width % kNormPack<In, Out> == 0 &&
         aligned_for_packs(backward.dy, backward.x, backward.weight, backward.add, backward.dx, backward.lines);
}

// Reads the weights of `count` adjacent columns, plus 1 with one_plus.
template <int64_t count, class T>
__device__ Elements<T, count> norm_weight(const T* from, const NormShape& shape) {
  Elements<T, count> weight;
  weight.read(from);
  if (shape.one_plus) {
    for (Wide<T>& value : weight.values) value += 1;
  }
  return weight;
}

// Calls each(i, column) for the columns of this thread; together the team covers the row. i is the index of the call,
// or 0 if the plan has no packs.
template <class Plan, class Each>
__device__ void for_columns(const NormShape& shape, const Each& each) {
  if constexpr (Plan::kPacks > 0) {
#pragma unroll
    for (int i = 0; i < Plan::kPacks; ++i) {
      const int64_t column = (i * Plan::kLanes + Plan::lane()) * Plan::kCount;
      if (column < shape.width) each(i, column);
    }
  } else {
    for (int64_t column = Plan::lane() * Plan::kCount; column < shape.width; column += Plan::kLanes * Plan::kCount)
      each(0, column);
  }
}

// Calls each(row) for the rows of this thread's team.
template <class Plan, class Each>
__device__ void for_rows(const NormShape& shape, const Each& each) {
  const int64_t step = int64_t{gridDim.x} * Plan::kTeams;
  for (int64_t row = int64_t{blockIdx.x} * Plan::kTeams + Plan::team(); row < shape.rows; row += step) each(row);
}

// This thread's elements of a row.
template <class T, class Plan>
class RowElements {
 public:
  // Rounds the elements that make(column) returns; they are not in memory. Requires packs.
  template <class Make>
  __device__ RowElements(const NormShape& shape, const Make& make) : row_(nullptr) {
    for_columns<Plan>(shape, [&](int i, int64_t column) {
      const Elements<T, kCount> values = make(column);
      for (int64_t k = 0; k < kCount; ++k) held_[i][k / kOfPack].values[k % kOfPack] = store<T>(values.values[k]);
    });
  }
  __device__ RowElements(const T* row, const NormShape& shape) : row_(row) {
    if constexpr (Plan::kPacks > 0) {
      for_columns<Plan>(shape, [&](int i, int64_t column) {
        for (int64_t part = 0; part < kParts; ++part) held_[i][part] = load_pack(row + column + part * kOfPack);
      });
    }
  }
  __device__ Elements<T, Plan::kCount> at(int i, int64_t column) const {
    Elements<T, kCount> values;
    if constexpr (Plan::kPacks > 0) {
      for (int64_t part = 0; part < kParts; ++part) unpack(held_[i][part], values.values + part * kOfPack);
    } else {
      values.read(row_ + column);
    }
    return values;
  }

 private:
  static constexpr int64_t kCount = Plan::kCount, kOfPack = Pack<T>::kCount,
                           kParts = Plan::kPacks > 0 ? kCount / kOfPack : 1;

  const T* row_;
  Pack<T> held_[Plan::kPacks > 0 ? Plan::kPacks : 1][kParts];
};

// Sums over the threads of a team; all of them must call it. `turn` alternates between two buffers: a call does
// not overwrite the values of the previous call, so one barrier suffices.
template <class Plan, class T, int n>
__device__ void team_sums(T (&sums)[n], unsigned& turn) {
  for (T& sum : sums) sum = warp_reduce(sum, Add());
  if constexpr (Plan::kTeams > 1) return;
  __shared__ T parts[2][n][kWarps];
  turn ^= 1;
  for (int i = 0; i < n && threadIdx.x % kWarp == 0; ++i) parts[turn][i][threadIdx.x / kWarp] = sums[i];
  __syncthreads();
  for (int i = 0; i < n; ++i) {
    sums[i] = parts[turn][i][0];
    for (unsigned warp = 1; warp < kWarps; ++warp) sums[i] += parts[turn][i][warp];
  }
}

template <class Plan, class In, class Out>
__device__ void norm_forward_row(const NormForward<In, Out>& forward, const RowElements<In, Plan>& x,
                                 const NormShape& shape, int64_t row, unsigned& turn) {
  using T = Wide<In>;
  constexpr int64_t count = Plan::kCount;
  Out* out = forward.out + row * shape.width;
  const T share = T(1) / static_cast<T>(shape.width);
  const auto row_sum = [&](const auto& term) {
    T sum[1] = {0};
    for_columns<Plan>(shape, [&](int i, int64_t column) {
      const Elements<In, count> values = x.at(i, column);
      for (int64_t l = 0; l < count; ++l) sum[0] += term(values.values[l]);
    });
    team_sums<Plan>(sum, turn);
    return sum[0];
  };
  const T mean = shape.rms ? T(0) : row_sum([](T value) { return value; }) * share;
  const T variance = row_sum([=](T value) { return (value - mean) * (value - mean); }) * share;
  const T rstd = T(1) / sqrt(variance + static_cast<T>(shape.epsilon));
  for_columns<Plan>(shape, [&](int i, int64_t column) {
    const Elements<In, count> values = x.at(i, column);
    const Elements<Out, count> weight = norm_weight<count>(forward.weight + column, shape);
    Elements<Out, count> to;
    for (int64_t l = 0; l < count; ++l) to.values[l] = (values.values[l] - mean) * rstd * weight.values[l];
    to.add(forward.bias != nullptr ? forward.bias + column : nullptr);
    to.write(out + column);
  });
  if (Plan::lane() == 0) {
    if (!shape.rms) forward.mean[row] = mean;
    forward.rstd[row] = rstd;
  }
}

// Adds to `count` adjacent sums.
template <class T, int64_t count>
__device__ void add_to_sums(T* sums, const T (&terms)[count]) {
  Elements<T, count> all;
  all.read(sums);
  for (int64_t l = 0; l < count; ++l) all.values[l] += terms[l];
  all.write(sums);
}

// Sums of dx, in shared memory or in the block's line. Each column belongs to one thread. Null if not required.
template <class T>
struct DxColumns {
  T* dx = nullptr;

  // Adds `values` as they are stored.
  template <class Element, int64_t count>
  __device__ void add_dx(int64_t column, const Elements<Element, count>& values) {
    if (dx == nullptr) return;
    T terms[count];
    for (int64_t l = 0; l < count; ++l) terms[l] = load(store<Element>(values.values[l]));
    add_to_sums(dx + column, terms);
  }
};

// Weight gradients of the rows of one team. Each column belongs to one thread. Its sums are in registers; without
// packs, they are in shared memory if they fit, otherwise in the block's line. dbias is null if not required.
template <class T, class Plan, bool held = (Plan::kPacks > 0)>
struct NormColumns : DxColumns<T> {
  static constexpr int64_t kCount = Plan::kCount;
  Elements<T, kCount> dweight[Plan::kPacks], dbias[Plan::kPacks];

  __device__ void add(int i, int64_t /*column*/, const T (&to_dweight)[kCount], const T (&to_dbias)[kCount]) {
    for (int64_t l = 0; l < kCount; ++l) dweight[i].values[l] += to_dweight[l];
    for (int64_t l = 0; l < kCount; ++l) dbias[i].values[l] += to_dbias[l];
  }
};
template <class T, class Plan>
struct NormColumns<T, Plan, false> : DxColumns<T> {
  static constexpr int64_t kCount = Plan::kCount;
  T *dweight, *dbias;

  __device__ void add(int /*i*/, int64_t column, const T (&to_dweight)[kCount], const T (&to_dbias)[kCount]) {
    add_to_sums(dweight + column, to_dweight);
    if (dbias != nullptr) add_to_sums(dbias + column, to_dbias);
  }
};

// Calls write(column, dx) with this thread's elements of dx.
template <class Plan, class In, class Out, class Write>
__device__ void norm_backward_row(const NormBackward<In, Out>& backward, const NormShape& shape, int64_t row,
                                  NormColumns<Wide<In>, Plan>& columns, unsigned& turn, const Write& write) {
  using T = Wide<In>;
  constexpr int64_t count = Plan::kCount;
  const int64_t begin = row * shape.width;
  const RowElements<In, Plan> x(backward.x + begin, shape);
  const RowElements<Out, Plan> gradients(backward.dy + begin, shape);
  const T mean = shape.rms ? T(0) : backward.mean[row], rstd = backward.rstd[row],
          share = T(1) / static_cast<T>(shape.width);
  // each(i, column, dy, x - mean, weight)
  const auto for_elements = [&](const auto& each) {
    for_columns<Plan>(shape, [&](int i, int64_t column) {
      Elements<In, count> centred = x.at(i, column);
      const Elements<Out, count> weight = norm_weight<count>(backward.weight + column, shape);
      for (T& value : centred.values) value -= mean;
      each(i, column, gradients.at(i, column).values, centred.values, weight.values);
    });
  };
  T sums[2] = {0, 0};  // sums of dy * weight and of dy * weight * (x - mean) * rstd
  for_elements([&](int i, int64_t column, const T(&dy)[count], const T(&centred)[count], const T(&weight)[count]) {
    T to_dweight[count];
    for (int64_t l = 0; l < count; ++l) {
      const T g = dy[l] * weight[l], normal = centred[l] * rstd;
      sums[0] += g;
      sums[1] += g * normal;
      to_dweight[l] = dy[l] * normal;
    }
    columns.add(i, column, to_dweight, dy);
  });
  team_sums<Plan>(sums, turn);
  const T sum = shape.rms ? T(0) : sums[0] * share, dot = sums[1] * share * rstd;
  for_elements(
      [&](int /*i*/, int64_t column, const T(&dy)[count], const T(&centred)[count], const T(&weight)[count]) {
        Elements<In, count> dx;
        for (int64_t l = 0; l < count; ++l) dx.values[l] = rstd * (dy[l] * weight[l] - sum - centred[l] * dot);
        if (backward.add != nullptr) {
          Elements<In, count> past;
          past.read(backward.add + begin + column);
          for (int64_t l = 0; l < count; ++l) dx.values[l] = load(store<In>(dx.values[l])) + past.values[l];
        }
        write(column, dx);
      });
}

template <class T>
struct NormLines {
  T* lines;
  bool shared;              // sums are in dynamic shared memory of norm_room_bytes
  bool with_bias, with_dx;  // as in NormBackward

  __device__ int64_t sums() const { return count_norm_sums(with_bias, with_dx); }
};

// Writes the sums of the block's teams, in shared memory [teams, width], to `line` [width], in the order of the
// teams.
template <class Plan, class T>
__device__ void sum_teams(const T* all, T* line, const NormShape& shape) {
  __syncthreads();
  for (int64_t column = threadIdx.x; column < shape.width; column += kThreads) {
    T sum = all[column];
    for (unsigned team = 1; team < Plan::kTeams; ++team) sum += all[team * shape.width + column];
    line[column] = sum;
  }
}

// The same for sums in registers.
template <class Plan, class T>
__device__ void write_team_sums(const Elements<T, Plan::kCount> (&sums)[Plan::kPacks], T* line,
                                const NormShape& shape) {
  if constexpr (Plan::kTeams == 1) {
    for_columns<Plan>(shape, [&](int i, int64_t column) { sums[i].write(line + column); });
  } else {
    T* const all = reinterpret_cast<T*>(dynamic_shared());  // [teams, width]
    __syncthreads();                                        // waits until the previous sums have been read
    for_columns<Plan>(shape,
                      [&](int i, int64_t column) { sums[i].write(all + Plan::team() * shape.width + column); });
    sum_teams<Plan>(all, line, shape);
  }
}

// Calls each_row(row, columns) for the rows of this thread block (one block per line), which its teams take in turn,
// and writes their weight gradients to the line.
template <class Plan, class T, class Row>
__device__ void norm_line(const NormLines<T>& to, const NormShape& shape, const Row& each_row) {
  constexpr Elements<T, Plan::kCount> kZeros{};
  T *const line = to.lines + int64_t{blockIdx.x} * to.sums() * shape.width, *sums = line;
  const int64_t of_dx = (to.sums() - 1) * shape.width;
  NormColumns<T, Plan> columns{};
  if constexpr (Plan::kPacks == 0) {
    if (to.shared) sums = reinterpret_cast<T*>(dynamic_shared());
    columns.dweight = sums;
    columns.dbias = to.with_bias ? sums + shape.width : nullptr;
    columns.dx = to.with_dx ? sums + of_dx : nullptr;
    for_columns<Plan>(shape, [&](int, int64_t column) {
      for (int64_t i = 0; i < to.sums(); ++i) kZeros.write(sums + i * shape.width + column);
    });
  } else if (to.with_dx) {
    columns.dx = reinterpret_cast<T*>(dynamic_shared()) + Plan::team() * shape.width;
    for_columns<Plan>(shape, [&](int, int64_t column) { kZeros.write(columns.dx + column); });
  }
  const int64_t begin = blockIdx.x * norm_rows_per_line(shape), most = begin + norm_rows_per_line(shape);
  const int64_t end = most < shape.rows ? most : shape.rows;
  for (int64_t row = begin + Plan::team(); row < end; row += Plan::kTeams) each_row(row, columns);
  if constexpr (Plan::kPacks > 0) {
    if (to.with_dx) sum_teams<Plan>(reinterpret_cast<const T*>(dynamic_shared()), line + of_dx, shape);
    write_team_sums<Plan>(columns.dweight, line, shape);
    if (to.with_bias) write_team_sums<Plan>(columns.dbias, line + shape.width, shape);
  } else if (to.shared) {
    for_columns<Plan>(shape, [&](int, int64_t column) {
      Elements<T, Plan::kCount> sum;
      for (int64_t i = 0; i < to.sums(); ++i) {
        sum.read(sums + i * shape.width + column);
        sum.write(line + i * shape.width + column);
      }
    });
  }
}

// Calls call(plan) with the RowPlan for rows of whole packs or of single elements.
template <class In, class Out, class Call>
void with_row_plan(bool in_packs, const NormShape& shape, const Call& call) {
  constexpr int64_t kPack = kNormPack<In, Out>;
  const auto by_packs = [&]<unsigned lanes>() {
    if (shape.width <= kPack * lanes) call(RowPlan<kPack, 1, lanes>());
    else if (shape.width <= 2 * kPack * lanes) call(RowPlan<kPack, 2, lanes>());
    else if (shape.width <= 3 * kPack * lanes) call(RowPlan<kPack, 3, lanes>());
    else call(RowPlan<kPack, 4, lanes>());
  };
  if (!in_packs) call(RowPlan<1, 0, kThreads>());
  else if (shape.width <= 4 * kPack * kWarp) by_packs.template operator()<kWarp>();
  else if (shape.width <= 4 * kPack * kThreads) by_packs.template operator()<kThreads>();
  else call(RowPlan<kPack, 0, kThreads>());
}

// Bytes of shared memory for the sums: of the teams, of dx, or without packs all of the block. 0 if registers hold
// them, or if they exceed the default limit of every GPU.
template <class Plan, class In, class Out>
unsigned norm_room_bytes(const NormShape& shape, const NormBackward<In, Out>& backward) {
  constexpr int64_t kMost = 40 * 1024;  // leaves space for block_reduce
  const int64_t row = shape.width * static_cast<int64_t>(sizeof(Wide<In>));
  if (Plan::kTeams > 1) return static_cast<unsigned>(Plan::kTeams * row);
  const int64_t bytes = (Plan::kPacks == 0 ? backward.sums() : backward.with_dx) * row;
  return bytes <= kMost ? static_cast<unsigned>(bytes) : 0;
}

}  // namespace metroplex::kernels
