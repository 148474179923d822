// Tile products use grouped_choice.h: their sums do not depend on block sizes or memory addresses.
#include "kernels/blocked_attention.h"

#include <ATen/Parallel.h>

#include <atomic>
#include <cmath>

#include "kernels/attention_tile.h"
#include "kernels/dropout_rows.h"
#include "kernels/grouped_choice.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::kernels {
namespace {

constexpr int64_t kRow = kTileKeys + 16;  // tile row stride; rows a power of two apart would map to few cache lines

template <class W>
constexpr W kHidden = -std::numeric_limits<W>::infinity();

template <class T>
struct TileRow {
  using W = Wide<T>;
  W* scores;  // [keys]
  int64_t keys;
  W scale;
  bool hides;
  int64_t place, document;
  const int64_t *key_place, *key_document;
  const W* factor;  // [keys] dropout factors; null: no dropout
  int64_t reach;
  W softcap;
};

// Computes scores * scale, capped, and kHidden for hidden keys; returns the maximum. NaN is kept, but is never the
// maximum.
template <class T>
MPX_INLINE Wide<T> mask_row(const TileRow<T>& row) {
  using W = Wide<T>;
  W* __restrict const s = row.scores;
  W scale = row.scale;
  if (row.softcap > 0) {
    const W inner = row.scale / row.softcap;
    for (int64_t j = 0; j < row.keys; ++j) s[j] = row.softcap * vector_tanh(s[j] * inner);
    scale = W(1);
  }
  if (row.hides) {
    for (int64_t j = 0; j < row.keys; ++j) {
      const bool seen = (row.key_place[j] <= row.place) & (row.place - row.key_place[j] <= row.reach) &
                        (row.key_document[j] == row.document);
      s[j] = seen ? s[j] * scale : kHidden<W>;
    }
  } else {
    for (int64_t j = 0; j < row.keys; ++j) s[j] *= scale;
  }
  constexpr int64_t kLanes = 16;
  W lanes[kLanes];
  for (int64_t l = 0; l < kLanes; ++l) lanes[l] = kHidden<W>;
  int64_t j = 0;
  for (; j + kLanes <= row.keys; j += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) lanes[l] = s[j + l] > lanes[l] ? s[j + l] : lanes[l];
  }
  W most = kHidden<W>;
  for (; j < row.keys; ++j) most = s[j] > most ? s[j] : most;
  for (int64_t l = 0; l < kLanes; ++l) most = lanes[l] > most ? lanes[l] : most;
  return most;
}

// Computes scores = exp(scores - base) and returns their sum. `probabilities` has them with dropout, in T, for the
// product.
template <class T>
MPX_INLINE Wide<T> exp_row(const TileRow<T>& row, Wide<T> base, T* probabilities) {
  using W = Wide<T>;
  W* const s = row.scores;
  for (int64_t j = 0; j < row.keys; ++j) {
    const W e = vector_exp(s[j] - base);
    s[j] = s[j] == kHidden<W> ? W(0) : e;
  }
  const W sum = lane_sum<W>(row.keys, [&](int64_t j) { return s[j]; });
  if (row.factor != nullptr) {
#pragma GCC ivdep
    for (int64_t j = 0; j < row.keys; ++j) probabilities[j] = store<T>(s[j] * row.factor[j]);
  } else if constexpr (kIsHalf<T>) {
#pragma GCC ivdep
    for (int64_t j = 0; j < row.keys; ++j) probabilities[j] = store<T>(s[j]);
  }
  return sum;
}

// gradient_row() for capped scores, whose slope is 1 - (score / cap)^2.
template <class T>
MPX_INLINE void capped_gradient_row(const TileRow<T>& row, const Wide<T>* gradients, Wide<T> logsumexp, Wide<T> delta,
                                    T* probabilities, T* dscores) {
  using W = Wide<T>;
  W* const s = row.scores;
  const W by = W(1) / row.softcap;
  for (int64_t j = 0; j < row.keys; ++j) {
    const bool hidden = s[j] == kHidden<W>;
    const W share = hidden ? W(0) : s[j] * by, e = vector_exp(s[j] - logsumexp), p = hidden ? W(0) : e;
    const W f = row.factor != nullptr ? row.factor[j] : W(1);
    dscores[j] = store<T>((f * gradients[j] - delta) * p * row.scale * (W(1) - share * share));
    probabilities[j] = store<T>(p * f);
  }
}

