// A thread block has a tile of queries and of keys in shared memory at a time, as many of both as fit: a power of two
// up to 32, so that a warp has a row of scores.
#include "cuda/kernels/blocked_attention.h"
#include "cuda/kernels/dropout_block.h"
#include "cuda/kernels/launch.h"

namespace metroplex::cuda::kernels {
namespace {

constexpr int kMostTile = 32, kRowsOfWarp = kMostTile / kWarps;
constexpr int64_t kRoom = 48 * 1024;  // bytes of shared memory that every GPU gives without asking

struct RowForm {
  int dim, width;  // elements of a row; the same, padded
};
// The numbers of a launch.
struct Tiling {
  int tile;       // rows of a tile
  RowForm qk, v;  // of q, k and their gradients; of v, out and theirs
  int64_t items;
};

template <class W>
__device__ W infinity() {
  return static_cast<W>(__builtin_huge_val());
}

// rows [tile][form.width] of W; rows from `count` on are 0.
template <class T>
__device__ void load_rows(const AttentionOperand<const T>& x, int64_t sample, int64_t head, int64_t first,
                          int64_t count, int tile, const RowForm& form, Wide<T>* to) {
  for (int i = threadIdx.x; i < tile * form.dim; i += kThreads) {
    const int row = i / form.dim, column = i - row * form.dim;
    to[row * form.width + column] = row < count ? load(x.at(sample, head, first + row)[column]) : Wide<T>(0);
  }
}
template <class W>
__device__ void clear_rows(int tile, const RowForm& form, W* rows) {
  for (int i = threadIdx.x; i < tile * form.width; i += kThreads) rows[i] = W(0);
}
template <class T>
__device__ void store_rows(const AttentionOperand<T>& x, int64_t sample, int64_t head, int64_t first, int64_t count,
                           const RowForm& form, const Wide<T>* from) {
  for (int i = threadIdx.x; i < static_cast<int>(count) * form.dim; i += kThreads) {
    const int row = i / form.dim, column = i - row * form.dim;
    x.at(sample, head, first + row)[column] = store<T>(from[row * form.width + column]);
  }
}

template <class W>
__device__ W dot(const W* a, const W* b, int n) {
  W sum = 0;
  for (int c = 0; c < n; ++c) sum += a[c] * b[c];
  return sum;
}

template <class W>
__device__ W scale_of(const AttentionShape& s) {
  return static_cast<W>(s.softmax_scale);
}

template <class W>
__device__ W dropout_factor(const AttentionShape& s, const DropoutFactor<W>& factor, int64_t sample, int64_t head,
                            int64_t query, int64_t key) {
  if (!(s.dropout.probability > 0)) return W(1);
  const DropoutRow row = dropout_row(s.dropout, (sample * s.heads + head) * s.queries + query);
  const int64_t element = row.start + (s.key_rows.chosen == nullptr ? key : s.key_rows.chosen[key]);
  const base::PhiloxBlock bits = base::philox4x32(s.dropout.key, static_cast<uint64_t>(element / 4), row.counter);
  return factor(bits, element % kPhiloxWords);
}

// Whether no query of the tile sees a key of it, where that is known without looking at each: all lie behind them, or
// all are out of their reach.
__device__ bool all_hidden(const AttentionShape& s, int64_t query, int64_t queries, int64_t key) {
  if (s.query_rows.chosen != nullptr || s.key_rows.chosen != nullptr) return false;
  return s.key_rows.place(key) > s.query_rows.place(query + queries - 1);
}
__device__ bool out_of_reach(const AttentionShape& s, int64_t query, int64_t key, int64_t keys) {
  if (s.query_rows.chosen != nullptr || s.key_rows.chosen != nullptr) return false;
  return s.query_rows.place(query) - s.key_rows.place(key + keys - 1) > s.reach;
}

template <class W>
__device__ W capped(const AttentionShape& s, W score) {
  if (!(s.softcap > 0)) return score;
  const W cap = static_cast<W>(s.softcap);
  return cap * tanh(score / cap);
}
// Its derivative, where it is `score`.
template <class W>
__device__ W cap_slope(const AttentionShape& s, W score) {
  if (!(s.softcap > 0)) return W(1);
  const W share = score / static_cast<W>(s.softcap);
  return W(1) - share * share;
}

__device__ int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Where the rows of a tile are.
struct TilePlace {
  int64_t sample, head, query, key;
  int queries, keys;
};

template <class W>
struct Running {
  W largest[kRowsOfWarp], total[kRowsOfWarp];  // of rows warp, warp + kWarps, ...
};

// scores [tile][tile + 1] become dropped exponentials; `shrink` [tile] is what the sums of before are worth.
template <class W>
__device__ void softmax_rows(const AttentionShape& s, const DropoutFactor<W>& factor, const Tiling& t,
                             const TilePlace& at, W* scores, W* shrink, Running<W>& rows) {
  const int lane = static_cast<int>(threadIdx.x % kWarp), warp = static_cast<int>(threadIdx.x / kWarp);
  for (int n = 0; n < kRowsOfWarp; ++n) {
    const int i = warp + n * static_cast<int>(kWarps);
    if (i >= at.queries) continue;
    W* const score = scores + i * (t.tile + 1) + lane;
    const bool seen = lane < at.keys && s.sees(at.sample, at.query + i, at.key + lane);
    const W x = seen ? capped(s, *score * scale_of<W>(s)) : -infinity<W>();
    const W most = Max()(rows.largest[n], warp_reduce(x, Max())), base = most == -infinity<W>() ? W(0) : most;
    const W p = x == -infinity<W>() ? W(0) : exp(x - base);
    const W less = rows.largest[n] == -infinity<W>() ? W(0) : exp(rows.largest[n] - base);
    rows.total[n] = rows.total[n] * less + warp_reduce(p, Add());
    rows.largest[n] = most;
    if (lane == 0) shrink[i] = less;
    if (lane < at.keys) {
      *score = p == W(0) ? p : p * dropout_factor(s, factor, at.sample, at.head, at.query + i, at.key + lane);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    attention_forward_kernel(AttentionForward<T> o, AttentionShape s, DropoutFactor<Wide<T>> factor, Tiling t) {
  using W = Wide<T>;
  const int rows = t.tile * t.qk.width, v_rows = t.tile * t.v.width;
  W *const q = reinterpret_cast<W*>(dynamic_shared()), *const k = q + rows, *const v = k + rows,
           *const sums = v + v_rows, *const scores = sums + v_rows, *const shrink = scores + t.tile * (t.tile + 1);
  const int64_t blocks = (s.queries + t.tile - 1) / t.tile, each = s.heads / s.groups;
  const int lane = static_cast<int>(threadIdx.x % kWarp), warp = static_cast<int>(threadIdx.x / kWarp);
  for (int64_t item = blockIdx.x; item < t.items; item += gridDim.x) {
    const int64_t head = item / blocks % s.heads, query = item % blocks * t.tile;
    TilePlace at{item / blocks / s.heads, head, query, 0, static_cast<int>(least(t.tile, s.queries - query)), 0};
    Running<W> running;
    for (int n = 0; n < kRowsOfWarp; ++n) running.largest[n] = -infinity<W>(), running.total[n] = W(0);
    __syncthreads();  // the item before has been stored
    load_rows(o.q, at.sample, head, query, at.queries, t.tile, t.qk, q);
    clear_rows(t.tile, t.v, sums);
    for (; at.key < s.keys; at.key += t.tile) {
      if (all_hidden(s, query, at.queries, at.key)) break;
      at.keys = static_cast<int>(least(t.tile, s.keys - at.key));
      if (out_of_reach(s, query, at.key, at.keys)) continue;
      __syncthreads();  // the tile before has been used
      load_rows(o.k, at.sample, head / each, at.key, at.keys, t.tile, t.qk, k);
      load_rows(o.v, at.sample, head / each, at.key, at.keys, t.tile, t.v, v);
      __syncthreads();
      for (int e = threadIdx.x; e < t.tile * t.tile; e += kThreads) {
        const int i = e / t.tile, j = e - i * t.tile;
        scores[i * (t.tile + 1) + j] = dot(q + i * t.qk.width, k + j * t.qk.width, t.qk.dim);
      }
      __syncthreads();
      softmax_rows(s, factor, t, at, scores, shrink, running);
      __syncthreads();
      for (int e = threadIdx.x; e < at.queries * t.v.dim; e += kThreads) {
        const int i = e / t.v.dim, c = e - i * t.v.dim;
        W sum = sums[i * t.v.width + c] * shrink[i];
        for (int j = 0; j < at.keys; ++j) sum += scores[i * (t.tile + 1) + j] * v[j * t.v.width + c];
        sums[i * t.v.width + c] = sum;
      }
    }
    __syncthreads();
    for (int n = 0; n < kRowsOfWarp; ++n) {
      const int i = warp + n * static_cast<int>(kWarps);
      if (i >= at.queries || lane != 0) continue;
      const W total = running.total[n];
      shrink[i] = total == W(0) ? W(0) : W(1) / total;
      o.logsumexp[(at.sample * s.heads + head) * s.queries + query + i] = running.largest[n] + log(total);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < at.queries * t.v.dim; e += kThreads) {
      const int i = e / t.v.dim, c = e - i * t.v.dim;
      o.out.at(at.sample, head, query + i)[c] = store<T>(sums[i * t.v.width + c] * shrink[i]);
    }
  }
}

// Tiles in shared memory: of q, k and `of_qk` [tile][qk.width], of dout, v and `of_v` [tile][v.width].
template <class W>
struct BackwardRoom {
  W *q, *dout, *k, *v, *of_qk, *of_v;  // the last two: sums of gradients
  W *probabilities, *dscores;          // [tile][tile + 1]
  W *logsumexp, *delta;                // [tile]

  __device__ BackwardRoom(unsigned char* room, const Tiling& t) {
    const int rows = t.tile * t.qk.width, v_rows = t.tile * t.v.width;
    q = reinterpret_cast<W*>(room), dout = q + rows, k = dout + v_rows, v = k + rows, of_qk = v + v_rows;
    of_v = of_qk + rows, probabilities = of_v + v_rows, dscores = probabilities + t.tile * (t.tile + 1);
    logsumexp = dscores + t.tile * (t.tile + 1), delta = logsumexp + t.tile;
  }
};

template <class T>
__device__ void load_queries(const AttentionBackward<T>& o, const AttentionShape& s, const Tiling& t,
                             const TilePlace& at, const BackwardRoom<Wide<T>>& room) {
  using W = Wide<T>;
  load_rows(o.q, at.sample, at.head, at.query, at.queries, t.tile, t.qk, room.q);
  load_rows(o.dout, at.sample, at.head, at.query, at.queries, t.tile, t.v, room.dout);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  for (int i = static_cast<int>(threadIdx.x / kWarp); i < at.queries; i += static_cast<int>(kWarps)) {
    const T *const out = o.out.at(at.sample, at.head, at.query + i), *const dout =
                                                                         o.dout.at(at.sample, at.head, at.query + i);
    W sum = 0;
    for (int c = lane; c < t.v.dim; c += static_cast<int>(kWarp)) sum += load(out[c]) * load(dout[c]);
    sum = warp_reduce(sum, Add());
    if (lane != 0) continue;
    room.delta[i] = sum;
    room.logsumexp[i] = o.logsumexp[(at.sample * s.heads + at.head) * s.queries + at.query + i];
  }
}

template <class W>
__device__ void gradients_of_scores(const AttentionShape& s, const DropoutFactor<W>& factor, const Tiling& t,
                                    const TilePlace& at, const BackwardRoom<W>& room) {
  for (int e = threadIdx.x; e < t.tile * t.tile; e += kThreads) {
    const int i = e / t.tile, j = e - i * t.tile;
    W p = 0, dscore = 0;
    if (i < at.queries && j < at.keys && s.sees(at.sample, at.query + i, at.key + j)) {
      const W scale = scale_of<W>(s);
      const W score = capped(s, dot(room.q + i * t.qk.width, room.k + j * t.qk.width, t.qk.dim) * scale);
      const W gradient = dot(room.dout + i * t.v.width, room.v + j * t.v.width, t.v.dim);
      const W kept = dropout_factor(s, factor, at.sample, at.head, at.query + i, at.key + j);
      p = score == -infinity<W>() ? W(0) : exp(score - room.logsumexp[i]);
      dscore = (kept * gradient - room.delta[i]) * p * scale * cap_slope(s, score);
      p *= kept;
    }
    room.probabilities[i * (t.tile + 1) + j] = p;
    room.dscores[i * (t.tile + 1) + j] = dscore;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) attention_backward_keys_kernel(AttentionBackward<T> o, AttentionShape s,
                                                                           DropoutFactor<Wide<T>> factor, Tiling t) {
  using W = Wide<T>;
  const BackwardRoom<W> room(dynamic_shared(), t);
  const int64_t blocks = (s.keys + t.tile - 1) / t.tile, each = s.heads / s.groups;
  const int widest = t.qk.dim > t.v.dim ? t.qk.dim : t.v.dim;
  for (int64_t item = blockIdx.x; item < t.items; item += gridDim.x) {
    const int64_t group = item / blocks % s.groups, key = item % blocks * t.tile;
    TilePlace at{item / blocks / s.groups, 0, 0, key, 0, static_cast<int>(least(t.tile, s.keys - key))};
    __syncthreads();  // the item before has been stored
    load_rows(o.k, at.sample, group, key, at.keys, t.tile, t.qk, room.k);
    load_rows(o.v, at.sample, group, key, at.keys, t.tile, t.v, room.v);
    clear_rows(t.tile, t.qk, room.of_qk);
    clear_rows(t.tile, t.v, room.of_v);
    for (at.head = group * each; at.head < (group + 1) * each; ++at.head) {
      for (at.query = 0; at.query < s.queries; at.query += t.tile) {
        at.queries = static_cast<int>(least(t.tile, s.queries - at.query));
        if (all_hidden(s, at.query, at.queries, key) || out_of_reach(s, at.query, key, at.keys)) continue;
        __syncthreads();  // the tile before has been used
        load_queries(o, s, t, at, room);
        __syncthreads();
        gradients_of_scores(s, factor, t, at, room);
        __syncthreads();
        // Both at once. Where one has fewer columns, its last takes part again and is not stored.
        for (int e = threadIdx.x; e < at.keys * widest; e += kThreads) {
          const int j = e / widest, c = e - j * widest;
          const bool of_qk = c < t.qk.dim, of_v = c < t.v.dim;
          const int qk = of_qk ? c : t.qk.dim - 1, v = of_v ? c : t.v.dim - 1;
          W dk = of_qk ? room.of_qk[j * t.qk.width + c] : W(0), dv = of_v ? room.of_v[j * t.v.width + c] : W(0);
          for (int i = 0; i < at.queries; ++i) {
            dk += room.dscores[i * (t.tile + 1) + j] * room.q[i * t.qk.width + qk];
            dv += room.probabilities[i * (t.tile + 1) + j] * room.dout[i * t.v.width + v];
          }
          if (of_qk) room.of_qk[j * t.qk.width + c] = dk;
          if (of_v) room.of_v[j * t.v.width + c] = dv;
        }
      }
    }
    __syncthreads();
    store_rows(o.dk, at.sample, group, key, at.keys, t.qk, room.of_qk);
    store_rows(o.dv, at.sample, group, key, at.keys, t.v, room.of_v);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    attention_backward_queries_kernel(AttentionBackward<T> o, AttentionShape s, DropoutFactor<Wide<T>> factor,
                                      Tiling t) {
  using W = Wide<T>;
  const BackwardRoom<W> room(dynamic_shared(), t);
  const int64_t blocks = (s.queries + t.tile - 1) / t.tile, each = s.heads / s.groups;
  for (int64_t item = blockIdx.x; item < t.items; item += gridDim.x) {
    const int64_t head = item / blocks % s.heads, query = item % blocks * t.tile;
    TilePlace at{item / blocks / s.heads, head, query, 0, static_cast<int>(least(t.tile, s.queries - query)), 0};
    __syncthreads();  // the item before has been stored
    load_queries(o, s, t, at, room);
    clear_rows(t.tile, t.qk, room.of_qk);
    for (; at.key < s.keys; at.key += t.tile) {
      if (all_hidden(s, query, at.queries, at.key)) break;
      at.keys = static_cast<int>(least(t.tile, s.keys - at.key));
      if (out_of_reach(s, query, at.key, at.keys)) continue;
      __syncthreads();  // the tile before has been used
      load_rows(o.k, at.sample, head / each, at.key, at.keys, t.tile, t.qk, room.k);
      load_rows(o.v, at.sample, head / each, at.key, at.keys, t.tile, t.v, room.v);
      __syncthreads();
      gradients_of_scores(s, factor, t, at, room);
      __syncthreads();
      for (int e = threadIdx.x; e < at.queries * t.qk.dim; e += kThreads) {
        const int i = e / t.qk.dim, c = e - i * t.qk.dim;
        W dq = room.of_qk[i * t.qk.width + c];
        for (int j = 0; j < at.keys; ++j) dq += room.dscores[i * (t.tile + 1) + j] * room.k[j * t.qk.width + c];
        room.of_qk[i * t.qk.width + c] = dq;
      }
    }
    __syncthreads();
    store_rows(o.dq, at.sample, head, query, at.queries, t.qk, room.of_qk);
  }
}

// Bytes for `qk` arrays of rows of q or k, `v` of v, `squares` of scores and `columns` of single numbers.
struct Needs {
  int qk, v, squares, columns;
};
int64_t bytes_of(const Needs& needs, const Tiling& t, int64_t element) {
  return ((needs.qk * int64_t{t.qk.width} + needs.v * int64_t{t.v.width}) * t.tile +
          needs.squares * int64_t{t.tile} * (t.tile + 1) + needs.columns * int64_t{t.tile}) *
         element;
}

Tiling tiling_for(const Needs& needs, const AttentionShape& s, int64_t element) {
  const auto form = [](int64_t dim) { return RowForm{static_cast<int>(dim), static_cast<int>(dim) + 1}; };
  Tiling t{kMostTile, form(s.head_dim), form(s.v_head_dim), 0};
  while (t.tile > 1 && bytes_of(needs, t, element) > kRoom) t.tile /= 2;
  MPX_CHECK(bytes_of(needs, t, element) <= kRoom, "cuda", "attention: heads of ", s.head_dim, " and ", s.v_head_dim,
            " elements of ", element, " bytes do not fit the shared memory of a GPU (", kRoom,
            " bytes); take smaller heads (model.kv_channels)");
  return t;
}

template <class Kernel, class Operands, class W>
void start(const char* name, Kernel kernel, const Operands& operands, const AttentionShape& s, Tiling t,
           int64_t heads, int64_t rows, unsigned bytes, const DropoutFactor<W>& factor, CUstream_st* stream) {
  t.items = s.samples * heads * ((rows + t.tile - 1) / t.tile);
  if (t.items == 0) return;
  launch_kernel(name, kernel, Grid{blocks_for_rows(t.items), kThreads, bytes, stream}, operands, s, factor, t);
}

}  // namespace

template <class T>
void attention_forward_cuda(const AttentionForward<T>& operands, const AttentionShape& shape, const AttentionScratch&,
                            CUstream_st* stream) {
  constexpr Needs kNeeds{2, 2, 1, 1};
  const Tiling t = tiling_for(kNeeds, shape, sizeof(Wide<T>));
  start("attention_forward", attention_forward_kernel<T>, operands, shape, t, shape.heads, shape.queries,
        static_cast<unsigned>(bytes_of(kNeeds, t, sizeof(Wide<T>))),
        DropoutFactor<Wide<T>>(shape.dropout.probability), stream);
}

template <class T>
void attention_backward_cuda(const AttentionBackward<T>& operands, const AttentionShape& shape,
                             const AttentionScratch&, CUstream_st* stream) {
  constexpr Needs kNeeds{3, 3, 2, 2};
  const Tiling t = tiling_for(kNeeds, shape, sizeof(Wide<T>));
  const auto bytes = static_cast<unsigned>(bytes_of(kNeeds, t, sizeof(Wide<T>)));
  const DropoutFactor<Wide<T>> factor(shape.dropout.probability);
  start("attention_backward_keys", attention_backward_keys_kernel<T>, operands, shape, t, shape.groups, shape.keys,
        bytes, factor, stream);
  start("attention_backward_queries", attention_backward_queries_kernel<T>, operands, shape, t, shape.heads,
        shape.queries, bytes, factor, stream);
}

#define MPX_INSTANTIATE(T)                                                                     \
  template void attention_forward_cuda<T>(const AttentionForward<T>&, const AttentionShape&,   \
                                          const AttentionScratch&, CUstream_st*);              \
  template void attention_backward_cuda<T>(const AttentionBackward<T>&, const AttentionShape&, \
                                           const AttentionScratch&, CUstream_st*)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::cuda::kernels
