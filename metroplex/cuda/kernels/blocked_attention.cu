// A thread block has a tile of queries and a tile of keys in shared memory, and the sums of one of them in registers.
// Half types multiply on tensor cores, as wide as their heads may be for that; the others, and wider heads, do not.
#include "cuda/kernels/blocked_attention.h"

#include <algorithm>
#include <optional>

#include "cuda/kernels/dropout_block.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/tile_product.h"
#include "cuda/kernels/wide_access.h"

namespace metroplex::cuda::kernels {
namespace {

constexpr int64_t kRoom = 48 * 1024;  // bytes of shared memory that every GPU gives without asking
constexpr int kQuad = 4;              // neighbouring keys of a query that a lane has: a block of Philox

template <class T>
constexpr int kBlocks = sizeof(T) < 8 ? 2 : 1;  // that a processor has registers for

enum class Pass { forward, keys, queries };  // the gradients of keys and values, and of queries

struct RowForm {
  int dim, columns, width;  // elements of a row; with the zeros behind them; and from row to row
};
// The numbers of a launch. Tiles have a power of two of rows.
struct Tiling {
  int queries, keys;
  RowForm qk, v;                  // of q, k and their gradients; of v, out and theirs
  int score_width, stored_width;  // from row to row of scores, and of what takes their place
  bool packs;                     // q, k, v, out and dout may be read in packs
  int64_t items;
};

// Tiles in shared memory, and how many bytes they are.
template <class Unit>
struct Room {
  typename Unit::Stored *k, *v, *q, *dout, *probabilities, *dscores;  // the last two in the place of the next two
  typename Unit::W *scores, *gradients;                               // of probabilities; [queries][score_width]
  typename Unit::W *largest, *total, *shrink;   // [queries], of the rows so far; what the sums of before are worth
  typename Unit::W *logsumexp, *delta, *patch;  // [queries], in the place of the others; of Unit, in the place of k
  int64_t bytes = 0;