// Computes the probabilities after dropout and the gradients of the products q k, from scores (scaled and masked) and
// the gradients of the probabilities after dropout.
template <class T>
MPX_INLINE void gradient_row(const TileRow<T>& row, Wide<T>* gradients, Wide<T> logsumexp, Wide<T> delta,
                             T* probabilities, T* dscores) {
  using W = Wide<T>;
  if (row.softcap > 0) return capped_gradient_row<T>(row, gradients, logsumexp, delta, probabilities, dscores);
  W* const s = row.scores;
  for (int64_t j = 0; j < row.keys; ++j) {
    const W e = vector_exp(s[j] - logsumexp);
    s[j] = s[j] == kHidden<W> ? W(0) : e;
  }
  if (row.factor != nullptr) {
#pragma GCC ivdep
    for (int64_t j = 0; j < row.keys; ++j) {
      const W p = s[j], f = row.factor[j];
      dscores[j] = store<T>((f * gradients[j] - delta) * p * row.scale);
      probabilities[j] = store<T>(p * f);
    }
  } else {
#pragma GCC ivdep
    for (int64_t j = 0; j < row.keys; ++j) {
      const W p = s[j];
      dscores[j] = store<T>((gradients[j] - delta) * p * row.scale);
      probabilities[j] = store<T>(p);
    }
  }
}

template <class T>
MPX_INLINE Wide<T> product_of_rows(const T* a, const T* b, int64_t n) {
  return lane_sum<Wide<T>>(n, [&](int64_t i) { return load(a[i]) * load(b[i]); });
}

#define MPX_TILE_ROWS(replicas, T)                                                                              \
  replicas Wide<T> masked(const TileRow<T>& row) { return mask_row(row); }                                      \
  replicas Wide<T> exponentials(const TileRow<T>& row, Wide<T> base, T* p) { return exp_row<T>(row, base, p); } \
  replicas void gradients_of_scores(const TileRow<T>& row, Wide<T>* g, Wide<T> logsumexp, Wide<T> delta, T* p,  \
                                    T* ds) {                                                                    \
    gradient_row<T>(row, g, logsumexp, delta, p, ds);                                                           \
  }                                                                                                             \
  replicas Wide<T> dot(const T* a, const T* b, int64_t n) { return product_of_rows<T>(a, b, n); }               \
  replicas void stored(T, const Wide<T>* x, int64_t n, Wide<T> by, void* to) {                                  \
    T* const out = static_cast<T*>(to);                                                                         \
    for (int64_t i = 0; i < n; ++i) out[i] = store<T>(x[i] * by);                                               \
  }
MPX_TILE_ROWS(MPX_VECTOR_CLONES, float)
MPX_TILE_ROWS(MPX_VECTOR_CLONES, double)
MPX_TILE_ROWS(MPX_HALF_CLONES, Bf16)
MPX_TILE_ROWS(MPX_HALF_CLONES, F16)
#undef MPX_TILE_ROWS

MPX_VECTOR_CLONES void scaled(float* x, int64_t n, float by) {
  for (int64_t i = 0; i < n; ++i) x[i] *= by;
}
MPX_VECTOR_CLONES void scaled(double* x, int64_t n, double by) {
  for (int64_t i = 0; i < n; ++i) x[i] *= by;
}

// Dropout factors of adjacent elements begin .. begin + n - 1 of a row. `out` needs space for kDrawn more; returns
// the first factor.
template <class W>
MPX_INLINE W* neighbouring_factors(const DropoutShape& shape, const DropoutRow& row, int64_t begin, int64_t n,
                                   W* out) {
  const int64_t before = (row.start + begin) % 4;
  for (int64_t done = 0; done < before + n; done += kDrawn) draw(shape, row, begin - before + done, out + done);
  return out + before;
}
MPX_HALF_CLONES float* factors(const DropoutShape& shape, const DropoutRow& row, int64_t begin, int64_t n,
                               float* out) {
  return neighbouring_factors(shape, row, begin, n, out);
}
MPX_HALF_CLONES double* factors(const DropoutShape& shape, const DropoutRow& row, int64_t begin, int64_t n,
                                double* out) {
  return neighbouring_factors(shape, row, begin, n, out);
}
// Dropout factors of elements in any order.
template <class W>
W* factors(const DropoutShape& shape, const DropoutRow& row, const int64_t* elements, int64_t n, W* out) {
  const DropoutFactor<W> factor(shape.probability);
  base::PhiloxBlock bits{};
  for (int64_t j = 0, drawn = -1; j < n; ++j) {
    const int64_t element = row.start + elements[j];
    if (element / 4 != drawn)
      bits = base::philox4x32(shape.key, static_cast<uint64_t>(drawn = element / 4), row.counter);
    out[j] = factor(bits, element % kPhiloxWords);
  }
  return out;
}

class Pieces {
 public:
  explicit Pieces(char* data) : data_(data) {}
  template <class T>
  T* take(int64_t n) {
    char* const at = data_ == nullptr ? nullptr : data_ + taken_;  // null to compute the size only
    taken_ += round_up(n * static_cast<int64_t>(sizeof(T)), 64);
    return reinterpret_cast<T*>(at);
  }
  int64_t taken() const { return taken_; }

 private:
  char* data_;
  int64_t taken_ = 0;
};

template <class T>
const GroupedChoice& products() {
  static const GroupedChoice& choice = grouped_choice(false, kElementNumber<T>);
  return choice;
}

// Scratch memory of a thread; forward and backward use different subsets.
template <class T>
struct Room {
  using W = Wide<T>;
  char* of_product;
  W* scores;
  T* probabilities;  // same memory as `scores` if T is W
  W* factor;
  // Forward: per query of a block, [queries, v_head_dim]. Backward: per query of a head, [queries, head_dim].
  W* sums;
  // Forward only.
  W *largest, *total;  // [kTileQueries]
  // Backward only.
  W* gradients;  // with respect to probabilities
  T* dscores;    // same memory as `gradients` if T is W
  W *dk, *dv;    // [keys, head_dim], [keys, v_head_dim]

  static Room of(const AttentionShape& shape, bool backward, Pieces& pieces) {
    Room room{};
    const int64_t tile = kTileQueries * kRow;
    room.of_product = pieces.take<char>(products<T>().cut().scratch_bytes);
    room.scores = pieces.take<W>(tile);
    room.probabilities = narrow(room.scores, pieces);
    room.factor = pieces.take<W>(kTileKeys + 2 * kDrawn);
    room.sums = pieces.take<W>(backward ? shape.queries * shape.head_dim : kTileQueries * shape.v_head_dim);
    if (!backward) {
      room.largest = pieces.take<W>(kTileQueries);
      room.total = pieces.take<W>(kTileQueries);
      return room;
    }
    room.gradients = pieces.take<W>(tile);
    room.dscores = narrow(room.gradients, pieces);
    room.dk = pieces.take<W>(shape.keys * shape.head_dim);
    room.dv = pieces.take<W>(shape.keys * shape.v_head_dim);
    return room;
  }
  static T* narrow(W* wide, Pieces& pieces) {
    if constexpr (kIsHalf<T>) return pieces.take<T>(kTileQueries * kRow);
    else return wide;
  }
};

// Operands a and b of c [m, n] = a b or c += a b; c is in Wide<T>.
template <class T>
struct Factors {
  const T* a;
  int64_t lda;
  const T* b;
  int64_t ldb;
  bool a_by_k = false, b_by_n = false, adds = false;
};
template <class T>
void multiply(const Factors<T>& factors, int64_t m, int64_t n, int64_t k, Wide<T>* wide, int64_t ldc, char* scratch) {
  const GroupedChoice& by = products<T>();
  const GroupedProblem problem{factors.a, factors.b, wide,           factors.lda,    factors.ldb,  ldc, m,
                               n,         k,         factors.a_by_k, factors.b_by_n, factors.adds, true};
  const int64_t at_a_time = by.cut().n;
  for (int64_t from = 0; from < n; from += at_a_time) {
    by.product({problem, {0, m, from, std::min(n, from + at_a_time)}}, nullptr, scratch);
  }
}

template <class T>
TileRow<T> tile_row(const AttentionShape& shape, const AttentionTile& tile, const Room<T>& room, int64_t i) {
  return {room.scores + i * kRow,
          tile.keys,
          static_cast<Wide<T>>(shape.softmax_scale),
          tile.hides,
          tile.query_place[i],
          tile.query_document[i],
          tile.key_place,
          tile.key_document,
          nullptr,
          shape.reach_from(tile.query_place[i]),
          static_cast<Wide<T>>(shape.softcap)};
}