  constexpr Room(const Tiling& t, bool backward, unsigned char* room) {
    const auto take = [&]<class P>(P*& place, int64_t count) {
      place = room == nullptr ? nullptr : reinterpret_cast<P*>(room + bytes);
      bytes += (count * static_cast<int64_t>(sizeof(P)) + 31) / 32 * 32;
    };
    take(patch, Unit::kPatches);
    const int64_t patches = bytes;
    bytes = 0;
    take(k, int64_t{t.keys} * t.qk.width);
    if (bytes < patches) bytes = patches;
    take(v, int64_t{t.keys} * t.v.width);
    take(q, int64_t{t.queries} * t.qk.width);
    take(dout, backward ? int64_t{t.queries} * t.v.width : 0);
    take(scores, int64_t{t.queries} * t.score_width);
    take(gradients, backward ? int64_t{t.queries} * t.score_width : 0);
    take(largest, t.queries);
    take(total, t.queries);
    take(shrink, t.queries);
    probabilities = reinterpret_cast<decltype(k)>(scores), dscores = reinterpret_cast<decltype(k)>(gradients);
    logsumexp = largest, delta = total;
  }
};

template <class W>
__device__ W infinity() {
  return static_cast<W>(__builtin_huge_val());
}

// Where the rows of a tile are.
struct TilePlace {
  int64_t sample, head, query, key;
  int queries, keys;
};

// Rows of the other kind that may see a tile of keys, or be seen by one of queries, as far as that is known without a
// look at each.
struct RowRange {
  int64_t begin, end;
};
template <bool of_keys>
__device__ RowRange others_of(const AttentionShape& s, const TilePlace& at) {
  const int64_t count = of_keys ? s.queries : s.keys, reach = s.reach < INT64_MAX / 4 ? s.reach : INT64_MAX / 4;
  if (s.query_rows.chosen != nullptr || s.key_rows.chosen != nullptr) return {0, count};
  const int64_t own = of_keys ? s.key_rows.first + at.key : s.query_rows.first + at.query,
                first = of_keys ? s.query_rows.first : s.key_rows.first;
  const int64_t begin = own - first - (of_keys ? 0 : reach),
                end = own - first + (of_keys ? at.keys + reach : at.queries);
  return {begin > 0 ? begin : 0, end < count ? end : count};
}

// Rows from `count` on, and columns behind the last, are 0.
template <class Unit, class T>
__device__ void load_rows(const AttentionOperand<const T>& x, int64_t sample, int64_t head, int64_t first, int count,
                          int rows, const RowForm& form, bool packs, typename Unit::Stored* to) {
  const int step = Unit::kPacks && packs ? static_cast<int>(Pack<T>::kCount) : 1, across = form.columns / step;
  for (int i = static_cast<int>(threadIdx.x); i < rows * across; i += static_cast<int>(kThreads)) {
    const int row = i / across, column = (i - row * across) * step;
    const bool there = row < count && column < form.dim;
    const T* const from = x.at(sample, head, first + row) + column;
    typename Unit::Stored* const place = to + row * form.width + column;
    if constexpr (Unit::kPacks) {
      if (packs) store_pack(place, there ? load_pack(from) : Pack<T>{});
      else *place = there ? *from : T{};
    } else {
      *place = there ? load(*from) : Wide<T>(0);
    }
  }
}

// Of a warp.
template <int64_t step, class T>
__device__ Wide<T> dot(const T* a, const T* b, int n) {
  Wide<T> sum = 0;
  for (int c = static_cast<int>(threadIdx.x % kWarp * step); c < n; c += static_cast<int>(kWarp * step)) {
    Elements<T, step> x, y;
    x.read(a + c), y.read(b + c);
    for (int64_t i = 0; i < step; ++i) sum += x.values[i] * y.values[i];
  }
  return warp_reduce(sum, Add());
}

// A tile of keys and values from `first` on; or of queries, and what backward needs with them.
template <bool of_keys, class Unit, class Operands>
__device__ void load_tile(const Operands& o, const AttentionShape& s, const Tiling& t, int64_t first, TilePlace& at,
                          const Room<Unit>& room) {
  const int most = of_keys ? t.keys : t.queries;
  const int64_t left = (of_keys ? s.keys : s.queries) - first;
  const int count = left < most ? static_cast<int>(left) : most;
  if constexpr (of_keys) {
    const int64_t group = at.head / (s.heads / s.groups);
    at.key = first, at.keys = count;
    load_rows<Unit>(o.k, at.sample, group, first, count, most, t.qk, t.packs, room.k);
    load_rows<Unit>(o.v, at.sample, group, first, count, most, t.v, t.packs, room.v);
  } else {
    at.query = first, at.queries = count;
    load_rows<Unit>(o.q, at.sample, at.head, first, count, most, t.qk, t.packs, room.q);
    if constexpr (requires { o.dout; }) {
      load_rows<Unit>(o.dout, at.sample, at.head, first, count, most, t.v, t.packs, room.dout);
      for (int i = static_cast<int>(threadIdx.x / kWarp); i < count; i += static_cast<int>(kWarps)) {
        const auto *const out = o.out.at(at.sample, at.head, first + i), *const dout =
                                                                             o.dout.at(at.sample, at.head, first + i);
        const auto sum = t.packs ? dot<kWideBytes / sizeof(*out)>(out, dout, t.v.dim) : dot<1>(out, dout, t.v.dim);
        if (threadIdx.x % kWarp != 0) continue;
        room.delta[i] = sum;
        room.logsumexp[i] = o.logsumexp[(at.sample * s.heads + at.head) * s.queries + first + i];
      }
    }
  }
}

// Sums, by factors of their rows where they are given, to the rows of a tile.
template <class Unit, class T>
__device__ void store_rows(TileSums<Unit>& sums, const AttentionOperand<T>& x, int64_t sample, int64_t head,
                           int64_t first, int count, const RowForm& form, const Room<Unit>& room,
                           const Wide<T>* by = nullptr) {
  sums.for_pieces([&](auto& piece, int row, int column) {
    Unit::each(piece, room.patch, [&](int i, int j, Wide<T>& sum) {
      if (row + i >= count || column + j >= form.dim) return;
      x.at(sample, head, first + row + i)[column + j] = store<T>(by == nullptr ? sum : sum * by[row + i]);
    });
  });
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

// kQuad neighbouring keys, and a query of the tile that may see them.
struct KeyQuad {
  int row, column;  // of the scores
  bool in_tile;     // has a row there
  QuadLanes there;  // columns
  unsigned lanes;   // neighbouring ones that have the query
  bool seen[kQuad];
  int64_t place[kQuad];
};

// Runs body for every quad of the tile, all lanes of a warp together.
template <class Body>
__device__ void for_quads(const AttentionShape& s, const Tiling& t, const TilePlace& at, const Body& body) {
  const int lanes = (t.keys + kQuad - 1) / kQuad, rows = static_cast<int>(kWarp) / lanes,
            lane = static_cast<int>(threadIdx.x % kWarp);
  KeyQuad quad{0, lane % lanes * kQuad, false, {0, t.keys, t.keys >= kQuad}, static_cast<unsigned>(lanes), {}, {}};
  int64_t document[kQuad];
  for (int c = 0; c < kQuad; ++c) {
    const bool there = quad.column + c < at.keys;
    quad.place[c] = there ? s.key_rows.place(at.key + quad.column + c) : INT64_MAX;
    document[c] = there ? s.document(at.sample, quad.place[c]) : 0;
  }
  for (int first = static_cast<int>(threadIdx.x / kWarp) * rows; first < t.queries;
       first += static_cast<int>(kWarps) * rows) {
    quad.row = first + lane / lanes;
    quad.in_tile = quad.row < t.queries;
    const int64_t query = quad.row < at.queries ? s.query_rows.place(at.query + quad.row) : -1;
    const int64_t of_query = query < 0 ? 0 : s.document(at.sample, query);
    for (int c = 0; c < kQuad; ++c)
      quad.seen[c] = quad.place[c] <= query && query - quad.place[c] <= s.reach && document[c] == of_query;
    body(quad);
  }
}

// Neighbours are mostly of one block of Philox, which is drawn once then.
template <class W>
__device__ Quad<W> dropout_factors(const AttentionShape& s, const DropoutFactor<W>& factor, const TilePlace& at,
                                   const KeyQuad& quad) {
  Quad<W> factors{{W(1), W(1), W(1), W(1)}};
  if (!(s.dropout.probability > 0)) return factors;
  const int64_t query = at.query + (quad.row < at.queries ? quad.row : 0);
  const DropoutRow row = dropout_row(s.dropout, (at.sample * s.heads + at.head) * s.queries + query);
  base::PhiloxBlock bits{};
  int64_t drawn = -1;
  for (int c = 0; c < kQuad; ++c) {
    if (!quad.seen[c]) continue;
    const int64_t element = row.start + (s.key_rows.chosen == nullptr ? at.key + quad.column + c : quad.place[c]),
                  block = element / kPhiloxWords;
    if (block != drawn) bits = base::philox4x32(s.dropout.key, static_cast<uint64_t>(block), row.counter);
    drawn = block;
    factors.values[c] = factor(bits, element % kPhiloxWords);
  }
  return factors;
}

// Scores become exponentials, dropped but not scaled up, against a base that follows the largest score of a row only
// where that has risen by more than this: sums change their base seldom, and exponentials stay below e^4.
constexpr int kRise = 4;

template <class T, class Unit>
__device__ void softmax_rows(const AttentionShape& s, const DropoutFactor<Wide<T>>& factor, const Tiling& t,
                             const TilePlace& at, const Room<Unit>& room) {
  using W = Wide<T>;
  for_quads(s, t, at, [&](const KeyQuad& quad) {
    W* const scores = room.scores + quad.row * t.score_width;
    const W before = quad.in_tile ? room.largest[quad.row] : W(0);
    Quad<W> x{};
    if (quad.in_tile) x = load_quad(scores, quad.column, quad.there);
    W most = -infinity<W>(), sum = 0;
    for (int c = 0; c < kQuad; ++c) {
      x.values[c] = quad.seen[c] ? capped(s, x.values[c] * static_cast<W>(s.softmax_scale)) : -infinity<W>();
      most = Max()(most, x.values[c]);
    }
    most = warp_reduce(most, Max(), quad.lanes);
    if (!(most > before + W(kRise))) most = before;
    const W base = most == -infinity<W>() ? W(0) : most, less = before == -infinity<W>() ? W(1) : exp(before - base);
    const Quad<W> kept = dropout_factors(s, factor, at, quad);
    Quad<typename Unit::Stored> probabilities;
    for (int c = 0; c < kQuad; ++c) {
      const W p = x.values[c] == -infinity<W>() ? W(0) : exp(x.values[c] - base);
      sum += p;
      probabilities.values[c] = store<typename Unit::Stored>(kept.values[c] == W(0) ? W(0) : p);
    }
    sum = warp_reduce(sum, Add(), quad.lanes);
    __syncwarp();  // what is written now takes the place of what its other lanes have read
    if (!quad.in_tile) return;
    store_quad(probabilities, room.probabilities + quad.row * t.stored_width, quad.column, quad.there);
    if (quad.column != 0) return;
    room.largest[quad.row] = most, room.shrink[quad.row] = less;
    room.total[quad.row] = room.total[quad.row] * less + sum;
  });
}

template <class T, class Unit>
__global__ void __launch_bounds__(kThreads, kBlocks<T>)
    attention_forward_kernel(AttentionForward<T> o, AttentionShape s, DropoutFactor<Wide<T>> factor, Tiling t) {
  using W = Wide<T>;
  const Room<Unit> room(t, false, dynamic_shared());
  const int64_t blocks = (s.queries + t.queries - 1) / t.queries;
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t item = blockIdx.x; item < t.items; item += gridDim.x) {
    TilePlace at{item / blocks / s.heads, item / blocks % s.heads, 0, 0, 0, 0};
    TileSums<Unit> sums(t.queries, t.v.columns);
    __syncthreads();  // the item before has been stored
    load_tile<false>(o, s, t, item % blocks * t.queries, at, room);
    for (int i = thread; i < t.queries; i += static_cast<int>(kThreads))
      room.largest[i] = -infinity<W>(), room.total[i] = W(0);
    const RowRange keys = others_of<false>(s, at);
    for (int64_t key = keys.begin / t.keys * t.keys; key < keys.end; key += t.keys) {
      __syncthreads();  // the tile before has been used
      load_tile<true>(o, s, t, key, at, room);
      __syncthreads();
      multiply_tile<Unit>(rows(room.q, t.qk.width), turned(room.k, t.qk.width), t.queries, t.keys, t.qk.columns,
                          room.scores, t.score_width);
      __syncthreads();
      softmax_rows<T>(s, factor, t, at, room);
      __syncthreads();
      sums.for_pieces([&](auto& sum, int i, int) { Unit::scale(sum, room.shrink + i, room.patch); });
      sums.add(rows(room.probabilities, t.stored_width), rows(room.v, t.v.width), t.keys);
    }
    __syncthreads();
    for (int i = thread; i < at.queries; i += static_cast<int>(kThreads)) {
      const W total = room.total[i];
      room.shrink[i] = total == W(0) ? W(0) : factor.scale / total;
      o.logsumexp[(at.sample * s.heads + at.head) * s.queries + at.query + i] = room.largest[i] + log(total);
    }
    __syncthreads();
    store_rows(sums, o.out, at.sample, at.head, at.query, at.queries, t.v, room, room.shrink);
  }
}

// Scores and the gradients of dropped probabilities become those probabilities and the gradients of products q k.
template <class T, class Unit>
__device__ void gradients_of_scores(const AttentionShape& s, const DropoutFactor<Wide<T>>& factor, const Tiling& t,
                                    const TilePlace& at, const Room<Unit>& room) {
  using W = Wide<T>;
  using Stored = typename Unit::Stored;
  for_quads(s, t, at, [&](const KeyQuad& quad) {
    W *const scores = room.scores + quad.row * t.score_width, *const gradients =
                                                                  room.gradients + quad.row * t.score_width;
    Quad<W> x{}, dx{};
    if (quad.in_tile) {
      x = load_quad(scores, quad.column, quad.there), dx = load_quad(gradients, quad.column, quad.there);
    }
    const Quad<W> kept = dropout_factors(s, factor, at, quad);
    Quad<Stored> probabilities{}, dscores{};
    for (int c = 0; c < kQuad; ++c) {
      if (!quad.seen[c]) continue;
      const W scale = static_cast<W>(s.softmax_scale), score = capped(s, x.values[c] * scale);
      const W p = score == -infinity<W>() ? W(0) : exp(score - room.logsumexp[quad.row]);
      const W dp = kept.values[c] * dx.values[c] - room.delta[quad.row];
      probabilities.values[c] = store<Stored>(p * kept.values[c]);
      dscores.values[c] = store<Stored>(dp * p * scale * cap_slope(s, score));
    }
    __syncwarp();  // what is written now takes the place of what its other lanes have read
    if (!quad.in_tile) return;
    store_quad(probabilities, room.probabilities + quad.row * t.stored_width, quad.column, quad.there);
    store_quad(dscores, room.dscores + quad.row * t.stored_width, quad.column, quad.there);
  });
}

// A block has a tile of keys, or of queries, and goes through those of the other.
template <bool of_keys, class T, class Unit>
__global__ void __launch_bounds__(kThreads, kBlocks<T>)
    attention_backward_kernel(AttentionBackward<T> o, AttentionShape s, DropoutFactor<Wide<T>> factor, Tiling t) {
  const Room<Unit> room(t, true, dynamic_shared());
  const int own = of_keys ? t.keys : t.queries, step = of_keys ? t.queries : t.keys;
  const int64_t heads = of_keys ? s.groups : s.heads, each = of_keys ? s.heads / s.groups : 1;
  const int64_t blocks = ((of_keys ? s.keys : s.queries) + own - 1) / own;
  for (int64_t item = blockIdx.x; item < t.items; item += gridDim.x) {
    const int64_t head = item / blocks % heads, first = item % blocks * own;
    TilePlace at{item / blocks / heads, head * each, 0, 0, 0, 0};
    TileSums<Unit> of_qk(own, t.qk.columns), of_v(own, t.v.columns);
    __syncthreads();  // the item before has been stored
    load_tile<of_keys>(o, s, t, first, at, room);
    const RowRange others = others_of<of_keys>(s, at);
    for (; at.head < (head + 1) * each; ++at.head) {
      for (int64_t other = others.begin / step * step; other < others.end; other += step) {
        __syncthreads();  // the tile before has been used
        load_tile<!of_keys>(o, s, t, other, at, room);
        __syncthreads();
        multiply_tile<Unit>(rows(room.q, t.qk.width), turned(room.k, t.qk.width), t.queries, t.keys, t.qk.columns,
                            room.scores, t.score_width);
        multiply_tile<Unit>(rows(room.dout, t.v.width), turned(room.v, t.v.width), t.queries, t.keys, t.v.columns,
                            room.gradients, t.score_width);
        __syncthreads();
        gradients_of_scores<T>(s, factor, t, at, room);
        __syncthreads();
        if constexpr (of_keys) {
          of_qk.add(turned(room.dscores, t.stored_width), rows(room.q, t.qk.width), t.queries);
          of_v.add(turned(room.probabilities, t.stored_width), rows(room.dout, t.v.width), t.queries);
        } else {
          of_qk.add(rows(room.dscores, t.stored_width), rows(room.k, t.qk.width), t.keys);
        }
      }
    }
    __syncthreads();
    if constexpr (of_keys) {
      store_rows(of_qk, o.dk, at.sample, head, at.key, at.keys, t.qk, room);
      store_rows(of_v, o.dv, at.sample, head, at.key, at.keys, t.v, room);
    } else {
      store_rows(of_qk, o.dq, at.sample, head, at.query, at.queries, t.qk, room);
    }
  }
}

// Tiles that fit, as many rows as may be: more of those whose sums stay.
template <class Unit>
std::optional<Tiling> tiling(Pass pass, const AttentionShape& s, bool packs) {
  constexpr int kSide = Unit::kSide;
  const auto form = [](int64_t dim) {
    const int columns = static_cast<int>((dim + kSide - 1) / kSide * kSide);
    return RowForm{static_cast<int>(dim), columns, columns + Unit::kPad};
  };
  const bool of_keys = pass == Pass::keys;
  const int64_t rows = of_keys ? s.keys : s.queries;
  Tiling t{0, 0, form(s.head_dim), form(s.v_head_dim), 0, 0, packs, 0};
  const auto fit = [&](int own, int other) {
    t.keys = of_keys ? own : other, t.queries = of_keys ? other : own;
    t.score_width = (t.keys + kQuad - 1) / kQuad * kQuad + kQuad;
    t.stored_width = t.score_width * static_cast<int>(sizeof(typename Unit::W) / sizeof(typename Unit::Stored));
    return Room<Unit>(t, pass != Pass::forward, nullptr).bytes <= kRoom &&
           (pass == Pass::queries || TileSums<Unit>::fit(own, t.v.columns)) &&
           (pass == Pass::forward || TileSums<Unit>::fit(own, t.qk.columns));
  };
  int own = kSide == 1 ? 32 : 64, other = 32;
  while (own > kSide && own / 2 >= rows) own /= 2;
  while (!fit(own, other)) {
    int& larger = own > other ? own : other;
    if (larger == kSide) return std::nullopt;
    larger /= 2;
  }
  t.items = s.samples * (of_keys ? s.groups : s.heads) * ((rows + own - 1) / own);
  return t;
}

template <class T, class... Operands>
bool in_packs(const AttentionShape& s, const Operands&... operands) {
  const auto whole = [](int64_t n) { return n % Pack<T>::kCount == 0; };
  return whole(s.head_dim) && whole(s.v_head_dim) && aligned_for_packs(operands.data...) &&
         ((whole(operands.row) && whole(operands.sample) && whole(operands.head)) && ...);
}

template <Pass pass, class Unit, class T, template <class> class Operands>
bool launched(const char* name, const Operands<T>& o, const AttentionShape& s, bool packs, CUstream_st* stream) {
  const std::optional<Tiling> t = tiling<Unit>(pass, s, packs);
  if (!t || t->items == 0) return t.has_value();
  const auto bytes = static_cast<unsigned>(Room<Unit>(*t, pass != Pass::forward, nullptr).bytes);
  const auto kernel = [] {
    if constexpr (pass == Pass::forward) return attention_forward_kernel<T, Unit>;
    else return attention_backward_kernel<pass == Pass::keys, T, Unit>;
  }();
  launch_kernel(name, kernel, Grid{blocks_for_rows(t->items), kThreads, bytes, stream}, o, s,
                DropoutFactor<Wide<T>>(s.dropout.probability), *t);
  return true;
}

template <Pass pass, class T, template <class> class Operands>
void start(const char* name, const Operands<T>& o, const AttentionShape& s, bool packs, CUstream_st* stream) {
  if constexpr (kIsHalf<T>) {
    if (launched<pass, ByWarp<T>>(name, o, s, packs, stream)) return;
  }
  const bool plain = launched<pass, ByThread<T>>(name, o, s, packs, stream);
  MPX_CHECK(plain, "cuda", "attention: heads of ", s.head_dim, " and ", s.v_head_dim, " elements of ",
            sizeof(Wide<T>), " bytes do not fit the shared memory of a GPU (", kRoom,
            " bytes); take smaller heads (model.kv_channels)");
}

}  // namespace

template <class T>
void attention_forward_cuda(const AttentionForward<T>& o, const AttentionShape& shape, const AttentionScratch&,
                            CUstream_st* stream) {
  start<Pass::forward>("attention_forward", o, shape, in_packs<T>(shape, o.q, o.k, o.v), stream);
}

template <class T>
void attention_backward_cuda(const AttentionBackward<T>& o, const AttentionShape& shape, const AttentionScratch&,
                             CUstream_st* stream) {
  const bool packs = in_packs<T>(shape, o.q, o.k, o.v, o.out, o.dout);
  start<Pass::keys>("attention_backward_keys", o, shape, packs, stream);
  start<Pass::queries>("attention_backward_queries", o, shape, packs, stream);
}

#define MPX_INSTANTIATE(T)                                                                     \
  template void attention_forward_cuda<T>(const AttentionForward<T>&, const AttentionShape&,   \
                                          const AttentionScratch&, CUstream_st*);              \
  template void attention_backward_cuda<T>(const AttentionBackward<T>&, const AttentionShape&, \
                                           const AttentionScratch&, CUstream_st*)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::cuda::kernels