// Dropout factors of row i of the tile; null without dropout.
template <class W>
const W* dropout_factors(const AttentionShape& shape, const AttentionTile& tile, int64_t sample, int64_t head,
                         int64_t i, W* room) {
  if (shape.dropout.probability <= 0) return nullptr;
  const DropoutRow row = dropout_row(shape.dropout, (sample * shape.heads + head) * shape.queries + tile.query + i);
  if (shape.key_rows.chosen == nullptr) return factors(shape.dropout, row, tile.key, tile.keys, room);
  if (tile.key_place[tile.keys - 1] - tile.key_place[0] == tile.keys - 1 &&
      std::is_sorted(tile.key_place, tile.key_place + tile.keys)) {
    return factors(shape.dropout, row, tile.key_place[0], tile.keys, room);
  }
  return factors(shape.dropout, row, tile.key_place, tile.keys, room);
}

// Runs body(scratch of a worker, task) for every task; workers take tasks in order from one queue.
template <class T, class Body>
void for_tasks(int64_t tasks, const AttentionScratch& scratch, const Body& body) {
  std::atomic<int64_t> next{0};
  const auto worker = [&](int64_t which) {
    const GroupedChoice& by = products<T>();
    if (by.begin != nullptr) by.begin();
    for (int64_t task = next++; task < tasks; task = next++) body(scratch.data + which * scratch.bytes, task);
    if (by.end != nullptr) by.end();
  };
  const int64_t threads =
      at::in_parallel_region() ? 1 : std::min({scratch.workers, tasks, int64_t{at::get_num_threads()}});
  if (threads <= 1) return worker(0);
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) worker(i);
  });
}

int64_t blocks(int64_t n, int64_t size) { return (n + size - 1) / size; }

// Sizes the scratch memory: one worker per thread, limited by the number of tasks and by the work, because small
// shapes do not justify a second thread.
template <class T>
AttentionScratch make_scratch(const AttentionShape& shape, bool backward, int64_t threads) {
  Pieces pieces(nullptr);
  Room<T>::of(shape, backward, pieces);
  const double work = static_cast<double>(shape.samples * shape.heads * (shape.head_dim + shape.v_head_dim)) *
                      static_cast<double>(shape.queries) * static_cast<double>(shape.keys);
  const int64_t tasks = std::max(shape.samples * shape.heads * blocks(shape.queries, kTileQueries),
                                 backward ? shape.samples * shape.groups * blocks(shape.keys, kTileKeys) : 0);
  return {nullptr, pieces.taken(), work < 4e5 ? 1 : std::clamp<int64_t>(tasks, 1, threads)};
}

template <class T>
void forward_block(const AttentionForward<T>& forward, const AttentionShape& shape, char* scratch, int64_t sample,
                   int64_t head, int64_t query) {
  using W = Wide<T>;
  Pieces pieces(scratch);
  const Room<T> room = Room<T>::of(shape, false, pieces);
  TileCutter noop_observer(shape);
  AttentionTile tile;
  const int64_t of_v = shape.v_head_dim, queries = std::min(kTileQueries, shape.queries - query),
                group = head / (shape.heads / shape.groups);
  std::fill_n(room.sums, queries * of_v, W(0));
  std::fill_n(room.largest, queries, kHidden<W>);
  std::fill_n(room.total, queries, W(0));
  for (int64_t key = 0; key < shape.keys; key += kTileKeys) {
    if (!noop_observer.cut(sample, query, key, tile)) continue;
    multiply<T>({forward.q.at(sample, head, tile.query), forward.q.row, forward.k.at(sample, group, tile.key),
                 forward.k.row, false, true},
                tile.queries, tile.keys, shape.head_dim, room.scores, kRow, room.of_product);
    const int64_t first = tile.query - query;
    for (int64_t i = 0; i < tile.queries; ++i) {
      TileRow<T> row = tile_row(shape, tile, room, i);
      const W most = std::max(room.largest[first + i], masked(row)), base = most == kHidden<W> ? W(0) : most;
      row.factor = dropout_factors(shape, tile, sample, head, i, room.factor);
      const W shrink = room.largest[first + i] == kHidden<W> ? W(0) : std::exp(room.largest[first + i] - base);
      room.total[first + i] = room.total[first + i] * shrink + exponentials(row, base, room.probabilities + i * kRow);
      room.largest[first + i] = most;
      if (shrink != W(1)) scaled(room.sums + (first + i) * of_v, of_v, shrink);
    }
    multiply<T>({room.probabilities, kRow, forward.v.at(sample, group, tile.key), forward.v.row, false, false, true},
                tile.queries, of_v, tile.keys, room.sums + first * of_v, of_v, room.of_product);
  }
  for (int64_t i = 0; i < queries; ++i) {
    const W total = room.total[i], by = total == W(0) ? W(0) : W(1) / total;
    stored(T{}, room.sums + i * of_v, of_v, by, forward.out.at(sample, head, query + i));
    forward.logsumexp[(sample * shape.heads + head) * shape.queries + query + i] = room.largest[i] + std::log(total);
  }
}

enum class Makes { all, of_queries, of_keys };

template <class T>
void backward_tile(const AttentionBackward<T>& backward, const AttentionShape& shape, const Room<T>& room,
                   Makes makes, int64_t sample, int64_t head, const AttentionTile& tile) {
  using W = Wide<T>;
  const int64_t of_qk = shape.head_dim, of_v = shape.v_head_dim, group = head / (shape.heads / shape.groups);
  const T *const q = backward.q.at(sample, head, tile.query), *const k = backward.k.at(sample, group, tile.key),
                 *const dout = backward.dout.at(sample, head, tile.query);
  multiply<T>({q, backward.q.row, k, backward.k.row, false, true}, tile.queries, tile.keys, of_qk, room.scores, kRow,
              room.of_product);
  multiply<T>({dout, backward.dout.row, backward.v.at(sample, group, tile.key), backward.v.row, false, true},
              tile.queries, tile.keys, of_v, room.gradients, kRow, room.of_product);
  const W* const logsumexp = backward.logsumexp + (sample * shape.heads + head) * shape.queries + tile.query;
  for (int64_t i = 0; i < tile.queries; ++i) {
    TileRow<T> row = tile_row(shape, tile, room, i);
    masked(row);
    row.factor = dropout_factors(shape, tile, sample, head, i, room.factor);
    const W delta =
        dot(backward.out.at(sample, head, tile.query + i), backward.dout.at(sample, head, tile.query + i), of_v);
    gradients_of_scores(row, room.gradients + i * kRow, logsumexp[i] == kHidden<W> ? W(0) : logsumexp[i], delta,
                        room.probabilities + i * kRow, room.dscores + i * kRow);
  }
  if (makes != Makes::of_queries) {
    multiply<T>({room.probabilities, kRow, dout, backward.dout.row, true, false, true}, tile.keys, of_v, tile.queries,
                room.dv + tile.key * of_v, of_v, room.of_product);
    multiply<T>({room.dscores, kRow, q, backward.q.row, true, false, true}, tile.keys, of_qk, tile.queries,
                room.dk + tile.key * of_qk, of_qk, room.of_product);
  }
  if (makes != Makes::of_keys) {
    multiply<T>({room.dscores, kRow, k, backward.k.row, false, false, true}, tile.queries, of_qk, tile.keys,
                room.sums + tile.query * of_qk, of_qk, room.of_product);
  }
}

struct Rows {
  int64_t begin, end;
};

// Every sum runs over the heads of a group, then over the blocks in ascending order, regardless of the task that
// computes it.
template <class T>
void backward_blocks(const AttentionBackward<T>& backward, const AttentionShape& shape, char* scratch, Makes makes,
                     int64_t sample, const Rows& heads, const Rows& queries, const Rows& keys) {
  using W = Wide<T>;
  Pieces pieces(scratch);
  const Room<T> room = Room<T>::of(shape, true, pieces);
  TileCutter noop_observer(shape);
  AttentionTile tile;
  const int64_t of_qk = shape.head_dim, of_v = shape.v_head_dim, all_keys = keys.end - keys.begin,
                group = heads.begin / (shape.heads / shape.groups);
  if (makes != Makes::of_queries) {
    std::fill_n(room.dk + keys.begin * of_qk, all_keys * of_qk, W(0));
    std::fill_n(room.dv + keys.begin * of_v, all_keys * of_v, W(0));
  }
  for (int64_t head = heads.begin; head < heads.end; ++head) {
    if (makes != Makes::of_keys)
      std::fill_n(room.sums + queries.begin * of_qk, (queries.end - queries.begin) * of_qk, W(0));
    for (int64_t key = keys.begin; key < keys.end; key += kTileKeys) {
      for (int64_t query = queries.begin; query < queries.end; query += kTileQueries) {
        if (noop_observer.cut(sample, query, key, tile))
          backward_tile(backward, shape, room, makes, sample, head, tile);
      }
    }
    if (makes == Makes::of_keys) continue;
    for (int64_t i = queries.begin; i < queries.end; ++i) {
      stored(T{}, room.sums + i * of_qk, of_qk, W(1), backward.dq.at(sample, head, i));
    }
  }
  if (makes == Makes::of_queries) return;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    stored(T{}, room.dk + j * of_qk, of_qk, W(1), backward.dk.at(sample, group, j));
    stored(T{}, room.dv + j * of_v, of_v, W(1), backward.dv.at(sample, group, j));
  }
}

}  // namespace

template <class T>
AttentionScratch attention_forward_scratch(const AttentionShape& shape, int64_t threads) {
  return make_scratch<T>(shape, false, threads);
}
template <class T>
AttentionScratch attention_backward_scratch(const AttentionShape& shape, int64_t threads) {
  return make_scratch<T>(shape, true, threads);
}

template <class T>
void attention_forward(const AttentionForward<T>& operands, const AttentionShape& shape,
                       const AttentionScratch& scratch) {
  const int64_t blocks_of_head = blocks(shape.queries, kTileQueries), heads = shape.samples * shape.heads;
  for_tasks<T>(heads * blocks_of_head, scratch, [&](char* room, int64_t task) {
    // Starts with the last queries, which see the most keys.
    const int64_t block = blocks_of_head - 1 - task / heads, head = task % heads;
    forward_block(operands, shape, room, head / shape.heads, head % shape.heads, block * kTileQueries);
  });
}

// If there is a group for every thread, a task is a group. Otherwise blocks of queries and blocks of keys are
// separate tasks, which compute the scores twice.
template <class T>
void attention_backward(const AttentionBackward<T>& operands, const AttentionShape& shape,
                        const AttentionScratch& scratch) {
  const int64_t groups = shape.samples * shape.groups, each = shape.heads / shape.groups;
  const auto heads_of = [&](int64_t group) {
    return Rows{group % shape.groups * each, group % shape.groups * each + each};
  };
  if (groups >= std::min<int64_t>(scratch.workers, at::get_num_threads())) {
    return for_tasks<T>(groups, scratch, [&](char* room, int64_t group) {
      backward_blocks(operands, shape, room, Makes::all, group / shape.groups, heads_of(group), {0, shape.queries},
                      {0, shape.keys});
    });
  }
  const int64_t of_keys = blocks(shape.keys, kTileKeys), of_queries = blocks(shape.queries, kTileQueries);
  for_tasks<T>(groups * of_keys, scratch, [&](char* room, int64_t task) {
    const int64_t group = task % groups, key = task / groups * kTileKeys;
    backward_blocks(operands, shape, room, Makes::of_keys, group / shape.groups, heads_of(group), {0, shape.queries},
                    {key, std::min(shape.keys, key + kTileKeys)});
  });
  const int64_t heads = shape.samples * shape.heads;
  for_tasks<T>(heads * of_queries, scratch, [&](char* room, int64_t task) {
    const int64_t head = task % heads, query = (of_queries - 1 - task / heads) * kTileQueries;
    backward_blocks(operands, shape, room, Makes::of_queries, head / shape.heads,
                    {head % shape.heads, head % shape.heads + 1},
                    {query, std::min(shape.queries, query + kTileQueries)}, {0, shape.keys});
  });
}

#define MPX_INSTANTIATE(T)                                                                                        \
  template AttentionScratch attention_forward_scratch<T>(const AttentionShape&, int64_t);                         \
  template AttentionScratch attention_backward_scratch<T>(const AttentionShape&, int64_t);                        \
  template void attention_forward<T>(const AttentionForward<T>&, const AttentionShape&, const AttentionScratch&); \
  template void attention_backward<T>(const AttentionBackward<T>&, const AttentionShape&, const AttentionScratch&)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels
